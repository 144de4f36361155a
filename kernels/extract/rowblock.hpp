// Block of rows on the host: a thread runs a layer's nodes over it in sequence.
//
// The rows of a block come in sequence, so the prefix sum of their sizes is a running end and needs no measuring
// pass: a sink writes at the pool's end. A row that finds the pool full runs again with a larger pool.
#pragma once
#include "extract/many.hpp"
#include "runtime/pool.cuh"
#include "runtime/sinks.cuh"
#ifdef LIVECTR_HOST

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

namespace livectr {

constexpr int32_t BLOCK_ROWS = 512;

struct AlignedDelete {
    void operator()(uint8_t* memory) const { ::operator delete[](memory, std::align_val_t(POOL_ALIGNMENT)); }
};
using Memory = std::unique_ptr<uint8_t[], AlignedDelete>;

// Bytes behind a list's items that may be read, and written before the next list: work is done LANES items at a time.
constexpr int64_t SLACK = 8 * LANES;

inline Memory aligned(int64_t bytes) {
    return Memory(static_cast<uint8_t*>(::operator new[](size_t(bytes + SLACK), std::align_val_t(POOL_ALIGNMENT))));
}

struct PoolLimit {};  // thrown where a pool would grow beyond its limit

// Bump allocator of the host; a reset frees everything. Allocations never move when the pool grows; a reset joins
// its chunks.
class HostPool {
  public:
    uint8_t* at = nullptr;
    uint8_t* end = nullptr;
    int64_t grown = 0;         // times that a row or a node found it full
    int64_t most = INT64_MAX;  // bytes

    uint8_t* allocate(int64_t bytes) {
        const int64_t size = round_up(bytes, POOL_ALIGNMENT);
        align();  // items of bools end anywhere
        if (end - at < size) grow(size);
        uint8_t* const start = at;
        at += size;
        return start;
    }

    void grow(int64_t least) {
        const int64_t size = std::max<int64_t>(round_up(least, POOL_ALIGNMENT), std::max<int64_t>(bytes(), 1 << 16));
        if (size > most - bytes()) throw PoolLimit();
        chunks_.push_back({aligned(size), size});
        at = chunks_.back().memory.get();
        end = at + size;
        ++grown;
    }

    void reset() {
        if (bytes() > most) {
            chunks_.clear();
            at = end = nullptr;
        }
        if (chunks_.size() > 1) {
            const int64_t total = bytes();
            chunks_.clear();
            chunks_.push_back({aligned(total), total});
        }
        if (!chunks_.empty()) {
            at = chunks_.back().memory.get();
            end = at + chunks_.back().size;
        }
    }

    // Nodes begin at a cache line.
    void align() {
        at += std::min<int64_t>(-int64_t(reinterpret_cast<uintptr_t>(at)) & (POOL_ALIGNMENT - 1), end - at);
    }

    int64_t bytes() const {
        int64_t total = 0;
        for (const Chunk& chunk : chunks_) total += chunk.size;
        return total;
    }

  private:
    struct Chunk {
        Memory memory;
        int64_t size;
    };
    std::vector<Chunk> chunks_;
};

template <typename T>
struct PushItems {
    T* at;
    T* end;
    bool full = false;  // no space for an item
    inline __attribute__((always_inline)) bool done() const { return full; }
    inline __attribute__((always_inline)) void push(T value) {
        if (at == end) full = true;
        else *at++ = value;
    }
    // Space is checked once, and items are computed LANES at a time: those beyond the list's end count for nothing.
    template <typename Item>
    inline __attribute__((always_inline)) void fill(int32_t n, Item item) {
        if (__builtin_expect(end - at < n, 0)) {
            at = end;
            full = true;
            return;
        }
        T* const first = at;
        for (int32_t i = 0; i < n; i += LANES) {
            T lanes[LANES];
            for (int32_t k = 0; k < LANES; ++k) lanes[k] = item(i + k);
            memcpy(first + i, lanes, sizeof lanes);
        }
        at += n;
    }
};

struct PushStrings {
    Str* item;
    Str* last;
    uint8_t* at;
    uint8_t* end;
    uint8_t* begin;
    Str first{nullptr, 0};
    int64_t wanted = 0;  // bytes, counted once there was no space
    bool full_items = false, full_bytes = false;

    inline __attribute__((always_inline)) bool room(int64_t bytes) {
        if (__builtin_expect(end - at >= bytes && !full_bytes, 1)) return true;
        wanted += full_bytes ? bytes : bytes + (at - begin);
        full_bytes = true;
        return false;
    }
    inline __attribute__((always_inline)) void copy(Str s) {
        if (!room(s.size)) return;
        memcpy(at, s.data, size_t(s.size));
        at += s.size;
    }
    inline __attribute__((always_inline)) void flush() {
        if (first.size > 0) copy(first);
        first.size = 0;
    }
    inline __attribute__((always_inline)) void append(Str s) {
        if (s.size == 0) return;
        if (at == begin && first.size == 0 && !full_bytes) {
            first = s;
            return;
        }
        flush();
        copy(s);
    }
    inline __attribute__((always_inline)) void put(uint8_t byte) {
        flush();
        if (room(1)) *at++ = byte;
    }
    template <typename Bytes>
    inline __attribute__((always_inline)) void write(int32_t n, Bytes bytes) {
        flush();
        if (!room(n)) return;
        bytes(at);
        at += n;
    }
    inline __attribute__((always_inline)) void next() {
        if (item == last) {
            full_items = true;
            return;
        }
        *item++ = at == begin ? first : Str{begin, int32_t(at - begin)};
        begin = at;
        first.size = 0;
    }
    inline __attribute__((always_inline)) void view(Str s) {
        if (item == last) full_items = true;
        else *item++ = s;
    }
    inline __attribute__((always_inline)) void push(Str s) { view(s); }
};

struct RowBlock {
    int32_t rows;
    uint8_t* failed;       // uint8[rows]
    HostPool& items;       // items of lists
    HostPool& bytes;       // bytes of strings
    HostPool& kept;        // items of outputs, which outlive the block
    const ::Pool* output;  // stands for `kept` in the plan
    bool keeps = false;    // all items of numbers go to `kept`

