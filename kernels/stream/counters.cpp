// Windowed counters as a sequential state machine (host only): impressions and clicks of each key by time.
//
//     fine ring     a cell for each of the last `fine` grains of time, up to `head`, the key's newest
//     coarse rings  of each longer window COARSE cells of `span` grains: what has left the fine ring
//
// So a window ends at a grain and begins at a cell of its own ring. Cells of a key are 1, 2 or 4 bytes wide: all of them
// get wider when one would overflow. A row is what a window is computed from (operators/counts.cuh):
//
//     head int64, then for each cell that is not 0: ring u8, age u8, impressions and clicks as varints
//
// with `age` the number of cells before the one of `head`.
//
// Two rules bound memory, and both are functions of the sequence alone: a key leaves once no window can see any of its
// cells, and beyond max_bytes the keys leave that were counted the longest ago.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "operators/features.cuh"
#include "runtime/index.cuh"

namespace {

constexpr int64_t COARSE = 7;        // a window's cells: the 6 of its length, and the one where it begins
constexpr int64_t KEY_BYTES = 64;    // place, and slots of the index
constexpr uint32_t NOBODY = NO_ROW;  // end of the list of keys

// Things by number, in chunks that never move.
template <typename T>
class Chunked {
  public:
    explicit Chunked(size_t each) : each_(each) {}
    T* at(size_t i) { return chunks_[i / CHUNK].get() + i % CHUNK * each_; }
    const T* at(size_t i) const { return chunks_[i / CHUNK].get() + i % CHUNK * each_; }

    // A number that is free.
    uint32_t take() {
        if (!free_.empty()) {
            const uint32_t found = free_.back();
            free_.pop_back();
            return found;
        }
        if (next_ % CHUNK == 0) chunks_.emplace_back(new T[CHUNK * each_]);
        return next_++;
    }
    void give(uint32_t i) { free_.push_back(i); }

  private:
    static constexpr size_t CHUNK = 4096;
    const size_t each_;
    std::vector<std::unique_ptr<T[]>> chunks_;
    std::vector<uint32_t> free_;
    uint32_t next_ = 0;
};

struct Key {
    int64_t key;
    int64_t head;           // newest grain
    uint32_t older, newer;  // neighbours by the time of the last count
    uint32_t generation;    // that of the last count
    uint32_t wide : 2;      // cells of 1 << wide bytes
    uint32_t block : 30;    // cells
};

class CounterTable {
  public:
    CounterTable(int64_t grain_ms, int64_t fine, const int64_t* spans, int64_t rings, int64_t max_bytes)
        : grain_ms_(grain_ms),
          fine_(fine),
          spans_(spans, spans + rings),
          cells_(size_t(2 * (fine + COARSE * rings))),
          max_bytes_(max_bytes),
          blocks_{Chunked<uint8_t>(cells_), Chunked<uint8_t>(2 * cells_), Chunked<uint8_t>(4 * cells_)} {
        horizon_ = fine_ + (rings ? (COARSE + 1) * spans_.back() : 0);
    }

    // Rows of the wanted among m events, as of before each, and the events counted.
    void push(int64_t m, const int64_t* key, const int64_t* time_ms, const uint8_t* shown, const uint8_t* clicked,
              const uint8_t* wanted) {
        offsets.assign(1, 0);
        bytes.clear();
        for (int64_t i = 0; i < m; ++i) {
            now_ms = std::max(now_ms, time_ms[i]);
            const uint32_t id = find_row(index_.view(), key[i]);
            if (wanted[i]) {
                if (id != NOBODY) write(*keys_.at(id));
                offsets.push_back(int64_t(bytes.size()));
            }
            if (shown[i] || clicked[i]) count(id, key[i], floor_divide(now_ms, grain_ms_), shown[i], clicked[i]);
        }
    }

    // Rows of the keys that were counted after generation `since` was closed; of all keys for 0. Newest first.
    void changed(int64_t since, std::vector<int64_t>& found) {
        offsets.assign(1, 0);
        bytes.clear();
        for (uint32_t id = newest_; id != NOBODY; id = keys_.at(id)->older) {
            const Key& key = *keys_.at(id);
            if (key.generation <= since) break;
            found.push_back(key.key);
            write(key);
            offsets.push_back(int64_t(bytes.size()));
        }
    }

