// The host side of a generated feature plan: reads Arrow columns in place, runs the layers over blocks of rows on
// all threads, and packs the results. Host only; the plan itself (ingest/codegen.py) is CUDA-clean.
//
// A generated file defines `Plan` and `struct Generated` with
//   FIELDS, LISTS, DENSE, OBSERVED            how many outputs there are (LISTS: fields that are lists)
//   BYTES_PER_ROW                             of the columns of results
//   place(Plan&, uint8_t*, int64_t rows, HostPool& kept)
//                                             gives the columns of results their memory; keys have theirs in `kept`
//   load(Plan&, const ArrowArray&, const int32_t* columns, int64_t first, int32_t rows, HostPool&, HostPool& kept)
//                                             roots; those that are outputs have their copies in `kept`
//   run(const Plan&, const RowBlock&)         all layers
//   output_pool(const Plan&)                  the pool of the outputs that are lists, or null
//   emit(const Plan&, Emitter&)               every output, in order
#pragma once
#include "rowblock.cuh"
#include "threads.cuh"

#include <atomic>
#include <mutex>

// Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), ABI-stable.
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

namespace livectr {

enum Failure : int64_t { TOO_LONG = -1, OUT_OF_MEMORY = -2 };

// Root columns. Numbers without nulls are read where they lie; other columns become pointers, or copies of a block,
// without nulls, so that operators see roots like any other column.

// Where a block's rows lie in the array that holds their values: one after the other, or, where the column is
// dictionary-encoded (a looked-up one: its table is the dictionary), anywhere.
class Places {
  public:
    const ArrowArray& source;

    Places(const ArrowArray& array, int64_t first)
        : source(array.dictionary != nullptr ? *array.dictionary : array), first_(array.offset + first) {
        const auto validity = [](const ArrowArray& one) {
            return one.null_count == 0 ? nullptr : static_cast<const uint8_t*>(one.buffers[0]);
        };
        valid_ = validity(source);
        if (array.dictionary == nullptr) return;
        index_ = static_cast<const int32_t*>(array.buffers[1]);
        index_valid_ = validity(array);
    }
    // The first row, when no row is null and they lie one after the other; else -1.
    int64_t run() const { return index_ == nullptr && valid_ == nullptr ? first_ : -1; }
    // Row i of the block; -1: null.
    int64_t operator()(int64_t i) const {
        int64_t row = first_ + i;
        if (index_ != nullptr) {
            if (index_valid_ != nullptr && !bit_at(index_valid_, row)) return -1;
            row = source.offset + index_[row];
        }
        return valid_ == nullptr || bit_at(valid_, row) ? row : -1;
    }
    // out[i] = value(row i of the block), or `fill`: without a check a row where none is null.
    template <typename T, typename Value>
    void gather(T* out, int64_t rows, Value value, T fill) const {
        if (valid_ != nullptr || index_valid_ != nullptr) {
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t row = (*this)(i);
                out[i] = row < 0 ? fill : value(row);
            }
        } else if (index_ == nullptr) {
            for (int64_t i = 0; i < rows; ++i) out[i] = value(first_ + i);
        } else {
            const int32_t* const index = index_ + first_;
            const int64_t start = source.offset;
            for (int64_t i = 0; i < rows; ++i) out[i] = value(start + index[i]);
        }
    }

  private:
    int64_t first_;
    const uint8_t *valid_ = nullptr, *index_valid_ = nullptr;
    const int32_t* index_ = nullptr;
};

template <typename T>
T* room(HostPool& pool, int64_t count) { return reinterpret_cast<T*>(pool.take(std::max<int64_t>(count, 1) * int64_t(sizeof(T)))); }

template <typename T>
const T* buffer(const ArrowArray& array, int64_t number) { return static_cast<const T*>(array.buffers[number]); }

// Row → value of an array that holds values: numbers, bits, strings.
template <typename T>
auto values_of(const ArrowArray& array) {
    if constexpr (std::is_same_v<T, bool>) {
        return [bits = buffer<uint8_t>(array, 1)](int64_t row) { return bit_at(bits, row); };
    } else if constexpr (std::is_same_v<T, Str>) {
        return [offsets = buffer<int32_t>(array, 1), bytes = buffer<uint8_t>(array, 2)](int64_t row) {
            return Str{bytes + offsets[row], offsets[row + 1] - offsets[row]};
        };
    } else {
        return [values = buffer<T>(array, 1)](int64_t row) { return values[row]; };
    }
}

template <typename T>
constexpr bool LIES_AS_IT_IS = !std::is_same_v<T, bool> && !std::is_same_v<T, Str>;

template <typename T>
void load(Values<T>& column, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool, T fill = T()) {
    const Places place(array, first);
    if constexpr (LIES_AS_IT_IS<T>) {
        if (place.run() >= 0) {
            column.values = const_cast<T*>(buffer<T>(place.source, 1)) + place.run();
            return;
        }
    }
    column.values = room<T>(pool, rows);
    place.gather(column.values, rows, values_of<T>(place.source), fill);
}