    HostPool& pool_of(const ::Pool& pool) const { return keeps || &pool == output ? kept : items; }

    template <typename T, typename F>
    inline __attribute__((always_inline)) void values(const Values<T>& out, F value) const {
        T* const values = out.values;
        const int32_t count = rows;
#pragma GCC ivdep
        for (int32_t row = 0; row < count; ++row) values[row] = value(row);
    }

    template <typename T, typename F>
    inline __attribute__((always_inline)) void lists(const Lists<T>& out, const ::Pool& pool, F operate) const {
        HostPool& items = pool_of(pool);
        items.align();
        for (int32_t row = 0; row < rows;) {
            T* const begin = reinterpret_cast<T*>(items.at);
            PushItems<T> sink{begin, begin + room<T>(items)};
            operate(row, sink);
            const int64_t count = sink.at - begin;
            if (__builtin_expect(sink.full || count > MAX_ROW_VALUES, 0)) {
                if (count > MAX_ROW_VALUES) fail(row++, out);
                else items.grow(0);
                continue;
            }
            out.values[row++] = Span<T>{begin, int32_t(count)};
            items.at = reinterpret_cast<uint8_t*>(sink.at);
        }
    }

    static void keys(const Str* strings, int64_t n, int64_t* out) { livectr::keys(strings, n, out); }

    // key(ngrams(text, n)) of each row.
    inline void gram_keys(const Lists<int64_t>& out, const ::Pool& pool, const Values<Str>& texts, int32_t n) const {
        HostPool& items = pool_of(pool);
        GramKeys grams(n);
        items.align();
        for (int32_t row = 0; row < rows; ++row) {
            const int32_t count = grams.begin(texts.values[row]);
            if (__builtin_expect(count > MAX_ROW_VALUES, 0)) {
                fail(row, out);
                continue;
            }
            if (items.end - items.at < 8 * int64_t(count)) items.grow(8 * int64_t(count));
            int64_t* const begin = reinterpret_cast<int64_t*>(items.at);
            grams.keys(count, begin);
            out.values[row] = Span<int64_t>{begin, count};
            items.at += 8 * int64_t(count);
        }
    }

    // Lists of the same sizes: operate(items, count, results) runs over items that lie one behind the other.
    template <typename T, typename From, typename F>
    inline __attribute__((always_inline)) void map(const Lists<T>& out, const ::Pool& pool, const Lists<From>& in,
                                                   F operate) const {
        HostPool& items = pool_of(pool);
        int64_t total = 0;
        for (int32_t row = 0; row < rows; ++row) total += in.values[row].size;
        T* at = reinterpret_cast<T*>(items.allocate(total * int64_t(sizeof(T))));
        for (int32_t row = 0; row < rows;) {
            const From* const first = in.values[row].data;
            T* const begin = at;
            do {
                const int32_t size = in.values[row].size;
                out.values[row++] = Span<T>{at, size};
                at += size;
            } while (row < rows && (in.values[row].size == 0 || in.values[row].data == first + (at - begin)));
            operate(first, at - begin, begin);
        }
    }

    template <typename F>
    inline __attribute__((always_inline)) void strings(const Values<Str>& out, const ::Pool&, F operate) const {
        for (int32_t row = 0; row < rows;) {
            PushStrings sink{out.values + row, out.values + row + 1, bytes.at, bytes.end, bytes.at};
            operate(row, sink);
            sink.next();
            const int64_t used = std::max(sink.wanted, int64_t(sink.at - bytes.at));
            if (__builtin_expect(sink.full_bytes || used > MAX_ROW_BYTES, 0)) {
                if (used > MAX_ROW_BYTES) fail(row++, out);
                else bytes.grow(sink.wanted);
                continue;
            }
            ++row;
            bytes.at = sink.at;
        }
    }

    template <typename F>
    inline __attribute__((always_inline)) void string_lists(const Lists<Str>& out, const ::Pool&, F operate) const {
        items.align();
        for (int32_t row = 0; row < rows;) {
            Str* const begin = reinterpret_cast<Str*>(items.at);
            PushStrings sink{begin, begin + room<Str>(items), bytes.at, bytes.end, bytes.at};
            operate(row, sink);
            const int64_t count = sink.item - begin, used = std::max(sink.wanted, int64_t(sink.at - bytes.at));
            const bool over = count > MAX_ROW_VALUES || used > MAX_ROW_BYTES;
            if (__builtin_expect(sink.full_items || sink.full_bytes || over, 0)) {
                if (over) {
                    fail(row++, out);
                    continue;
                }
                if (sink.full_items) items.grow(0);
                if (sink.full_bytes) bytes.grow(sink.wanted);
                continue;
            }
            out.values[row++] = Span<Str>{begin, int32_t(count)};
            items.at = reinterpret_cast<uint8_t*>(sink.item);
            bytes.at = sink.at;
        }
    }

  private:
    // Items that one row may still write: at most one more than it may keep.
    template <typename T>
    static int64_t room(const HostPool& items) {
        return std::min<int64_t>((items.end - items.at) / int64_t(sizeof(T)), MAX_ROW_VALUES + 1);
    }

    template <typename Column>
    void fail(int32_t row, const Column& out) const {
        failed[row] = 1;
        out.values[row] = {nullptr, 0};
    }
};

}  // namespace livectr

#endif
