// A kernel over `Plan`: 256 threads a block, one argument, the plan's address. On the host it is a function that runs
// the blocks on the threads of the process, or, for tests, one after the other from the last to the first.
#pragma once
#include "runtime/threadblock.cuh"

#ifdef __CUDACC__
#define KERNEL(name) BOUNDED_KERNEL(name, )
// bounds: __launch_bounds__ of kernels whose threads may take more than 64 registers.
#define BOUNDED_KERNEL(name, bounds)                                                                             \
    static __device__ __forceinline__ void name##_block(const Plan& p, const ThreadBlock& block, int64_t index); \
    extern "C" __global__ void bounds name(const Plan* plan) {                                                   \
        __shared__ ThreadBlock::Shared shared;                                                                   \
        name##_block(*plan, ThreadBlock{shared, int64_t(blockIdx.x) * THREADS, 0, nullptr}, blockIdx.x);         \
    }                                                                                                            \
    static __device__ __forceinline__ void name##_block(const Plan& p, const ThreadBlock& block, int64_t index)
#else
#include "runtime/threads.hpp"

template <typename Body>
void run_blocks(int64_t blocks, Body body) {
    const auto run = [&](int64_t index) {
        ThreadBlock::Shared shared;
        body(ThreadBlock{shared, index * THREADS, 0, nullptr}, index);
    };
#ifdef LIVECTR_REVERSED
    for (int64_t index = blocks - 1; index >= 0; --index) run(index);
#else
    livectr::parallel_for(blocks, run);
#endif
}

#define BOUNDED_KERNEL(name, bounds) KERNEL(name)
#define KERNEL(name)                                                                                             \
    static void name##_block(const Plan& p, const ThreadBlock& block, int64_t index);                            \
    extern "C" void name(const Plan* plan, int64_t blocks) {                                                     \
        run_blocks(blocks, [&](const ThreadBlock& block, int64_t index) { name##_block(*plan, block, index); }); \
    }                                                                                                            \
    static void name##_block(const Plan& p, const ThreadBlock& block, int64_t index)
#endif

// Calls part(i) for the block's items of [0, n).
template <typename F>
static __device__ __forceinline__ void each(const ThreadBlock& block, int64_t n, F part) {
    block.threads([&](int32_t thread) {
        if (block.first + thread < n) part(block.first + thread);
    });
}

// counts[index] = number of the block's items of [0, n) that are chosen.
template <typename F>
static __device__ __forceinline__ void count_chosen(const ThreadBlock& block, int64_t index, int64_t n, int64_t* counts,
                                                    F chosen) {
    const int64_t* const ends = block.prefix_sums(
        [&](int32_t thread) { return int64_t(block.first + thread < n && chosen(block.first + thread)); });
    block.threads([&](int32_t thread) {
        if (thread == 0) counts[index] = ends[THREADS - 1];
    });
}

// Stream compaction: calls emit(i, rank) for every chosen item, after `exclusive_sums` of the counts: ranks follow the order of the items.
template <typename Chosen, typename Emit>
static __device__ __forceinline__ void each_chosen(const ThreadBlock& block, int64_t index, int64_t n,
                                                   const int64_t* counts, Chosen chosen, Emit emit) {
    const int64_t* const ends = block.prefix_sums(
        [&](int32_t thread) { return int64_t(block.first + thread < n && chosen(block.first + thread)); });
    block.threads([&](int32_t thread) {
        const int64_t before = thread > 0 ? ends[thread - 1] : 0;
        if (ends[thread] != before) emit(block.first + thread, counts[index] + before);
    });
}

// Prefix sum in one block: counts[0 ... blocks - 1] → their exclusive sums; counts[blocks] = the total.
static __device__ __forceinline__ void exclusive_sums(const ThreadBlock& block, int64_t* counts, int64_t blocks) {
    const int64_t part = (blocks + THREADS - 1) / THREADS;
    const int64_t* const ends = block.prefix_sums([&](int32_t thread) {
        int64_t sum = 0;
        for (int64_t i = thread * part; i < (thread + 1) * part && i < blocks; ++i) sum += counts[i];
        return sum;
    });
    block.threads([&](int32_t thread) {
        int64_t sum = thread > 0 ? ends[thread - 1] : 0;
        for (int64_t i = thread * part; i < (thread + 1) * part && i < blocks; ++i) {
            const int64_t count = counts[i];
            counts[i] = sum;
            sum += count;
        }
        if (thread == THREADS - 1) counts[blocks] = sum;
    });
}
