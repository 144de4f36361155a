// Counts of a window, out of a key's row of kernels/stream/counters.cpp.
#pragma once
#include "operators/features.cuh"

static __device__ __forceinline__ uint32_t varint_at(Str row, int32_t& at) {
    uint32_t n = 0;
    for (uint32_t shift = 0; at < row.size && shift < 32; shift += 7) {
        const uint8_t byte = row.data[at++];
        n |= uint32_t(byte & 127) << shift;
        if (byte < 128) break;
    }
    return n;
}

// Impressions, or clicks, of [ts - window_ms, ts), whose begin is rounded down to `span` grains and whose end to one.
// ring: of the window; 0 has grains alone.
static __device__ __forceinline__ int64_t window_count(Str row, int64_t ts, int64_t grain_ms, int32_t ring,
                                                       int64_t span, int64_t window_ms, bool clicks) {
    if (row.size < 8) return 0;
    uint64_t newest = 0;
    for (int32_t i = 0; i < 8; ++i) newest |= uint64_t(row.data[i]) << (8 * i);
    const int64_t head = int64_t(newest), end = floor_divide(ts, grain_ms);
    const int64_t first = floor_divide(floor_divide(subtract(ts, window_ms), grain_ms), span);
    int64_t total = 0;
    for (int32_t at = 8; at + 1 < row.size;) {
        const int32_t of = row.data[at++];
        const int64_t age = row.data[at++];
        const uint32_t shown = varint_at(row, at), clicked = varint_at(row, at);
        const int64_t grain = of == 0 ? head - age : (floor_divide(head, span) - age) * span;
        const bool seen = (of == 0 || of == ring) && floor_divide(grain, span) >= first && grain < end;
        total += seen ? (clicks ? clicked : shown) : 0;
    }
    return total;
}
