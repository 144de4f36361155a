// Packing on the device: outputs become the layout of Features (int64 keys field by field with int32 offsets, float32
// dense numbers row by row). The kernels are those of every plan: a block takes a field of a table.
//
//   pack_count   fields × blocks of rows   number of keys, of the block and of the field
//   pack_place   fields                    prefix sums: of the fields' totals, then of the field's blocks
//   pack_write   outputs × blocks of rows  keys and offsets, dense numbers, observed words
#pragma once
#include "extract/device_plan.cuh"

enum class Type : int32_t { INT64, INT32, FLOAT32, FLOAT64, BOOL };
enum class Store : int32_t { RESULT, RESULT_LIST, ROOT, ROOT_LIST, CONSTANT };

// An output.
struct Field {
    Type type;
    Store store;
    int64_t column;  // slot of a result, word of a root, or a constant's bytes
    int64_t place;   // of dense numbers in their row, of a statistic's words
    int64_t width;   // dense numbers
};
static_assert(sizeof(Field) == 4 * 8, "as in ingest/extract/device_tables.py");

// Values of a row.
struct Items {
    const void* values;
    int64_t begin;
    int32_t size;
};

static __device__ __forceinline__ Items items_of(const Plan& p, const Field& field, int64_t row) {
    if (field.store == Store::RESULT) return Items{slot_at(p, field.column), row, 1};
    if (field.store == Store::ROOT) return Items{reinterpret_cast<const void*>(p.roots[field.column]), row, 1};
    if (field.store == Store::CONSTANT) return Items{&field.column, 0, 1};
    if (field.store == Store::RESULT_LIST) {
        const auto span = reinterpret_cast<const Span<uint8_t>*>(slot_at(p, field.column))[row];
        return Items{span.data, 0, span.size};
    }
    const auto& list = *reinterpret_cast<const List<Values<uint8_t>>*>(p.roots + field.column);
    const auto items = list.row(row);
    return Items{items.items.values, items.begin, items.size()};
}

template <typename To>
static __device__ __forceinline__ To value_at(Type type, const Items& items, int32_t i) {
    const int64_t at = items.begin + i;
    switch (type) {
        case Type::INT64: return To(static_cast<const int64_t*>(items.values)[at]);
        case Type::INT32: return To(static_cast<const int32_t*>(items.values)[at]);
        case Type::FLOAT32: return To(static_cast<const float*>(items.values)[at]);
        case Type::FLOAT64: return To(static_cast<const double*>(items.values)[at]);
        default: return To(static_cast<const bool*>(items.values)[at]);
    }
}

// Where the keys of the block's rows end.
struct KeyEnds {
    const int64_t* sums;  // null: a key a row
    int64_t rows;         // of the block
    __device__ __forceinline__ int64_t operator()(int32_t thread) const {
        if (thread < 0) return 0;
        return sums != nullptr ? sums[thread] : thread < rows ? thread + 1 : rows;
    }
};

static __device__ __forceinline__ KeyEnds key_ends(const Plan& p, const ThreadBlock& block, const Field& field) {
    if (field.store != Store::RESULT_LIST && field.store != Store::ROOT_LIST) {
        return KeyEnds{nullptr, block.rows - block.first};
    }
    return KeyEnds{block.prefix_sums([&](int32_t thread) {
                       const int64_t row = block.first + thread;
                       return row < block.rows ? int64_t(items_of(p, field, row).size) : 0;
                   }),
                   0};
}

KERNEL(pack_count) {
    const ThreadBlock rows = rows_at(p, block, index);
    const int64_t number = index / p.blocks;
    const int64_t keys = key_ends(p, rows, p.fields[number])(THREADS - 1);
    rows.threads([&](int32_t thread) {
        if (thread != 0) return;
        p.outputs.counts[index] = keys;
        atomicAdd(p.outputs.totals + number, (unsigned long long)keys);
    });
}

