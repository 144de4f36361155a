// Access to stored rows, the same on every target. A stored row has its D values as Layout::Value, then, at the next
// multiple of 4 bytes, the floats of its state. Elsewhere a row is float[STRIDE].
#pragma once
#include "table/payload.cuh"

constexpr int64_t VALUE_BYTES = (sizeof(Layout::Value) * Layout::D + 3) / 4 * 4;
constexpr int64_t STATE_BYTES = 4 * (Layout::STRIDE - Layout::D);

// The following functions are overloaded for values of 4 and of 2 bytes.

// Values of a row: in place, or converted into `buffer[D]`.
static __device__ __forceinline__ const float* read_values(const float* values, float*) { return values; }
template <typename Value>
static __device__ __forceinline__ const float* read_values(const Value* values, float* buffer) {
    for (int i = 0; i < Layout::D; ++i) buffer[i] = values[i].widen();
    return buffer;
}

static __device__ __forceinline__ void write_values(float* values, const float* row) {
    memcpy(values, row, 4 * Layout::D);
}
template <typename Value>
static __device__ __forceinline__ void write_values(Value* values, const float* row) {
    for (int i = 0; i < Layout::D; ++i) values[i] = Value::nearest(row[i]);
}

// Writes some of a row's values, float[dim] from `at` on.
static __device__ __forceinline__ void write_some(float* values, int64_t at, int64_t dim, const float* some) {
    memcpy(values + at, some, 4 * dim);
}
template <typename Value>
static __device__ __forceinline__ void write_some(Value* values, int64_t at, int64_t dim, const float* some) {
    for (int64_t i = 0; i < dim; ++i) values[at + i] = Value::nearest(some[i]);
}

// Optimiser step of a row with the summed gradient float[D].
static __device__ __forceinline__ void update_values(float* row, char*, const float* gradient, uint64_t, const float* h) {
    Layout::update(row, gradient, h);
}
template <typename Value>
static __device__ __forceinline__ void update_values(Value* values, char* state, const float* gradient, uint64_t stream,
                                                     const float* h) {
    float floats[Layout::STRIDE];
    read_values(values, floats);
    memcpy(floats + Layout::D, state, STATE_BYTES);
    Layout::update(floats, gradient, h);
    float& updates = floats[Layout::STRIDE - 1];
    const uint64_t chance = mix64(stream ^ (0x5EED0F2B17E5ull + static_cast<uint64_t>(updates)));
    updates = updates < 16777215.0f ? updates + 1.0f : 0.0f;
    uint16_t random[(Layout::D + 3) / 4 * 4];
    for (int i = 0; i < Layout::D; i += 4) {
        const uint64_t four = mix64(chance + i * 0x9E3779B97F4A7C15ull);
        memcpy(random + i, &four, 8);
    }
    for (int i = 0; i < Layout::D; ++i) values[i] = Value::random(floats[i], random[i]);
    memcpy(state, floats + Layout::D, STATE_BYTES);
}
