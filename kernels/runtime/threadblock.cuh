// Thread block with a row per thread: it runs a layer on a GPU, and the same code on the host in tests.
//
// Block-wide steps are written as phases. On a GPU each thread runs its part of a phase and a barrier follows; on the
// host a loop runs the parts of all threads, so that the barrier is the end of the loop.
#pragma once
#include "runtime/pool.cuh"
#include "runtime/sinks.cuh"

constexpr int32_t THREADS = 256;

struct ThreadBlock {
    struct Shared {
        int64_t sums[2][THREADS];
        uint8_t* memory;
    };
    Shared& shared;
    int64_t first, rows;  // the block's first row; rows of the batch
    uint8_t* failed;      // uint8[rows]: rows that cannot be extracted

    template <typename F>
    static __device__ __forceinline__ void threads(F part) {
#ifdef __CUDACC__
        part(int32_t(threadIdx.x));
        __syncthreads();
#elif defined(LIVECTR_REVERSED)  // tests: no result may depend on the order of threads
        for (int32_t thread = THREADS - 1; thread >= 0; --thread) part(thread);
#else
        for (int32_t thread = 0; thread < THREADS; ++thread) part(thread);
#endif
    }

    template <typename T, typename F>
    __device__ __forceinline__ void values(const Values<T>& out, F value) const {
#ifdef __CUDACC__
        const int64_t row = first + threadIdx.x;
        if (row < rows) out.values[row] = value(row);
#else
        for (int64_t row = first; row < first + THREADS && row < rows; ++row) out.values[row] = value(row);
#endif
    }

    // Inclusive prefix sums of size(thread) (Algorithm 1, line 1): Hillis and Steele, log2(THREADS) phases.
    template <typename F>
    __device__ __forceinline__ const int64_t* prefix_sums(F size) const {
        threads([&](int32_t thread) { shared.sums[0][thread] = size(thread); });
        return scan(shared.sums);
    }
    static __device__ OUT_OF_LINE const int64_t* scan(int64_t (*sums)[THREADS]) {
        int from = 0;
        ROLLED for (int32_t step = 1; step < THREADS; step *= 2, from = 1 - from) {
            threads([&](int32_t thread) {
                const int64_t before = thread >= step ? sums[from][thread - step] : 0;
                sums[1 - from][thread] = sums[from][thread] + before;
            });
        }
        return sums[from];
    }

    // Algorithm 1, lines 2 and 3: memory for the sizes in shared.sums[0]. Returns where each thread's ends, behind
    // shared.memory.
    static __device__ OUT_OF_LINE const int64_t* reserve(Shared& shared, const Pool& pool) {
        const int64_t* const ends = scan(shared.sums);
        threads([&](int32_t thread) {
            if (thread == 0) shared.memory = pool.allocate(ends[THREADS - 1]);
        });
        return ends;
    }

    // Allocates memory for each row: measure(row) → bytes; write(row, address), null where the pool is too small.
    // Rows begin at multiples of 8 bytes, blocks at multiples of 128.
    template <typename Measure, typename Write>
    __device__ __forceinline__ void allocate(const Pool& pool, Measure measure, Write write) const {
        threads([&](int32_t thread) {
            shared.sums[0][thread] = first + thread < rows ? round_up(measure(first + thread), 8) : 0;
        });
        const int64_t* const ends = reserve(shared, pool);
        threads([&](int32_t thread) {
            if (first + thread >= rows) return;
            const int64_t offset = thread > 0 ? ends[thread - 1] : 0;
            write(first + thread, shared.memory == nullptr ? nullptr : shared.memory + offset);
        });
    }

    // A row that is too long for one node fails, and is empty there: other nodes, which may run at the same time, see
    // its values.
    __device__ __forceinline__ bool admits(int64_t row, int64_t items, int64_t bytes) const {
        const bool fits = items <= MAX_ROW_VALUES && bytes <= MAX_ROW_BYTES;
        if (!fits) put_flag(failed + row);
        return fits;
    }

    // Lists of the sizes of row_of(row), with item(row, items, i) in place of each item.
    template <typename T, typename R, typename F>
    __device__ __forceinline__ void map(const Lists<T>& out, const Pool& pool, R row_of, F item) const {
        allocate(
            pool,
            [&](int64_t row) {
                const int32_t size = row_of(row).size();
                out.values[row].size = admits(row, size, 0) ? size : 0;
                return int64_t(out.values[row].size) * int64_t(sizeof(T));
            },
            [&](int64_t row, uint8_t* memory) {
                T* const to = reinterpret_cast<T*>(memory);
                out.values[row].data = to;
                if (memory == nullptr) out.values[row].size = 0;
                const auto items = row_of(row);
                const int32_t size = out.values[row].size;
                ROLLED for (int32_t i = 0; i < size; ++i) to[i] = item(row, items, i);
            });
    }

    template <typename T, typename F>
    __device__ __forceinline__ void lists(const Lists<T>& out, const Pool& pool, F operate) const {
        allocate(
            pool,
            [&](int64_t row) {
                CountItems sink;
                operate(row, sink);
                out.values[row].size = admits(row, sink.items, 0) ? int32_t(sink.items) : 0;
                return int64_t(out.values[row].size) * int64_t(sizeof(T));
            },
            [&](int64_t row, uint8_t* memory) {
                out.values[row].data = reinterpret_cast<T*>(memory);
                if (memory == nullptr) out.values[row].size = 0;
                if (out.values[row].size == 0) return;
                WriteItems<T> sink{out.values[row].data};
                operate(row, sink);
            });
    }

    template <typename F>
    __device__ __forceinline__ void strings(const Values<Str>& out, const Pool& pool, F operate) const {
        allocate(
            pool,
            [&](int64_t row) {
                CountStrings sink;
                operate(row, sink);
                sink.next();
                const bool fits = admits(row, 1, sink.bytes);
                out.values[row] = Str{nullptr, fits ? 1 : 0};
                return fits ? sink.bytes : 0;
            },
            [&](int64_t row, uint8_t* memory) {
                const bool fits = out.values[row].size > 0;
                out.values[row] = Str{nullptr, 0};
                if (memory == nullptr || !fits) return;
                WriteStrings sink{out.values + row, memory, memory, Str{nullptr, 0}};
                operate(row, sink);
                sink.next();
            });
    }

    template <typename F>
    __device__ __forceinline__ void string_lists(const Lists<Str>& out, const Pool& pool, F operate) const {
        allocate(
            pool,
            [&](int64_t row) {
                CountStrings sink;
                operate(row, sink);
                const bool fits = admits(row, sink.items, sink.bytes);
                out.values[row].size = fits ? int32_t(sink.items) : 0;
                return fits ? sink.items * int64_t(sizeof(Str)) + sink.bytes : 0;
            },
            [&](int64_t row, uint8_t* memory) {
                const int32_t items = memory == nullptr ? 0 : out.values[row].size;
                out.values[row] = Span<Str>{reinterpret_cast<Str*>(memory), items};
                if (items == 0) return;
                uint8_t* const bytes = memory + items * int64_t(sizeof(Str));
                WriteStrings sink{out.values[row].data, bytes, bytes, Str{nullptr, 0}};
                operate(row, sink);
            });
    }
};