template <typename T>
void load(Lists<T>& column, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool) {
    const Places place(array, first);
    const ArrowArray& items = *place.source.children[0];
    const int32_t* const offsets = buffer<int32_t>(place.source, 1);
    const uint8_t* const valid = items.null_count == 0 ? nullptr : buffer<uint8_t>(items, 0);
    const auto value = values_of<T>(items);
    column.values = room<Span<T>>(pool, rows);
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = place(i);
        if (row < 0 || offsets[row + 1] == offsets[row]) {
            column.values[i] = Span<T>{nullptr, 0};
            continue;
        }
        const int64_t begin = items.offset + offsets[row];
        const int32_t size = offsets[row + 1] - offsets[row];
        if constexpr (LIES_AS_IT_IS<T>) {
            if (valid == nullptr) {
                column.values[i] = Span<T>{const_cast<T*>(buffer<T>(items, 1)) + begin, size};
                continue;
            }
        }
        T* const copy = room<T>(pool, size);
        for (int32_t k = 0; k < size; ++k) {
            copy[k] = valid == nullptr || bit_at(valid, begin + k) ? value(begin + k) : T();
        }
        column.values[i] = Span<T>{copy, size};
    }
}

// What a block gives: keys of all fields, field after field, in pieces that lie where they were computed.
struct BlockKeys {
    struct Piece {
        const int64_t* keys;
        int64_t size;
    };
    HostPool memory;
    std::vector<Piece> pieces;
    std::vector<size_t> ends;      // of each field's pieces
    std::vector<int64_t> sizes;    // keys of each field
    std::vector<int32_t> lengths;  // int32[LISTS, rows]

    void begin(int64_t lists, int64_t rows) {
        pieces.clear();
        ends.clear();
        sizes.clear();
        lengths.resize(size_t(lists * rows));
    }
    void end_field(int64_t size) {
        ends.push_back(pieces.size());
        sizes.push_back(size);
    }
};

// Takes a block's outputs out of its columns.
struct Emitter {
    BlockKeys& out;
    int64_t first, rows, batch_rows, dense_width;
    float* dense;
    int64_t* observed;
    int64_t list = 0, replaced = 0;

    // Keys lie in memory that outlives the block.
    void field(const Values<int64_t>& column) {
        out.pieces.push_back({column.values, rows});
        out.end_field(rows);
    }
    template <typename Column>
    void field(const Column& column) {
        int64_t* const keys = room<int64_t>(out.memory, rows);
        for (int64_t row = 0; row < rows; ++row) keys[row] = int64_t(column.at(row));
        out.pieces.push_back({keys, rows});
        out.end_field(rows);
    }
    // Keys of a block mostly lie one behind the other: they stay there.
    void field(const Lists<int64_t>& column) {
        int32_t* const lengths = out.lengths.data() + list++ * rows;
        BlockKeys::Piece piece{nullptr, 0};
        int64_t before = 0;  // keys of earlier pieces
        for (int64_t row = 0; row < rows; ++row) {
            const Span<int64_t> span = column.values[row];
            lengths[row] = span.size;
            if (span.data != piece.keys + piece.size && span.size > 0) {
                out.pieces.push_back(piece);
                before += piece.size;
                piece = {span.data, 0};
            }
            piece.size += span.size;
        }
        out.pieces.push_back(piece);
        out.end_field(before + piece.size);
    }
    template <typename T>
    void field(const Lists<T>& column) {
        int32_t* const lengths = out.lengths.data() + list++ * rows;
        int64_t total = 0;
        for (int64_t row = 0; row < rows; ++row) total += lengths[row] = column.values[row].size;
        int64_t* key = room<int64_t>(out.memory, total);
        out.pieces.push_back({key, total});
        for (int64_t row = 0; row < rows; ++row) {
            const auto items = column.row(row);
            for (int32_t i = 0; i < items.size(); ++i) *key++ = int64_t(items.at(i));
        }
        out.end_field(total);
    }

    // A number that is not finite would poison every weight it meets: it becomes 0 and is counted.
    template <typename Column>
    void number(const Column& column, int64_t place) {
        for (int64_t row = 0; row < rows; ++row) put(row, place, float(column.at(row)));
    }
    // A list of `width` numbers; missing ones are 0.
    template <typename Column>
    void numbers(const Column& column, int64_t place, int64_t width) {
        for (int64_t row = 0; row < rows; ++row) {
            const auto items = column.row(row);
            for (int64_t i = 0; i < width; ++i) {
                put(row, place + i, i < items.size() ? float(items.at(int32_t(i))) : 0.0f);
            }
        }
    }
    template <typename Word, typename Column>
    void words(const Column& column, int64_t place) {
        for (int64_t row = 0; row < rows; ++row) {
            const Word word = Word(column.at(row));
            memcpy(observed + place * batch_rows + first + row, &word, 8);
        }
    }