    // Keys that left after generation `since` was closed and are not back. Listed if `tracks`.
    std::vector<int64_t> left(int64_t since) const {
        std::vector<int64_t> found;
        for (const auto& [generation, key] : left_)
            if (generation > since && find_row(index_.view(), key) == NOBODY) found.push_back(key);
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }
    void forget_left(int64_t until) {
        while (!left_.empty() && left_.front().first <= until) left_.pop_front();
    }

    // Visits all keys, the longest not counted first.
    template <typename Visit>
    void each(Visit visit) const {
        for (uint32_t id = oldest_; id != NOBODY; id = keys_.at(id)->newer) visit(*keys_.at(id));
    }
    size_t block_bytes(uint32_t wide) const { return cells_ << wide; }
    const uint8_t* block(const Key& key) const { return blocks_[key.wide].at(key.block); }

    // Adds a key that was exported, as the one that was counted last.
    void assign(int64_t key, int64_t head, uint32_t wide, const uint8_t* block) {
        Key& made = *keys_.at(create(key, head, wide));
        memcpy(blocks_[wide].at(made.block), block, block_bytes(wide));
    }

    int64_t mark() { return generation_++; }
    int64_t size() const { return size_; }
    int64_t listed() const { return int64_t(left_.size()); }
    // Depends on the keys and their counts alone, so that a restored table evicts the same keys.
    int64_t bytes_held() const { return bytes_; }

    std::vector<int64_t> offsets;
    std::vector<uint8_t> bytes;
    int64_t now_ms = 0, expired = 0, evicted = 0;
    bool tracks = false;

  private:
    int64_t cost(uint32_t wide) const { return KEY_BYTES + int64_t(block_bytes(wide)); }

    uint32_t create(int64_t key, int64_t head, uint32_t wide) {
        const uint32_t id = keys_.take();
        const uint32_t block = blocks_[wide].take();
        *keys_.at(id) = {key, head, newest_, NOBODY, generation_, wide, block};
        memset(blocks_[wide].at(block), 0, block_bytes(wide));
        (newest_ == NOBODY ? oldest_ : keys_.at(newest_)->newer) = id;
        newest_ = id;
        index_.find_or_insert(key, id);
        bytes_ += cost(wide);
        ++size_;
        return id;
    }

    void unlink(const Key& key) {
        (key.older == NOBODY ? oldest_ : keys_.at(key.older)->newer) = key.newer;
        (key.newer == NOBODY ? newest_ : keys_.at(key.newer)->older) = key.older;
    }

    void touch(uint32_t id) {
        Key& key = *keys_.at(id);
        key.generation = generation_;
        if (newest_ == id) return;
        unlink(key);
        key.older = newest_, key.newer = NOBODY;
        keys_.at(newest_)->newer = id;
        newest_ = id;
    }

    void leave(uint32_t id) {
        const Key& key = *keys_.at(id);
        if (tracks) left_.push_back({generation_, key.key});
        unlink(key);
        index_.erase(key.key);
        bytes_ -= cost(key.wide);
        blocks_[key.wide].give(key.block);
        keys_.give(id);
        --size_;
    }

    void count(uint32_t id, int64_t key, int64_t grain, bool shown, bool clicked) {
        while (oldest_ != NOBODY && oldest_ != id && keys_.at(oldest_)->head < grain - horizon_) {
            leave(oldest_);
            ++expired;
        }
        if (id == NOBODY) id = create(key, grain, 0);
        else touch(id);
        Key& counted = *keys_.at(id);
        advance(counted, grain);
        const size_t cell = size_t(2 * (grain % fine_));
        if (shown) bump(counted, cell, 1);
        if (clicked) bump(counted, cell + 1, 1);
        while (bytes_ > max_bytes_ && size_ > 1) {
            leave(oldest_);
            ++evicted;
        }
    }

