// Hashes and counter-based random numbers: pure functions, equal bits on every target.
#pragma once
#include "runtime/shim.cuh"

// A bijection of 64-bit integers that avalanches: distinct keys stay distinct.
// Finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
// with the constants of David Stafford's "Mix13".
static __device__ __forceinline__ uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// Order-dependent combination of two hashes, for crosses of fields.
static __device__ __forceinline__ uint64_t hash_combine(uint64_t a, uint64_t b) {
    return mix64(a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull);
}

// A uniform float in [-1, 1], the i-th of the stream `base`: no state, so no order of calls matters.
// One mix serves two numbers.
static __device__ __forceinline__ float uniform_at(uint64_t base, uint32_t i) {
    const uint64_t bits = mix64(base + (i >> 1) * 0x9E3779B97F4A7C15ull);
    return static_cast<float>(static_cast<int32_t>(bits >> (32 * (i & 1)))) * 0x1p-31f;
}

namespace xxh64 {

constexpr uint64_t P1 = 0x9E3779B185EBCA87ull, P2 = 0xC2B2AE3D27D4EB4Full, P3 = 0x165667B19E3779F9ull,
                   P4 = 0x85EBCA77C2B2AE63ull, P5 = 0x27D4EB2F165667C5ull;

static __device__ __forceinline__ uint64_t rotl(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }

static __device__ __forceinline__ uint64_t round(uint64_t acc, uint64_t lane) { return rotl(acc + lane * P2, 31) * P1; }

static __device__ __forceinline__ uint64_t merge(uint64_t hash, uint64_t acc) {
    return (hash ^ round(0, acc)) * P1 + P4;
}

}  // namespace xxh64

// XXH64 (Yann Collet, xxHash specification 0.1.1) of `size` bytes.
static __device__ OUT_OF_LINE uint64_t hash_bytes(const uint8_t* p, int64_t size, uint64_t seed = 0) {
    using namespace xxh64;
    const uint8_t* const end = p + size;
    uint64_t hash;
    if (size >= 32) {
        uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
        ROLLED for (; end - p >= 32; p += 32) {
            a = round(a, read_bytes<uint64_t>(p));
            b = round(b, read_bytes<uint64_t>(p + 8));
            c = round(c, read_bytes<uint64_t>(p + 16));
            d = round(d, read_bytes<uint64_t>(p + 24));
        }
        hash = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    } else {
        hash = seed + P5;
    }
    hash += static_cast<uint64_t>(size);
    ROLLED for (; end - p >= 8; p += 8) hash = rotl(hash ^ xxh64::round(0, read_bytes<uint64_t>(p)), 27) * P1 + P4;
    // Words are of all lengths: what is left, 0 to 7 bytes, is mixed without a branch that could be mispredicted.
    const int64_t left = end - p;
    if (left > 0) {
        const uint64_t four = left >= 4 ? read_bytes<uint32_t>(p) : 0;
        hash = left >= 4 ? rotl(hash ^ (four * P1), 23) * P2 + P3 : hash;
        p += left & 4;
        for (int64_t i = 0; i < 3; ++i) {
            const bool more = i < (left & 3);
            const uint64_t byte = end[more ? i - (left & 3) : -1];
            hash = more ? rotl(hash ^ (byte * P5), 11) * P1 : hash;
        }
    }
    hash = (hash ^ (hash >> 33)) * P2;
    hash = (hash ^ (hash >> 29)) * P3;
    return hash ^ (hash >> 32);
}
