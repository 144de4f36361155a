// Rows of a request's keys, pooled, from the tables of a version: the begin of every compiled answer.
#pragma once
#include "request/swap_lock.hpp"

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

extern "C" int64_t fields_infer(const void* fields, const int32_t* offsets, const int64_t* keys, int64_t nnz,
                                const int32_t* block_of, int64_t blocks, const int64_t* rows, int32_t zeros,
                                float* out);

namespace livectr::request {

// Results of a call besides 0; look_up.py has the same.
enum Outcome : int64_t { DONE, MISSING_ROWS, MISSING_ITEMS, SUPERSEDED, LATE, NO_MEMORY, BAD_OFFSETS };

// Memory of a call, dealt out from the front.
class CallMemory {
  public:
    explicit CallMemory(size_t bytes) : memory_(static_cast<char*>(std::malloc(bytes))), at_(memory_.get()) {
        if (!at_) throw std::bad_alloc();
    }
    template <class T>
    T* take(int64_t count) {
        char* const begin = at_;
        at_ += bytes<T>(count);
        return reinterpret_cast<T*>(begin);
    }
    // Bytes of an array, up to where the next may begin.
    template <class T>
    static size_t bytes(int64_t count) {
        return (size_t(count) * sizeof(T) + 15) / 16 * 16;
    }

  private:
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };
    std::unique_ptr<char, Free> memory_;
    char* at_;
};

// Ragged keys of some rows: of fields that all rows share, which have one, and of the rows' own fields; `Keys` of
// look_up.py.
struct Keys {
    const int32_t* shared_offsets;  // [shared + 1]
    const int64_t* shared_keys;     // [shared_count]
    const int32_t* own_offsets;     // [own * rows + 1]
    const int64_t* own_keys;        // [own_count]
    int64_t shared_count, own_count;
    int64_t rows;
};

// Tables of a version, for batches with some fields. They outlive it.
struct VersionTables {
    SwapLock* lock;
    int64_t version;
    const void* tables;           // reads the shared fields, then the rows' own; null: there are no fields
    int64_t shared, own, dim;     // fields; values of a row
    std::vector<int32_t> blocks;  // of each field: 1 shared, 0 own

    VersionTables(SwapLock* lock, int64_t version, const void* tables, int64_t shared, int64_t own, int64_t dim)
        : lock(lock),
          version(version),
          tables(tables),
          shared(shared),
          own(own),
          dim(dim),
          blocks(size_t(shared + own), 0) {
        std::fill_n(blocks.begin(), shared, 1);
    }

    int64_t cells(int64_t rows) const { return shared + own * rows; }

    size_t memory(const Keys& keys) const {
        return CallMemory::bytes<float>(cells(keys.rows) * dim) + CallMemory::bytes<int32_t>(cells(keys.rows) + 1) +
               CallMemory::bytes<int64_t>(keys.shared_count + keys.own_count);
    }

    // Reads the vectors of all fields at the version into out[rows * own + shared, dim]. Waits for a writer until
    // `deadline`, an instant of the steady clock in seconds.
    Outcome look_up(const Keys& keys, double deadline, CallMemory& memory, float* out) const {
        const int64_t own_cells = own * keys.rows, count = keys.shared_count + keys.own_count;
        const int64_t rows[] = {keys.rows, 1};
        const int32_t first = keys.shared_offsets[shared];
        if (first != keys.shared_count || keys.own_offsets[own_cells] != keys.own_count) return BAD_OFFSETS;
        const int32_t* offsets = keys.shared_offsets;
        const int64_t* all = keys.shared_keys;
        if (!shared) {
            offsets = keys.own_offsets, all = keys.own_keys;
        } else if (own) {
            int32_t* const to = memory.take<int32_t>(shared + own_cells + 1);
            int64_t* const of_all = memory.take<int64_t>(count);
            std::copy_n(keys.shared_offsets, shared, to);
            for (int64_t i = 0; i <= own_cells; ++i) to[shared + i] = first + keys.own_offsets[i];
            std::copy_n(keys.shared_keys, first, of_all);
            std::copy_n(keys.own_keys, keys.own_count, of_all + first);
            offsets = to, all = of_all;
        }
        if (!lock->read(deadline)) return LATE;
        const bool current = lock->version == version;
        const int64_t missing =
            current && tables ? fields_infer(tables, offsets, all, count, blocks.data(), 2, rows, 0, out) : 0;
        lock->end_read();
        if (!current) return SUPERSEDED;
        if (missing == -1) return NO_MEMORY;
        return missing < 0 ? BAD_OFFSETS : missing ? MISSING_ROWS : DONE;
    }
};

}  // namespace livectr::request