    size_t coarse_cell(size_t ring, int64_t number) const {
        return size_t(2 * (fine_ + COARSE * int64_t(ring) + modulo(number, COARSE)));
    }

    // Lets time pass for a key: cells that leave the fine ring are added to the coarse ones.
    void advance(Key& key, int64_t grain) {
        const int64_t before = key.head;
        if (grain <= before) return;
        key.head = grain;
        for (size_t r = 0; r < spans_.size(); ++r) {
            const int64_t was = floor_divide(before - fine_, spans_[r]), is = floor_divide(grain - fine_, spans_[r]);
            for (int64_t c = std::max(was + 1, is - COARSE + 1); c <= is; ++c)
                put(key, coarse_cell(r, c), 0), put(key, coarse_cell(r, c) + 1, 0);
        }
        const int64_t last = std::min(grain - fine_, before);
        for (int64_t g = std::max<int64_t>(before - fine_ + 1, 0); g <= last; ++g) {
            const size_t cell = size_t(2 * (g % fine_));
            for (size_t kind = 0; kind < 2; ++kind) {
                const uint32_t n = get(key, cell + kind);
                if (!n) continue;
                for (size_t r = 0; r < spans_.size(); ++r) {
                    const int64_t c = floor_divide(g, spans_[r]);
                    if (c > floor_divide(grain - fine_, spans_[r]) - COARSE) bump(key, coarse_cell(r, c) + kind, n);
                }
                put(key, cell + kind, 0);
            }
        }
    }

    uint32_t get(const Key& key, size_t cell) const {
        const uint8_t* const at = block(key) + (cell << key.wide);
        if (key.wide == 0) return *at;
        if (key.wide == 1) {
            uint16_t n;
            memcpy(&n, at, 2);
            return n;
        }
        uint32_t n;
        memcpy(&n, at, 4);
        return n;
    }

    void put(Key& key, size_t cell, uint32_t n) {
        uint8_t* const at = blocks_[key.wide].at(key.block) + (cell << key.wide);
        memcpy(at, &n, size_t{1} << key.wide);  // little-endian
    }

    void bump(Key& key, size_t cell, uint32_t by) {
        const uint64_t n = std::min<uint64_t>(uint64_t(get(key, cell)) + by, UINT32_MAX);
        while (key.wide < 2 && n >> (8 << key.wide)) widen(key);
        put(key, cell, uint32_t(n));
    }

    void widen(Key& key) {
        const uint32_t wide = key.wide + 1, block = blocks_[wide].take();
        Key wider = key;
        wider.wide = wide, wider.block = block;
        for (size_t cell = 0; cell < cells_; ++cell) put(wider, cell, get(key, cell));
        blocks_[key.wide].give(key.block);
        bytes_ += cost(wide) - cost(key.wide);
        key = wider;
    }

    void write(const Key& key) {
        const auto* const head = reinterpret_cast<const uint8_t*>(&key.head);
        bytes.insert(bytes.end(), head, head + 8);
        for (int64_t age = 0; age < fine_ && age <= key.head; ++age)
            entry(key, 0, age, size_t(2 * ((key.head - age) % fine_)));
        for (size_t r = 0; r < spans_.size(); ++r) {
            const int64_t newest = floor_divide(key.head - fine_, spans_[r]);
            for (int64_t c = newest; c > newest - COARSE; --c)
                entry(key, r + 1, floor_divide(key.head, spans_[r]) - c, coarse_cell(r, c));
        }
    }

    void entry(const Key& key, size_t ring, int64_t age, size_t cell) {
        const uint32_t shown = get(key, cell), clicked = get(key, cell + 1);
        if (!shown && !clicked) return;
        bytes.push_back(uint8_t(ring));
        bytes.push_back(uint8_t(age));
        varint(shown);
        varint(clicked);
    }

    void varint(uint32_t n) {
        for (; n >= 128; n >>= 7) bytes.push_back(uint8_t(n | 128));
        bytes.push_back(uint8_t(n));
    }

