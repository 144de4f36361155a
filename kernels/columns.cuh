// Columns of a batch in Arrow's memory layout, and where operators put results of variable length.
//
//   Fixed<T>   values[B]                                     at(i) -> T
//   Bits       bits[B] (Arrow's bool; roots only)            at(i) -> bool
//   Strings    offsets int32[B + 1], bytes                   at(i) -> Str
//   List<X>    offsets int32[B + 1], items X                 row(i) -> Row<X>
//
// `valid` is Arrow's bitmap (null: all valid), `shift` a slice's start. Null gives `fill`; a null list is empty.
#pragma once
#include "shim.cuh"

struct Str {
    const uint8_t* data;
    int32_t size;
};

static __device__ __forceinline__ bool bit_at(const uint8_t* bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

template <typename T>
struct Fixed {
    T* values;
    const uint8_t* valid;
    int64_t shift;
    T fill;
    __device__ __forceinline__ T at(int64_t i) const {
        i += shift;
        return valid == nullptr || bit_at(valid, i) ? values[i] : fill;
    }
};

template <typename T>
struct Constant {
    T value;
    __device__ __forceinline__ T at(int64_t) const { return value; }
};

struct Bits {
    const uint8_t* values;
    const uint8_t* valid;
    int64_t shift;
    bool fill;
    __device__ __forceinline__ bool at(int64_t i) const {
        i += shift;
        return valid == nullptr || bit_at(valid, i) ? bit_at(values, i) : fill;
    }
};

struct Strings {
    int32_t* offsets;
    uint8_t* bytes;
    const uint8_t* valid;
    int64_t shift;
    Str fill;
    __device__ __forceinline__ Str at(int64_t i) const {
        i += shift;
        if (valid != nullptr && !bit_at(valid, i)) return fill;
        return Str{bytes + offsets[i], offsets[i + 1] - offsets[i]};
    }
};

// The items of one row of a list.
template <typename Items>
struct Row {
    const Items& items;
    int32_t begin, end;
    __device__ __forceinline__ int32_t size() const { return end - begin; }
    __device__ __forceinline__ auto at(int32_t i) const { return items.at(int64_t(begin) + i); }
};

template <typename Items>
struct List {
    int32_t* offsets;
    const uint8_t* valid;
    int64_t shift;
    Items items;
    // Bytes of each row's strings, then where they begin: int32[B + 1]. Only in results of type list<string>.
    int32_t* row_bytes;
    __device__ __forceinline__ Row<Items> row(int64_t i) const {
        i += shift;
        if (valid != nullptr && !bit_at(valid, i)) return Row<Items>{items, 0, 0};
        return Row<Items>{items, offsets[i], offsets[i + 1]};
    }
};

// A sink takes the results of one row. An operator is written once against it and runs twice: to measure (Count…)
// and, when the sizes of all rows are summed up and memory is there, to write (Write…).

static __device__ __forceinline__ int32_t saturated(int64_t count) {
    return count > 0x7FFFFFFF ? 0x7FFFFFFF : int32_t(count);
}

struct CountItems {
    int64_t items = 0;
    template <typename T>
    __device__ __forceinline__ void push(T) { ++items; }
};

template <typename T>
struct WriteItems {
    T* out;
    __device__ __forceinline__ void push(T value) { *out++ = value; }
};

// Strings: append() and put() add bytes (put: one, or the eight of a little-endian word) to the current string,
// next() ends it (within lists only).
struct CountBytes {
    int64_t items = 0, bytes = 0;
    __device__ __forceinline__ void put(uint8_t) { ++bytes; }
    __device__ __forceinline__ void put(uint64_t) { bytes += 8; }
    __device__ __forceinline__ void append(Str s) { bytes += s.size; }
    __device__ __forceinline__ void next() { ++items; }
};

struct WriteBytes {
    uint8_t* bytes;
    int32_t at;
    int32_t* ends;
    __device__ __forceinline__ void put(uint8_t byte) { bytes[at++] = byte; }
    __device__ __forceinline__ void put(uint64_t eight) {
        memcpy(bytes + at, &eight, 8);
        at += 8;
    }
    __device__ __forceinline__ void append(Str s) {
        memcpy(bytes + at, s.data, size_t(s.size));
        at += s.size;
    }
    __device__ __forceinline__ void next() { *ends++ = at; }
};
