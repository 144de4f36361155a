// A stored row: D values of one type (padded to 4 bytes), then the optimisers' state as float. In use a row is
// STRIDE floats; with 4-byte values the two are the same bytes, and nothing is copied.
//
// Values of 2 bytes are rounded when an update is written, up or down with the probabilities that make their mean the
// value itself: rounded to nearest, an update of less than half a unit in the last place would be lost for ever. The
// random bits are a function of table seed, key, place and the row's number of updates, which is the last float of its
// state: so they are the same on any number of ranks and after a restore, and differ when a value comes back (a
// function of the value's bits would round a repeated small update down again and again). Whatever is not an update
// (initial and assigned values) is rounded to nearest, ties to even: what was read is written back bit for bit.
#pragma once
#include "row/initial.cuh"

static __device__ __forceinline__ uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static __device__ __forceinline__ float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// bfloat16: the upper half of a float. Too large values become the largest finite one, as in Half.
struct BFloat {
    uint16_t bits;

    __device__ __forceinline__ float widen() const { return float_of(uint32_t{bits} << 16); }
    // `up`: 16 bits that decide; a value is rounded up if they and the bits cut off carry.
    static __device__ __forceinline__ BFloat of(float x, uint32_t up) {
        const uint32_t all = bits_of(x), size = all & 0x7FFFFFFF, sign = all >> 16 & 0x8000;
        const uint32_t cut = (size + up) >> 16;
        const uint32_t finite = cut < 0x7F7F ? cut : 0x7F7F;
        return {static_cast<uint16_t>(sign | (size > 0x7F800000 ? 0x7FC0 : finite))};
    }
    static __device__ __forceinline__ BFloat nearest(float x) { return of(x, 0x7FFF + (bits_of(x) >> 16 & 1)); }
    static __device__ __forceinline__ BFloat random(float x, uint32_t bits) { return of(x, bits); }
};

// IEEE binary16. No operation meets a subnormal float: flushing these to zero changes nothing here.
struct Half {
    uint16_t bits;
    static constexpr uint32_t LEAST_NORMAL = 113u << 23;  // 2^-14 as float bits
    static constexpr uint32_t REBIAS = 112u << 23;

    __device__ __forceinline__ float widen() const {
        const uint32_t size = uint32_t{bits} << 13 & 0x0FFFE000, sign = uint32_t{bits} << 16 & 0x80000000;
        const uint32_t normal = size + REBIAS + (size >= 0x0F800000 ? REBIAS : 0);
        const uint32_t small = bits_of(float_of(size + LEAST_NORMAL) - float_of(LEAST_NORMAL));
        return float_of(sign | (size < 0x00800000 ? small : normal));
    }
    // `up`: 13 bits that decide; small: the number of units of 2^-24 to which a subnormal size is rounded.
    static __device__ __forceinline__ Half of(float x, uint32_t up, uint32_t small) {
        const uint32_t all = bits_of(x), size = all & 0x7FFFFFFF, sign = all >> 16 & 0x8000;
        const uint32_t cut = (size + up - REBIAS) >> 13;
        const uint32_t finite = size >= 0x47800000 || cut > 0x7BFF ? 0x7BFF : cut;
        const uint32_t number = size < LEAST_NORMAL ? small : finite;
        return {static_cast<uint16_t>(sign | (size > 0x7F800000 ? 0x7E00 : number))};
    }
    static __device__ __forceinline__ Half nearest(float x) {
        // the unit in the last place of 0.5 is 2^-24
        const uint32_t small = bits_of(fabsf(x) + 0.5f) - bits_of(0.5f);
        return of(x, 0xFFF + (bits_of(x) >> 13 & 1), small);
    }
    static __device__ __forceinline__ Half random(float x, uint32_t bits) {
        const float size = fabsf(x) < 0x1p-14f ? fabsf(x) * 0x1p24f : 0.0f;
        const uint32_t whole = static_cast<uint32_t>(size);
        const bool more = size - static_cast<float>(whole) > static_cast<float>(bits) * 0x1p-16f;
        return of(x, bits & 0x1FFF, whole + more);
    }
};

// Rounds a row's initial values float[n] to values as they can be stored.
template <typename Value>
static __device__ __forceinline__ void round_initial(int n, float* row) {
    for (int i = 0; i < n; ++i) row[i] = Value::nearest(row[i]).widen();
}