    const int64_t grain_ms_, fine_;
    const std::vector<int64_t> spans_;
    const size_t cells_;
    const int64_t max_bytes_;
    int64_t horizon_ = 0;
    Index index_{0};
    Chunked<Key> keys_{1};
    Chunked<uint8_t> blocks_[3];
    std::deque<std::pair<int64_t, int64_t>> left_;  // (generation, key)
    uint32_t oldest_ = NOBODY, newest_ = NOBODY;
    uint32_t generation_ = 1;
    int64_t bytes_ = 0, size_ = 0;
};

CounterTable& of(void* table) { return *static_cast<CounterTable*>(table); }

}  // namespace

// ── the calls of counters.py ────────────────────────────────────────────────────────────────────────────────

extern "C" {

void* counters_new(int64_t grain_ms, int64_t fine, const int64_t* spans, int64_t rings, int64_t max_bytes) {
    return new CounterTable(grain_ms, fine, spans, rings, max_bytes);
}
void counters_free(void* table) { delete static_cast<CounterTable*>(table); }

// facts int64[6]: keys, bytes, keys that expired, keys that were evicted, keys listed as left, time of the sequence.
void counters_facts(void* table, int64_t* facts) {
    const CounterTable& t = of(table);
    const int64_t found[] = {t.size(), t.bytes_held(), t.expired, t.evicted, t.listed(), t.now_ms};
    std::copy(found, found + 6, facts);
}

// Returns the bytes of the rows of the wanted.
int64_t counters_push(void* table, int64_t m, const int64_t* key, const int64_t* time_ms, const uint8_t* shown,
                      const uint8_t* clicked, const uint8_t* wanted) {
    of(table).push(m, key, time_ms, shown, clicked, wanted);
    return int64_t(of(table).bytes.size());
}

// Rows of the last call that made any.
void counters_rows(void* table, int64_t* offsets, uint8_t* bytes) {
    std::copy(of(table).offsets.begin(), of(table).offsets.end(), offsets);
    std::copy(of(table).bytes.begin(), of(table).bytes.end(), bytes);
}

// sizes int64[2]: rows and their bytes, for counters_rows; `keys` has room for all keys.
void counters_changed(void* table, int64_t since, int64_t* keys, int64_t* sizes) {
    std::vector<int64_t> found;
    of(table).changed(since, found);
    std::copy(found.begin(), found.end(), keys);
    sizes[0] = int64_t(found.size()), sizes[1] = int64_t(of(table).bytes.size());
}

int64_t counters_mark(void* table) { return of(table).mark(); }
void counters_track(void* table) { of(table).tracks = true; }
void counters_forget_left(void* table, int64_t until) { of(table).forget_left(until); }
int64_t counters_left_size(void* table, int64_t since) { return int64_t(of(table).left(since).size()); }
void counters_left(void* table, int64_t since, int64_t* keys) {
    const auto found = of(table).left(since);
    std::copy(found.begin(), found.end(), keys);
}

int64_t counters_export_bytes(void* table) {
    int64_t bytes = 0;
    of(table).each([&](const Key& key) { bytes += int64_t(of(table).block_bytes(key.wide)); });
    return bytes;
}
void counters_export(void* table, int64_t* keys, int64_t* heads, uint8_t* wide, uint8_t* blocks) {
    of(table).each([&](const Key& key) {
        *keys++ = key.key, *heads++ = key.head, *wide++ = key.wide;
        const size_t size = of(table).block_bytes(key.wide);
        memcpy(blocks, of(table).block(key), size);
        blocks += size;
    });
}

// Fills an empty table. Returns the bytes of the blocks that were read; -1: they are fewer, or a width is none.
int64_t counters_assign(void* table, int64_t now_ms, int64_t m, const int64_t* keys, const int64_t* heads,
                        const uint8_t* wide, const uint8_t* blocks, int64_t bytes) {
    CounterTable& t = of(table);
    t.now_ms = now_ms;
    int64_t read = 0;
    for (int64_t i = 0; i < m; ++i) {
        if (wide[i] > 2 || read + int64_t(t.block_bytes(wide[i])) > bytes) return -1;
        t.assign(keys[i], heads[i], wide[i], blocks + read);
        read += int64_t(t.block_bytes(wide[i]));
    }
    return read;
}

}  // extern "C"
