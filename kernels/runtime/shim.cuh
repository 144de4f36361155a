// CUDA's keywords on both targets. Every .cuh includes this first and is then plain C++17 for the host
// compiler and CUDA C++ for NVRTC. Host-only parts of a file stand inside `#ifdef LIVECTR_HOST`.
#pragma once

#ifdef __CUDACC__

// A long function that many functions call: inlined into each, NVRTC takes up to a second for every call.
#define OUT_OF_LINE __noinline__
// The same for a function that the host inlines everywhere, since it is short or works on many values at once.
#define GPU_CALL __noinline__
// A loop over a row's items or bytes, not unrolled: rows of a warp differ in length, and code that is four times as long
// takes NVRTC four times as long.
#define ROLLED _Pragma("unroll 1")

// NVRTC has no standard headers.
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL

static __device__ __forceinline__ void prefetch(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Reads a value that other threads change with atomics.
template <typename T>
static __device__ __forceinline__ T peek(const T* address) {
    return *static_cast<const volatile T*>(address);
}

// Sets a flag that other threads may set too.
static __device__ __forceinline__ void put_flag(uint8_t* flag) { *static_cast<volatile uint8_t*>(flag) = 1; }

static __device__ __forceinline__ int32_t lowest_bit(uint64_t bits) { return __ffsll(bits) - 1; }
static __device__ __forceinline__ int32_t highest_bit(uint32_t bits) { return 31 - __clz(bits); }

#else

#define LIVECTR_HOST 1
#define OUT_OF_LINE inline
#define GPU_CALL __forceinline__
#define ROLLED

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
// A function that reads outside of an object on purpose, yet never outside of a page that the object is on: no read that
// can fail, and its bytes count for nothing. AddressSanitizer would stop there, and
// ThreadSanitizer where another thread writes those bytes.
#define READS_AROUND __attribute__((no_sanitize("address"), no_sanitize("thread")))

static inline void prefetch(const void* address) { __builtin_prefetch(address); }

template <typename T>
static inline T atomicAdd(T* address, T value) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

template <typename T>
static inline T peek(const T* address) {
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <typename T>
static inline T atomicCAS(T* address, T expected, T value) {
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

template <typename T>
static inline T atomicMin(T* address, T value) {
    T seen = peek(address);
    while (value < seen &&
           !__atomic_compare_exchange_n(address, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

static inline void put_flag(uint8_t* flag) { __atomic_store_n(flag, uint8_t(1), __ATOMIC_RELAXED); }

static inline int32_t lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }
static inline int32_t highest_bit(uint32_t bits) { return 31 - __builtin_clz(bits); }

#endif

// Number of 4 or 8 bytes at any address, by loads of aligned words that hold at least one of its bytes.
template <typename T>
static __device__ __forceinline__ T read_aligned(const uint8_t* p) {
    const uint64_t address = reinterpret_cast<uint64_t>(p), shift = address % 8 * 8;
    const uint64_t* const words = reinterpret_cast<const uint64_t*>(address - address % 8);
    uint64_t word = words[0] >> shift;
    if (shift + 8 * sizeof(T) > 64) word |= words[1] << (64 - shift);
    return T(word);
}

// Number of 4 or 8 bytes at any address: a string may start anywhere. A GPU has no loads of unaligned words; a compiler
// would load byte by byte.
template <typename T>
static __device__ __forceinline__ T read_bytes(const uint8_t* p) {
#ifdef __CUDACC__
    return read_aligned<T>(p);
#else
    T value;
    memcpy(&value, p, sizeof(T));
    return value;
#endif
}
