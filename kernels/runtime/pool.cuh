// The in-kernel memory pool (FeatureBox §5).
#pragma once
#include "runtime/shim.cuh"

constexpr int64_t POOL_ALIGNMENT = 128;  // bytes: a cache line of the GPU

static __device__ __forceinline__ int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// `head` counts the bytes that blocks asked for. It runs past `capacity` when the pool is too small: the block that
// gets nothing writes nothing, and the host reads from the head how large the pool must be when the layer is run again.
// Setting the head back frees everything at once.
struct Pool {
    uint8_t* base;
    int64_t capacity;
    unsigned long long* head;

    // Algorithm 1, line 2: one atomic add for a block. Null when the pool is too small.
    __device__ __forceinline__ uint8_t* take(int64_t bytes) const {
        const int64_t size = round_up(bytes, POOL_ALIGNMENT);
        const int64_t address = int64_t(atomicAdd(head, (unsigned long long)size));
        return address + size <= capacity ? base + address : nullptr;
    }
};
