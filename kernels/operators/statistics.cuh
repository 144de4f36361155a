// Device functions of the operators with running statistics; `state` is laid out as the statistic's class in
// ingest/operators/statistics.py says.
#pragma once
#include "operators/features.cuh"

// state: number of values, mean, sum of squared differences from the mean
static __device__ __forceinline__ float zscore_of(double x, const double* state) {
    const double variance = state[0] > 0 ? state[2] / state[0] : 0.0;
    return variance > 0 ? float((x - state[1]) / sqrt(variance)) : 0.0f;
}

// state: least, greatest; +inf and -inf before the first value. NaN stays NaN.
static __device__ __forceinline__ float minmax_of(double x, const double* state) {
    const double span = state[1] - state[0];
    return span > 0 ? float(at_most(at_least((x - state[0]) / span, 0.0), 1.0)) : 0.0f;
}

// state: number of bounds (0 while they are not known), then the bounds, not decreasing
static __device__ __forceinline__ int32_t quantile_bin(double x, const double* state) {
    return bucketize<double>(x, state + 1, int32_t(state[0]));
}

// counts: int64[depth][width], width a power of two
static __device__ __forceinline__ int64_t sketch_count(int64_t key, const int64_t* counts, int32_t depth,
                                                       int32_t width) {
    int64_t least = INT64_MAX;
    ROLLED for (int32_t row = 0; row < depth; ++row) {
        const uint64_t column = hash_combine(uint64_t(row), uint64_t(key)) & uint64_t(width - 1);
        least = at_most(counts[int64_t(row) * width + int64_t(column)], least);
    }
    return least;
}
