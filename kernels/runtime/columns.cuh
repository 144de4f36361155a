// Columns of a batch, as operators read and write them.
//
//   roots on a device, in Arrow's layout: results, and roots on the host, one fixed-width value a row:
//   Values<T>   T values[B]             Values<T>   numbers, bools
//   Strings     offsets, bytes          Values<Str> pointer and size of each row's string
//   List<X>     offsets, items X        Lists<T>    pointer and size of each row's items (T = Str: strings)
//
// Pointers of results point into the memory pool (runtime/pool.cuh) or into an input: a piece of a string is not
// copied. In roots of strings and lists `valid` is Arrow's bitmap (null: all valid) and `shift` a
// slice's start; a null string is `fill`, a null list empty.
#pragma once
#include "runtime/shim.cuh"

struct Str {
    const uint8_t* data;
    int32_t size;
};

static __device__ __forceinline__ bool bit_at(const uint8_t* bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

template <typename T>
struct Values {
    T* values;
    __device__ __forceinline__ T at(int64_t i) const { return values[i]; }
};

template <typename T>
struct Constant {
    T value;
    __device__ __forceinline__ T at(int64_t) const { return value; }
};

struct Strings {
    const int32_t* offsets;
    const uint8_t* bytes;
    const uint8_t* valid;
    int64_t shift;
    Str fill;
    __device__ __forceinline__ Str at(int64_t i) const {
        i += shift;
        if (valid != nullptr && !bit_at(valid, i)) return fill;
        return Str{bytes + offsets[i], offsets[i + 1] - offsets[i]};
    }
};

// Items of a row of a list column.
template <typename Items>
struct Row {
    Items items;
    int32_t begin, end;
    __device__ __forceinline__ int32_t size() const { return end - begin; }
    __device__ __forceinline__ auto at(int32_t i) const { return items.at(int64_t(begin) + i); }
};

template <typename Items>
struct List {
    const int32_t* offsets;
    const uint8_t* valid;
    int64_t shift;
    Items items;
    __device__ __forceinline__ Row<Items> row(int64_t i) const {
        i += shift;
        if (valid != nullptr && !bit_at(valid, i)) return Row<Items>{items, 0, 0};
        return Row<Items>{items, offsets[i], offsets[i + 1]};
    }
};

template <typename T>
struct Span {
    T* data;
    int32_t size;
};

template <typename T>
struct Lists {
    Span<T>* values;
    __device__ __forceinline__ Row<Values<T>> row(int64_t i) const {
        return Row<Values<T>>{Values<T>{values[i].data}, 0, values[i].size};
    }
};

// Maximum of values, and of bytes, that a node may give for a row; a row with more cannot be extracted.
constexpr int64_t MAX_ROW_VALUES = 65536, MAX_ROW_BYTES = 1 << 24;
