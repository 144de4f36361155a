// Rows of a request's keys, pooled, from the tables of a version: the begin of every compiled answer.
#pragma once
#include "request/features.hpp"
#include "request/swap_lock.hpp"

#include <new>
#include <vector>

extern "C" int64_t fields_infer(const void* fields, const int32_t* offsets, const int64_t* keys, int64_t nnz,
                                const int32_t* block_of, int64_t blocks, const int64_t* rows, int32_t zeros,
                                float* out);

namespace livectr::request {

// Results of a call besides 0; look_up.py has the same. NO_FEATURES: the features have an outcome of their own.
enum Outcome : int64_t { DONE, MISSING_ROWS, MISSING_ITEMS, SUPERSEDED, LATE, NO_FEATURES, NO_MEMORY, BAD_FEATURES };

// Tables of a version, for requests with some fields. They outlive it. Of the features' fields the first ones are looked
// up; of the others only content is read.
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

    // Reads the vectors of all fields at the version into out[rows * own + shared, dim]. Waits for a writer until
    // `deadline`, an instant of the steady clock in seconds.
    Outcome look_up(const FeatureCall& features, double deadline, float* out) const {
        const int64_t own_cells = own * features.rows, rows[] = {features.rows, 1};
        const int32_t first = features.shared_offsets[shared], last = features.own_offsets[own_cells];
        if (first > features.shared_count || last > features.own_count) return BAD_FEATURES;
        const int64_t count = int64_t(first) + last;
        const int32_t* offsets = features.shared_offsets;
        const int64_t* all = features.shared_keys;
        if (!shared) {
            offsets = features.own_offsets, all = features.own_keys;
        } else if (own) {
            Arena& arena = memory_of(features);
            auto* const to = arena.take<int32_t>(shared + own_cells + 1);
            auto* const of_all = arena.take<int64_t>(count);
            std::copy_n(features.shared_offsets, shared, to);
            for (int64_t i = 0; i <= own_cells; ++i) to[shared + i] = first + features.own_offsets[i];
            std::copy_n(features.shared_keys, first, of_all);
            std::copy_n(features.own_keys, last, of_all + first);
            offsets = to, all = of_all;
        }
        if (!lock->read(deadline)) return LATE;
        const bool current = lock->version == version;
        const int64_t missing =
            current && tables ? fields_infer(tables, offsets, all, count, blocks.data(), 2, rows, 0, out) : 0;
        lock->end_read();
        if (!current) return SUPERSEDED;
        if (missing == -1) return NO_MEMORY;
        return missing < 0 ? BAD_FEATURES : missing ? MISSING_ROWS : DONE;
    }
};

// Runs a call, whose exceptions become outcomes.
template <class Run>
Outcome outcome_of(Run run) {
    try {
        return run();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

}  // namespace livectr::request
