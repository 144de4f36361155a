// Sinks: destinations of an operator's results of variable length, one sink per row.
//
//   push(value)                       an item of a list; fill(n, item): item(0) ... item(n - 1)
//   view(Str)                         a whole string of a list, a piece of an input
//   append(Str), put(byte)            more of the current string; next() ends it (in lists of strings)
//   write(n, bytes)                   n bytes more, which bytes(uint8_t*) writes
//   done()                            true once a list is too long for a row, so that a product of lists may stop
//
// A string that is a single piece of an input stays a view of it; only concatenated strings take memory.
// So appended strings must be part of an input, a resource or a constant. An operator is written once against a
// template parameter and must be a pure function: on a GPU it runs twice, to measure (Count…) and, when the block
// has its memory, to write (Write…).
#pragma once
#include "runtime/columns.cuh"

static __device__ OUT_OF_LINE void copy_bytes(uint8_t* to, Str s) {
#ifdef __CUDACC__
    ROLLED for (int32_t i = 0; i < s.size; ++i) to[i] = s.data[i];
#else
    memcpy(to, s.data, size_t(s.size));
#endif
}

struct CountItems {
    int64_t items = 0;
    __device__ __forceinline__ bool done() const { return items > MAX_ROW_VALUES; }
    template <typename T>
    __device__ __forceinline__ void push(T) {
        ++items;
    }
    template <typename Item>
    __device__ __forceinline__ void fill(int32_t n, Item) {
        items += n;
    }
};

template <typename T>
struct WriteItems {
    T* at;
    __device__ __forceinline__ bool done() const { return false; }
    __device__ __forceinline__ void push(T value) { *at++ = value; }
    template <typename Item>
    __device__ __forceinline__ void fill(int32_t n, Item item) {
        ROLLED for (int32_t i = 0; i < n; ++i) push(item(i));
    }
};

struct CountStrings {
    int64_t items = 0, bytes = 0, open = 0;
    int32_t pieces = 0;
    __device__ __forceinline__ void append(Str s) {
        open += s.size;
        pieces += s.size > 0;
    }
    __device__ __forceinline__ void put(uint8_t) {
        ++open;
        pieces = 2;
    }
    template <typename Bytes>
    __device__ __forceinline__ void write(int32_t n, Bytes) {
        open += n;
        pieces = 2;
    }
    __device__ __forceinline__ void next() {
        bytes += pieces > 1 ? open : 0;
        open = pieces = 0;
        ++items;
    }
    __device__ __forceinline__ void view(Str) { ++items; }
    __device__ __forceinline__ void push(Str s) { view(s); }
};

struct WriteStrings {
    Str* items;
    uint8_t* at;
    uint8_t* begin;
    Str first;  // the first piece, until there is a second
    __device__ __forceinline__ void copy(Str s) {
        copy_bytes(at, s);
        at += s.size;
    }
    __device__ __forceinline__ void flush() {
        if (first.size > 0) copy(first);
        first.size = 0;
    }
    __device__ __forceinline__ void append(Str s) {
        if (s.size == 0) return;
        if (at == begin && first.size == 0) {
            first = s;
            return;
        }
        flush();
        copy(s);
    }
    __device__ __forceinline__ void put(uint8_t byte) {
        flush();
        *at++ = byte;
    }
    template <typename Bytes>
    __device__ __forceinline__ void write(int32_t n, Bytes bytes) {
        flush();
        bytes(at);
        at += n;
    }
    __device__ __forceinline__ void next() {
        *items++ = at == begin ? first : Str{begin, int32_t(at - begin)};
        begin = at;
        first.size = 0;
    }
    __device__ __forceinline__ void view(Str s) { *items++ = s; }
    __device__ __forceinline__ void push(Str s) { view(s); }
};
