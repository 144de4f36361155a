// Initial values of a row: a function of seed, table name, key and place in the row, so that trainer and
// server, and any number of ranks, agree on a row that is not stored.
#pragma once
#include "runtime/hash.cuh"
#include "row/vector_loop.cuh"

// `table_seed` mixes seed and table name.
static __device__ __forceinline__ uint64_t initial_stream(uint64_t table_seed, int64_t key) {
    return mix64(mix64(static_cast<uint64_t>(key)) ^ table_seed);
}

// Values of a segment: uniform in [-h[0], h[0]]. `place` is the place of the first value in a whole row; a row may lack
// segments before it.
static __device__ __forceinline__ void initial_values(int n, float* values, int place, uint64_t stream,
                                                      const float* h) {
    const float scale = h[0];
    VECTOR_LOOP
    for (int i = 0; i < n; ++i) values[i] = scale == 0.0f ? 0.0f : scale * uniform_at(stream, place + i);
}
