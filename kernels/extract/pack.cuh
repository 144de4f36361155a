// Packing on the device: outputs become the layout of Features (int64 keys field by field with int32 offsets, float32
// dense numbers row by row). Three launches: count keys by field and block, prefix sum of
// the counts, write.
#pragma once
#include "runtime/threadblock.cuh"

struct Outputs {
    int64_t* counts;  // int64[F · blocks + 1]: keys by field and block, then where they begin; the last is their number
    int32_t* offsets;  // int32[F·B + 1]
    int64_t* keys;     // int64[capacity]
    int64_t capacity;
    float* dense;       // float32[B, D]
    int64_t* observed;  // int64[S, B]
    unsigned long long* replaced;
};

template <typename Column>
static __device__ __forceinline__ int32_t row_keys(const Column&, int64_t) {
    return 1;
}
template <typename T>
static __device__ __forceinline__ int32_t row_keys(const Lists<T>& column, int64_t row) {
    return column.values[row].size;
}
template <typename Items>
static __device__ __forceinline__ int32_t row_keys(const List<Items>& column, int64_t row) {
    return column.row(row).size();
}

template <typename Column>
static __device__ __forceinline__ void write_keys(const Column& column, int64_t row, int64_t* out) {
    *out = int64_t(column.at(row));
}
template <typename Items>
static __device__ __forceinline__ void write_items(const Row<Items>& row, int64_t* out) {
    for (int32_t i = 0; i < row.size(); ++i) out[i] = int64_t(row.at(i));
}
template <typename T>
static __device__ __forceinline__ void write_keys(const Lists<T>& column, int64_t row, int64_t* out) {
    write_items(column.row(row), out);
}
template <typename Items>
static __device__ __forceinline__ void write_keys(const List<Items>& column, int64_t row, int64_t* out) {
    write_items(column.row(row), out);
}

static __device__ __forceinline__ int64_t blocks_of(int64_t rows) { return (rows + THREADS - 1) / THREADS; }

// Counts the keys of this block by field.
struct PackCount {
    const Outputs& out;
    const ThreadBlock& block;
    int32_t fields, dense;
    int32_t f = 0;

    template <typename Column>
    __device__ __forceinline__ void field(const Column& column) {
        const int64_t* const ends = block.prefix_sums([&](int32_t thread) {
            const int64_t row = block.first + thread;
            return row < block.rows ? int64_t(row_keys(column, row)) : 0;
        });
        block.threads([&](int32_t thread) {
            if (thread == 0) out.counts[f * blocks_of(block.rows) + block.first / THREADS] = ends[THREADS - 1];
        });
        ++f;
    }
    template <typename Column>
    __device__ __forceinline__ void number(const Column&, int32_t) {}
    template <typename Column>
    __device__ __forceinline__ void numbers(const Column&, int32_t, int32_t) {}
    template <typename Word, typename Column>
    __device__ __forceinline__ void words(const Column&, int32_t) {}
};

// Exclusive prefix sum of all counts, in one block.
static __device__ inline void pack_place(const Outputs& out, const ThreadBlock& block, int32_t fields) {
    const int64_t count = fields * blocks_of(block.rows);
    int64_t total = 0;  // of the same value in every thread
    for (int64_t begin = 0; begin < count; begin += THREADS) {
        const int64_t* const ends =
            block.prefix_sums([&](int32_t thread) { return begin + thread < count ? out.counts[begin + thread] : 0; });
        block.threads([&](int32_t thread) {
            if (begin + thread < count) out.counts[begin + thread] = total + (thread > 0 ? ends[thread - 1] : 0);
        });
        total += ends[THREADS - 1];
        block.threads([](int32_t) {});  // before the sums are overwritten
    }
    block.threads([&](int32_t thread) {
        if (thread == 0) out.counts[count] = total;
    });
}

// Writes this block's keys, dense numbers and observed words. Without room for all keys it writes none of them.
struct PackWrite {
    const Outputs& out;
    const ThreadBlock& block;
    int32_t fields, dense;
    int32_t f = 0;

    template <typename Column>
    __device__ __forceinline__ void field(const Column& column) {
        const int64_t blocks = blocks_of(block.rows);
        const int64_t base = out.counts[f * blocks + block.first / THREADS];
        const bool fits = out.counts[fields * blocks] <= out.capacity;
        const int64_t* const ends = block.prefix_sums([&](int32_t thread) {
            const int64_t row = block.first + thread;
            return row < block.rows ? int64_t(row_keys(column, row)) : 0;
        });
        block.threads([&](int32_t thread) {
            const int64_t row = block.first + thread;
            if (row >= block.rows) return;
            if (f == 0 && row == 0) out.offsets[0] = 0;
            out.offsets[f * block.rows + row + 1] = int32_t(base + ends[thread]);
            if (fits) write_keys(column, row, out.keys + base + (thread > 0 ? ends[thread - 1] : 0));
        });
        ++f;
    }
    template <typename Column>
    __device__ __forceinline__ void number(const Column& column, int32_t place) {
        block.threads([&](int32_t thread) {
            const int64_t row = block.first + thread;
            if (row < block.rows) put(row, place, float(column.at(row)));
        });
    }
    template <typename Column>
    __device__ __forceinline__ void numbers(const Column& column, int32_t place, int32_t width) {
        block.threads([&](int32_t thread) {
            const int64_t row = block.first + thread;
            if (row >= block.rows) return;
            const auto items = column.row(row);
            for (int32_t i = 0; i < width; ++i) put(row, place + i, i < items.size() ? float(items.at(i)) : 0.0f);
        });
    }
    template <typename Word, typename Column>
    __device__ __forceinline__ void words(const Column& column, int32_t place) {
        block.threads([&](int32_t thread) {
            const int64_t row = block.first + thread;
            if (row >= block.rows) return;
            const Word word = Word(column.at(row));
            memcpy(out.observed + place * block.rows + row, &word, 8);
        });
    }

  private:
    __device__ __forceinline__ void put(int64_t row, int32_t place, float value) const {
        const bool finite = value - value == 0;
        out.dense[row * dense + place] = finite ? value : 0.0f;
        if (!finite) atomicAdd(out.replaced, 1ull);
    }
};
