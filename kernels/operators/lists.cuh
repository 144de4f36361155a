// Device functions of the operators on lists. Pure functions of one row's items, without memory of their own.
#pragma once
#include "operators/features.cuh"
#include "operators/strings.cuh"

namespace lists {

// Equality as `==` has it: NaN equals nothing. Strings by their bytes, eight at once.
template <typename T>
static __device__ __forceinline__ bool same(T a, T b) {
    return a == b;
}
static __device__ __forceinline__ bool same(Str a, Str b) {
    if (a.size != b.size) return false;
    int32_t i = 0;
    ROLLED for (; i + 8 <= a.size; i += 8) {
        if (eight_bytes(a.data + i) != eight_bytes(b.data + i)) return false;
    }
    ROLLED for (; i < a.size; ++i) {
        if (a.data[i] != b.data[i]) return false;
    }
    return true;
}

template <typename Sink, typename T>
static __device__ __forceinline__ void put_item(Sink& sink, T value) {
    sink.push(value);
}
template <typename Sink>
static __device__ __forceinline__ void put_item(Sink& sink, Str value) {
    sink.append(value);
    sink.next();
}

template <typename Items, typename Sink>
static __device__ __forceinline__ void head(const Row<Items>& row, int32_t n, Sink& sink) {
    ROLLED for (int32_t i = 0; i < row.size() && i < n; ++i) put_item(sink, row.at(i));
}

template <typename Items, typename Sink>
static __device__ __forceinline__ void tail(const Row<Items>& row, int32_t n, Sink& sink) {
    ROLLED for (int32_t i = row.size() > n ? row.size() - n : 0; i < row.size(); ++i) put_item(sink, row.at(i));
}

// Negative indices count from the end.
template <typename Items>
static __device__ __forceinline__ auto item(const Row<Items>& row, int64_t index) {
    if (index < 0) index += row.size();
    return index >= 0 && index < row.size() ? row.at(int32_t(index)) : decltype(row.at(0)){};
}

template <typename T, typename Items>
static __device__ __forceinline__ T total(const Row<Items>& row) {
    T sum = 0;
    ROLLED for (int32_t i = 0; i < row.size(); ++i) sum = add(sum, T(row.at(i)));
    return sum;
}

template <typename Items>
static __device__ __forceinline__ double mean(const Row<Items>& row) {
    return row.size() == 0 ? 0.0 : total<double>(row) / row.size();
}

// NaN is skipped; the first of equal items stays.
template <bool LARGEST, typename Items>
static __device__ __forceinline__ auto extreme(const Row<Items>& row) {
    decltype(row.at(0)) best{};
    bool found = false;
    ROLLED for (int32_t i = 0; i < row.size(); ++i) {
        const auto x = row.at(i);
        if (x == x && (!found || (LARGEST ? x > best : x < best))) {
            best = x;
            found = true;
        }
    }
    return best;
}

// T is the type in which item and value are compared.
template <typename T, typename Items>
static __device__ __forceinline__ int32_t count(const Row<Items>& row, T value) {
    int32_t found = 0;
    ROLLED for (int32_t i = 0; i < row.size(); ++i) found += same(T(row.at(i)), value);
    return found;
}

template <typename T, typename Items>
static __device__ __forceinline__ bool contains(const Row<Items>& row, T value) {
    ROLLED for (int32_t i = 0; i < row.size(); ++i) {
        if (same(T(row.at(i)), value)) return true;
    }
    return false;
}

// Identity of a number: all NaN are equal, and so are 0.0 and -0.0.
static __device__ __forceinline__ uint64_t identity(int64_t x) { return uint64_t(x); }
static __device__ __forceinline__ uint64_t identity(int32_t x) { return uint64_t(int64_t(x)); }
static __device__ __forceinline__ uint64_t identity(bool x) { return x; }
static __device__ __forceinline__ uint64_t identity(double x) {
    if (x == 0) return 0;
    if (x != x) return 0x7FF8000000000000ull;
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}
static __device__ __forceinline__ uint64_t identity(float x) { return identity(double(x)); }

template <typename T>
static __device__ __forceinline__ uint64_t hash_of(T x) {
    return mix64(identity(x));
}
static __device__ __forceinline__ uint64_t hash_of(Str x) { return hash_bytes(x.data, x.size); }

template <typename T>
static __device__ __forceinline__ bool identical(T a, T b) {
    return identity(a) == identity(b);
}
static __device__ __forceinline__ bool identical(Str a, Str b) { return same(a, b); }

// True if one of the first `n` items is x. In blocks without branches, for the host's vector instructions.
template <typename Items, typename T>
static __device__ __forceinline__ bool occurs(const Row<Items>& row, int32_t n, T x) {
    int32_t i = 0;
    ROLLED for (; i + 8 <= n; i += 8) {
        bool found = false;
        for (int32_t k = 0; k < 8; ++k) found |= identical(row.at(i + k), x);
        if (found) return true;
    }
    ROLLED for (; i < n; ++i) {
        if (identical(row.at(i), x)) return true;
    }
    return false;
}

// First occurrences, in order. A thread has no heap, so seen items are a Bloom filter of one hash function: 8 bits
// per item and at most 4,096. A new bit is a new item; where the bit is set, the items before it are searched. That is
// O(n) up to some hundred items; a list of n different ones far above 4,096 costs the n² / 2 comparisons of a plain
// search (65,536 items: 2·10⁹).
template <typename Items, typename Sink>
static __device__ inline void unique(const Row<Items>& row, Sink& sink) {
    constexpr int32_t MOST_WORDS = 64;
    uint64_t seen[MOST_WORDS];
    int32_t words = 1;
    while (words < MOST_WORDS && words * 8 < row.size()) words *= 2;
    ROLLED for (int32_t i = 0; i < words; ++i) seen[i] = 0;
    ROLLED for (int32_t i = 0; i < row.size(); ++i) {
        const auto x = row.at(i);
        const uint64_t hash = hash_of(x);
        uint64_t& word = seen[(hash >> 6) & uint64_t(words - 1)];
        const uint64_t bit = 1ull << (hash & 63);
        if ((word & bit) != 0 && occurs(row, i, x)) continue;
        word |= bit;
        put_item(sink, x);
    }
}

}  // namespace lists
