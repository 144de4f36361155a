// Age of a key's last event, out of its row of kernels/stream/ages.cpp.
#pragma once
#include "operators/features.cuh"

static __device__ __forceinline__ int64_t age_time(int64_t entry) { return entry >> 17; }
static __device__ __forceinline__ int64_t age_kind(int64_t entry) { return entry >> 1 & 1; }
// Grain in which the event was known.
static __device__ __forceinline__ int64_t age_known(int64_t entry, int64_t grain_ms) {
    return floor_divide(age_time(entry), grain_ms) + (entry >> 2 & 0x7fff);
}

// Seconds until ts from the last event of a kind that was known before the grain of ts; `never` where there is none or
// it is more than within_ms ago.
static __device__ __forceinline__ double last_age(Str row, int64_t ts, int64_t grain_ms, int64_t within_ms,
                                                  int32_t kind, double never) {
    const int64_t end = floor_divide(ts, grain_ms);
    int64_t last = INT64_MIN;
    for (int32_t at = 0; at + 8 <= row.size; at += 8) {
        uint64_t bits = 0;
        for (int32_t i = 0; i < 8; ++i) bits |= uint64_t(row.data[at + i]) << (8 * i);
        const int64_t entry = int64_t(bits);
        if (age_kind(entry) != kind || age_known(entry, grain_ms) >= end) continue;
        if (age_time(entry) > last) last = age_time(entry);
    }
    return last == INT64_MIN || subtract(ts, last) > within_ms ? never : double(subtract(ts, last)) / 1000.0;
}
