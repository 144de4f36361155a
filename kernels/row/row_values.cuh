// Stored values of a row, the same on every target: n of `Value`, which is float, Half or BFloat (row/payload.cuh). The
// floats of the optimisers' state follow at the next multiple of 4 bytes. Elsewhere a row is float[STRIDE].
#pragma once
#include "row/payload.cuh"

template <typename Value>
static __host__ __device__ constexpr int64_t value_bytes(int64_t n) {
    return (static_cast<int64_t>(sizeof(Value)) * n + 3) / 4 * 4;
}

// Overloaded for values of 4 and of 2 bytes.

static __device__ __forceinline__ void read_values(int n, const float* values, float* row) {
    memcpy(row, values, sizeof(float) * n);
}
template <typename Value>
static __device__ __forceinline__ void read_values(int n, const Value* values, float* row) {
    for (int i = 0; i < n; ++i) row[i] = values[i].widen();
}

static __device__ __forceinline__ void write_values(int n, float* values, const float* row) {
    memcpy(values, row, sizeof(float) * n);
}
template <typename Value>
static __device__ __forceinline__ void write_values(int n, Value* values, const float* row) {
    for (int i = 0; i < n; ++i) values[i] = Value::nearest(row[i]);
}

// Writes the n values of 2 bytes of a row after an update, rounded by `stream`, the row's `initial_stream`, and its
// number of updates, which is counted.
template <typename Value>
static __device__ __forceinline__ void write_updated(int n, Value* values, const float* row, float& updates,
                                                     uint64_t stream) {
    const uint64_t chance = mix64(stream ^ (0x5EED0F2B17E5ull + static_cast<uint64_t>(updates)));
    updates = updates < 16777215.0f ? updates + 1.0f : 0.0f;
    constexpr int PART = 64;  // values whose random bits are made at once
    for (int begin = 0; begin < n; begin += PART) {
        const int size = n - begin < PART ? n - begin : PART;
        uint16_t random[PART];
        for (int i = 0; i < size; i += 4) {
            const uint64_t four = mix64(chance + (begin + i) * 0x9E3779B97F4A7C15ull);
            memcpy(random + i, &four, 8);
        }
        for (int i = 0; i < size; ++i) values[begin + i] = Value::random(row[begin + i], random[i]);
    }
}
