// Rows in a GPU's memory: slabs that never move, so that growing copies nothing. The first slabs double, from
// 2^SLAB_LOW rows; from 2^SLAB_HIGH on all have that size. A slab holds the floats of its rows, each at a multiple of
// 32 bytes (a sector), then their headers. kernels/device_table.py gives SLAB_LOW, SLAB_HIGH and ROW_PITCH.
#pragma once
#include "shim.cuh"

constexpr uint32_t FREE_ROW = 0xFFFFFFFFu;

struct DeviceHeader {
    int64_t key;
    uint32_t table;       // FREE_ROW: no key has this row
    uint32_t generation;  // of the last change; 0: none since it was fetched
    uint32_t used;        // the last step that asked for it
    uint32_t spare;
};

struct RowPlace {
    char* slab;
    uint32_t place, rows;
};

static __device__ __forceinline__ RowPlace row_place(char* const* slabs, uint32_t row) {
    if (row >> SLAB_HIGH) {
        constexpr uint32_t SIZE = 1u << SLAB_HIGH;
        return {slabs[SLAB_HIGH - SLAB_LOW + (row >> SLAB_HIGH)], row & (SIZE - 1), SIZE};
    }
    if ((row >> SLAB_LOW) == 0) return {slabs[0], row, 1u << SLAB_LOW};
    const int32_t top = highest_bit(row);
    return {slabs[top - SLAB_LOW + 1], row ^ (1u << top), 1u << top};
}

static __device__ __forceinline__ float* device_floats(char* const* slabs, uint32_t row) {
    const RowPlace at = row_place(slabs, row);
    return reinterpret_cast<float*>(at.slab + int64_t(at.place) * ROW_PITCH);
}

static __device__ __forceinline__ DeviceHeader* device_header(char* const* slabs, uint32_t row) {
    const RowPlace at = row_place(slabs, row);
    return reinterpret_cast<DeviceHeader*>(at.slab + int64_t(at.rows) * ROW_PITCH) + at.place;
}

// As many floats as one load or store moves, where rows of N floats allow it.
template <int N>
struct Lanes {
    static constexpr int WIDTH = N % 4 == 0 ? 4 : 1, COUNT = N / WIDTH;
    struct alignas(4 * WIDTH) Part {
        float values[WIDTH];
    };
    // Part i of a row of floats.
    static __device__ __forceinline__ Part& of(float* row, int64_t i) { return reinterpret_cast<Part*>(row)[i]; }
    static __device__ __forceinline__ const Part& of(const float* row, int64_t i) {
        return reinterpret_cast<const Part*>(row)[i];
    }
};
