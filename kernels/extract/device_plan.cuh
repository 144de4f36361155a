// Feature plan on a device: tables of nodes and columns. Kernels depend on the functions that a plan uses; which node
// reads which column is data.
#pragma once
#include "runtime/kernel.cuh"

// A function of nodes. Not inlined: compilers take a second for a kernel's every function that is, and no time is lost
// where a block of 256 rows calls it once.
#ifdef __CUDACC__
#define NODE_FUNCTION static __device__ __noinline__ void
#else
#define NODE_FUNCTION static __attribute__((noinline)) void
#endif

struct Outputs {
    int64_t* counts;  // int64[F · blocks + 1]: keys by field and block, then where they begin; the last is their number
    unsigned long long* totals;  // uint64[F]: keys by field
    int32_t* offsets;            // int32[F·B + 1]
    int64_t* keys;               // int64[capacity]
    int64_t capacity;
    float* dense;       // float32[B, width]
    int64_t* observed;  // int64[S, B]
    unsigned long long* replaced;
    int64_t fields, width;  // F; dense numbers of a row
};

struct Plan {
    int64_t rows, blocks;  // B; blocks of THREADS rows
    uint8_t* failed;       // uint8[B]: rows that cannot be extracted
    uint8_t* slots;        // columns of results: blocks · THREADS rows each
    const Pool* pools;
    const int64_t* roots;  // structs of the batch's columns
    const void* const* states;
    const int64_t* kernels;      // first node of each kernel
    const int64_t* nodes;        // word at which each node begins, kernel by kernel
    const int64_t* words;        // of nodes: function, output, pool, then inputs, arguments, resource, state
    const struct Field* fields;  // sparse fields, dense features, statistics
    Outputs outputs;
};
static_assert(sizeof(Plan) == 21 * 8 && sizeof(Pool) == 3 * 8, "as in ingest/extract/device_batch.py");

// Column of results that begins `slot` bytes a row into the slots.
static __device__ __forceinline__ uint8_t* slot_at(const Plan& p, int64_t slot) {
    return p.slots + slot * p.blocks * THREADS;
}

// Words of a node; `place` is the number of a word. A function knows the types.
struct Node {
    const Plan& p;
    const int64_t* words;

    template <typename Column>
    __device__ __forceinline__ Column result(int32_t place) const {
        return Column{reinterpret_cast<decltype(Column::values)>(slot_at(p, words[place]))};
    }
    template <typename Column>
    __device__ __forceinline__ Column root(int32_t place) const {
        return *reinterpret_cast<const Column*>(p.roots + words[place]);
    }
    template <typename T>
    __device__ __forceinline__ T value(int32_t place) const {
        T value;
        memcpy(&value, words + place, sizeof value);
        return value;
    }
    template <typename T>
    __device__ __forceinline__ const T* state(int32_t place) const {
        return static_cast<const T*>(p.states[words[place]]);
    }
    __device__ __forceinline__ const Pool& pool() const { return p.pools[words[2]]; }
};

// Node of a kernel's thread block: all blocks of rows of one node, then of the next.
static __device__ __forceinline__ Node node_at(const Plan& p, int32_t kernel, int64_t index) {
    return Node{p, p.words + p.nodes[p.kernels[kernel] + index / p.blocks]};
}

// Thread block over the rows of a plan.
static __device__ __forceinline__ ThreadBlock rows_at(const Plan& p, const ThreadBlock& block, int64_t index) {
    return ThreadBlock{block.shared, index % p.blocks * THREADS, p.rows, p.failed};
}
