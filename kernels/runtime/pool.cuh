// In-kernel memory pool: a bump allocator (FeatureBox §5).
#pragma once
#include "runtime/shim.cuh"

constexpr int64_t POOL_ALIGNMENT = 128;  // bytes: a cache line of the GPU

static __device__ __forceinline__ int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// `head` counts the requested bytes, also beyond `capacity`: a block without memory writes nothing, and the host reads
// from `head` how large the pool must be, and runs the layer again. Resetting `head` frees everything at once.
struct Pool {
    uint8_t* base;
    int64_t capacity;
    unsigned long long* head;

    // Algorithm 1, line 2: one atomic add for a block. Null when the pool is too small.
    __device__ __forceinline__ uint8_t* allocate(int64_t bytes) const {
        const int64_t size = round_up(bytes, POOL_ALIGNMENT);
        const int64_t address = int64_t(atomicAdd(head, (unsigned long long)size));
        return address + size <= capacity ? base + address : nullptr;
    }
};