  private:
    void put(int64_t row, int64_t place, float value) {
        const bool finite = value - value == 0;
        dense[(first + row) * dense_width + place] = finite ? value : 0;
        replaced += !finite;
    }
};

// One call at a time; kept for the next, so that memory is allocated once.
template <typename Plan, typename Generated>
struct Context {
    struct Worker {
        Plan plan;
        Memory columns = aligned(std::max<int64_t>(Generated::BYTES_PER_ROW, 1) * BLOCK_ROWS);
        HostPool items, bytes;
    };
    Plan plan{};  // resources and statistics
    std::vector<std::unique_ptr<Worker>> idle;
    std::mutex mutex;
    std::vector<BlockKeys> blocks;
    std::vector<uint8_t> list_fields = Generated::list_fields();
    int64_t rows = 0;
    std::atomic<int64_t> replaced{0}, reruns{0};

    std::unique_ptr<Worker> take() {
        std::lock_guard<std::mutex> lock(mutex);
        if (idle.empty()) {
            auto worker = std::make_unique<Worker>();
            return worker;
        }
        auto worker = std::move(idle.back());
        idle.pop_back();
        return worker;
    }
    void give(std::unique_ptr<Worker> worker) {
        std::lock_guard<std::mutex> lock(mutex);
        idle.push_back(std::move(worker));
    }

    // Returns the number of keys. The batch stays the caller's, and must live until `gather` is done.
    int64_t extract(const ArrowArray& batch, const int32_t* columns, float* dense, int64_t* observed, uint8_t* failed) {
        rows = batch.length;
        replaced = reruns = 0;
        blocks.resize(size_t((rows + BLOCK_ROWS - 1) / BLOCK_ROWS));
        parallel_for(int64_t(blocks.size()), [&](int64_t block) {
            auto worker = take();
            const int64_t first = block * BLOCK_ROWS, count = std::min<int64_t>(BLOCK_ROWS, rows - first);
            worker->plan = plan;
            worker->plan.rows = count;
            worker->items.reset();
            worker->bytes.reset();
            const int64_t grown = worker->items.grown + worker->bytes.grown;
            BlockKeys& out = blocks[size_t(block)];
            out.memory.reset();
            Generated::place(worker->plan, worker->columns.get(), count, out.memory);
            Generated::load(worker->plan, batch, columns, first, int32_t(count), worker->items, out.memory);
            out.begin(Generated::LISTS, count);
            const ::Pool* const outputs = Generated::output_pool(worker->plan);
            Generated::run(worker->plan, RowBlock{int32_t(count), failed + first, worker->items, worker->bytes,
                                                  out.memory, outputs});
            Emitter emitter{out, first, count, rows, Generated::DENSE, dense, observed};
            Generated::emit(worker->plan, emitter);
            replaced += emitter.replaced;
            reruns += worker->items.grown + worker->bytes.grown - grown;
            give(std::move(worker));
        });
        int64_t keys = 0;
        for (const BlockKeys& block : blocks) {
            for (const int64_t size : block.sizes) keys += size;
        }
        return keys > INT32_MAX ? int64_t(TOO_LONG) : keys;
    }

    // offsets int32[FIELDS·B + 1] and keys int64[nnz], field-major.
    void gather(int32_t* offsets, int64_t* keys) {
        const int64_t fields = Generated::FIELDS, count = int64_t(blocks.size());
        std::vector<int64_t> base(size_t(fields * count + 1));
        for (int64_t f = 0, total = 0; f < fields; ++f) {
            for (int64_t b = 0; b < count; ++b) {
                base[size_t(f * count + b)] = total;
                total += blocks[size_t(b)].sizes[size_t(f)];
            }
        }
        offsets[0] = 0;
        parallel_for(count, [&](int64_t b) {
            const BlockKeys& block = blocks[size_t(b)];
            const int64_t first = b * BLOCK_ROWS, size = std::min<int64_t>(BLOCK_ROWS, rows - first);
            const int32_t* lengths = block.lengths.data();
            for (int64_t f = 0; f < fields; ++f) {
                int64_t at = base[size_t(f * count + b)];
                int64_t* target = keys + at;
                for (size_t i = f > 0 ? block.ends[size_t(f - 1)] : 0; i < block.ends[size_t(f)]; ++i) {
                    memcpy(target, block.pieces[i].keys, size_t(block.pieces[i].size) * 8);
                    target += block.pieces[i].size;
                }
                int32_t* const ends = offsets + f * rows + first + 1;
                if (list_fields[size_t(f)]) {
                    for (int64_t row = 0; row < size; ++row) ends[row] = int32_t(at += lengths[row]);
                    lengths += size;
                } else {
                    for (int64_t row = 0; row < size; ++row) ends[row] = int32_t(at + row + 1);
                }
            }
        });
    }
};

}  // namespace livectr