// Exclusive prefix sums of a field's counts, behind the fields before it.
KERNEL(pack_place) {
    const Outputs& out = p.outputs;
    const int64_t* ends = block.prefix_sums([&](int32_t thread) {
        int64_t sum = 0;
        for (int64_t field = thread; field < index; field += THREADS) sum += int64_t(out.totals[field]);
        return sum;
    });
    const int64_t before = ends[THREADS - 1], part = (p.blocks + THREADS - 1) / THREADS;
    block.threads([](int32_t) {});  // before the sums are overwritten
    int64_t* const counts = out.counts + index * p.blocks;
    ends = block.prefix_sums([&](int32_t thread) {
        int64_t sum = 0;
        for (int64_t i = thread * part; i < (thread + 1) * part && i < p.blocks; ++i) sum += counts[i];
        return sum;
    });
    block.threads([&](int32_t thread) {
        int64_t sum = before + (thread > 0 ? ends[thread - 1] : 0);
        for (int64_t i = thread * part; i < (thread + 1) * part && i < p.blocks; ++i) {
            const int64_t count = counts[i];
            counts[i] = sum;
            sum += count;
        }
        if (thread == THREADS - 1 && index == out.fields - 1) counts[p.blocks] = sum;
    });
}

// Without room for all keys none of them is written.
static __device__ __forceinline__ void write_keys(const Plan& p, const ThreadBlock& block, const Field& field,
                                                  int64_t index) {
    const Outputs& out = p.outputs;
    const int64_t base = out.counts[index], first = index / p.blocks * block.rows;
    const bool fits = out.counts[out.fields * p.blocks] <= out.capacity;
    const KeyEnds ends = key_ends(p, block, field);
    block.threads([&](int32_t thread) {
        const int64_t row = block.first + thread;
        if (row >= block.rows) return;
        if (first + row == 0) out.offsets[0] = 0;
        out.offsets[first + row + 1] = int32_t(base + ends(thread));
        if (!fits) return;
        const Items items = items_of(p, field, row);
        int64_t* const keys = out.keys + base + ends(thread - 1);
        for (int32_t i = 0; i < items.size; ++i) keys[i] = value_at<int64_t>(field.type, items, i);
    });
}

static __device__ __forceinline__ void write_numbers(const Plan& p, const ThreadBlock& block, const Field& field) {
    const Outputs& out = p.outputs;
    block.threads([&](int32_t thread) {
        const int64_t row = block.first + thread;
        if (row >= block.rows) return;
        const Items items = items_of(p, field, row);
        for (int32_t i = 0; i < field.width; ++i) {
            const float value = i < items.size ? value_at<float>(field.type, items, i) : 0.0f;
            const bool finite = value - value == 0;
            out.dense[row * out.width + field.place + i] = finite ? value : 0.0f;
            if (!finite) atomicAdd(out.replaced, 1ull);
        }
    });
}

static __device__ __forceinline__ void write_words(const Plan& p, const ThreadBlock& block, const Field& field) {
    const bool real = field.type == Type::FLOAT32 || field.type == Type::FLOAT64;
    block.threads([&](int32_t thread) {
        const int64_t row = block.first + thread;
        if (row >= block.rows) return;
        const Items items = items_of(p, field, row);
        int64_t* const word = p.outputs.observed + field.place * block.rows + row;
        if (!real) *word = value_at<int64_t>(field.type, items, 0);
        if (!real) return;
        const double value = value_at<double>(field.type, items, 0);
        memcpy(word, &value, 8);
    });
}

KERNEL(pack_write) {
    const ThreadBlock rows = rows_at(p, block, index);
    const int64_t number = index / p.blocks;
    const Field& field = p.fields[number];
    if (number < p.outputs.fields) write_keys(p, rows, field, index);
    else if (field.width > 0) write_numbers(p, rows, field);
    else write_words(p, rows, field);
}
