// Rows of a request's keys, pooled, from the tables of a version: the begin of every compiled answer.
#pragma once
#include "request/features.hpp"
#include "request/swap_lock.hpp"

#include <new>
#include <vector>

extern "C" int64_t fields_infer(const void* fields, const int32_t* offsets, const int64_t* keys, int64_t nnz,
                                const int32_t* block_of, int64_t blocks, const int64_t* rows, int32_t zeros,
                                float* out);
extern "C" int64_t fields_census(const void* fields, const int64_t* ends, int64_t count, const int64_t* keys,
                                 int64_t* fresh);

namespace livectr::request {

// Results of a call besides 0; look_up.py has the same. NO_FEATURES: the features have an outcome of their own.
enum Outcome : int64_t {
    DONE,
    MISSING_ROWS,
    MISSING_ITEMS,
    SUPERSEDED,
    LATE,
    NO_FEATURES,
    MISSING_CONTENT,
    TOO_MANY_PAIRS,
    EXPIRED,
    NO_MEMORY,
    BAD_FEATURES
};

// Place of a field of a batch: among those that all rows share, or among the rows' own.
struct FieldPlace {
    bool shared;
    int64_t place;
};

// Keys of a field.
struct FieldKeys {
    const int32_t* offsets;  // [count + 1]
    const int64_t* keys;     // offsets[0] to offsets[count] of them
    int64_t count;           // rows, or 1

    int64_t size() const { return offsets[count] - offsets[0]; }
};

// Keys of a field of some features. Returns false if they have no such field.
inline bool find_keys(const FeatureCall& features, FieldPlace of, FieldKeys& out) {
    const int64_t rows = of.shared ? 1 : features.rows, first = of.place * rows;
    if (of.place >= (of.shared ? features.shared : features.own)) return false;
    out = of.shared ? FieldKeys{features.shared_offsets + first, features.shared_keys, rows}
                    : FieldKeys{features.own_offsets + first, features.own_keys, rows};
    const int64_t most = of.shared ? features.shared_count : features.own_count;
    for (int64_t row = 0; row < rows; ++row)
        if (out.offsets[row] < 0 || out.offsets[row + 1] < out.offsets[row]) return false;
    return out.offsets[rows] <= most;
}

// Tables of a version, for requests with some fields. They outlive it. Of the features' fields the first ones are looked
// up; of the others only content is read.
struct VersionTables {
    static constexpr int64_t MANY = 1 << 14;

    SwapLock* lock;
    int64_t version;
    const void* tables;                 // reads the shared fields, then the rows' own; null: there are no fields
    int64_t shared, own, dim;           // fields; values of a row
    std::vector<int32_t> blocks;        // of each field: 1 shared, 0 own; of each sequence one of its own
    std::vector<FieldPlace> sequences;  // fields of which the vector of each key is read as well

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

    void read_sequence(FieldPlace of) {
        blocks.push_back(int32_t(2 + sequences.size()));
        sequences.push_back(of);
    }

    // Reads the vectors of all fields at the version: out[rows * own + shared + keys of the sequences, dim]. Waits for a
    // writer until `deadline`, an instant of the steady clock in seconds.
    Outcome look_up(const FeatureCall& features, double deadline, const FieldKeys* of_sequences, float* out) const {
        const int64_t own_cells = own * features.rows, listed = int64_t(sequences.size());
        const int32_t first = features.shared_offsets[shared], last = features.own_offsets[own_cells];
        if (first > features.shared_count || last > features.own_count) return BAD_FEATURES;
        Arena& arena = memory_of(features);
        auto* const rows = arena.take<int64_t>(2 + listed);
        rows[0] = features.rows, rows[1] = 1;
        int64_t count = int64_t(first) + last, more = 0;
        for (int64_t s = 0; s < listed; ++s) more += rows[2 + s] = of_sequences[s].size();
        const int32_t* offsets = features.shared_offsets;
        const int64_t* all = features.shared_keys;
        std::unique_ptr<int64_t[]> many;  // many keys are given back at once: the arena keeps what it gave
        if (!shared && !listed) {
            offsets = features.own_offsets, all = features.own_keys;
        } else if (own || listed) {
            auto* const to = arena.take<int32_t>(shared + own_cells + more + 1);
            if (count + more > MANY) many.reset(new int64_t[size_t(count + more)]);
            int64_t* const of_all = many ? many.get() : arena.take<int64_t>(count + more);
            std::copy_n(features.shared_offsets, shared, to);
            for (int64_t i = 0; i <= own_cells; ++i) to[shared + i] = first + features.own_offsets[i];
            std::copy_n(features.shared_keys, first, of_all);
            std::copy_n(features.own_keys, last, of_all + first);
            for (int64_t s = 0; s < listed; ++s) {
                const FieldKeys& of = of_sequences[s];
                int32_t* const ends = to + shared + own_cells + count - first - last;
                for (int64_t i = 0; i < of.size(); ++i) ends[i + 1] = int32_t(count + i + 1);
                std::copy_n(of.keys + of.offsets[0], of.size(), of_all + count);
                count += of.size();
            }
            offsets = to, all = of_all;
        }
        if (!lock->read(deadline)) return LATE;
        const bool current = lock->version == version;
        const int64_t missing =
            current && tables ? fields_infer(tables, offsets, all, count, blocks.data(), 2 + listed, rows, 0, out) : 0;
        lock->end_read();
        if (!current) return SUPERSEDED;
        if (missing == -1) return NO_MEMORY;
        return missing < 0 ? BAD_FEATURES : missing ? MISSING_ROWS : DONE;
    }

    // Counts the keys of the fields that are looked up: all of them in keys[shared + own], and in `fresh` those whose row is
    // missing, or was restored and has not changed since. Returns the number of unique keys that have a row; -1: nothing
    // was counted, because the rows are of another version or a writer has them.
    int64_t census(const FeatureCall& features, int64_t* keys, int64_t* fresh) const {
        const int64_t fields = shared + own, own_cells = own * features.rows;
        const int64_t first = features.shared_offsets[shared], last = features.own_offsets[own_cells];
        Arena& arena = memory_of(features);
        auto* const ends = arena.take<int64_t>(fields + 1);
        auto* const all = arena.take<int64_t>(first + last);
        std::copy_n(features.shared_offsets, shared, ends);
        for (int64_t f = 0; f <= own; ++f) ends[shared + f] = first + features.own_offsets[f * features.rows];
        std::copy_n(features.shared_keys, first, all);
        std::copy_n(features.own_keys, last, all + first);
        for (int64_t f = 0; f < fields; ++f) keys[f] = ends[f + 1] - ends[f];
        std::fill_n(fresh, fields, 0);
        if (!lock->try_read()) return -1;
        const int64_t unique =
            lock->version == version && tables ? fields_census(tables, ends, fields, all, fresh) : -1;
        lock->end_read();
        return unique;
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
