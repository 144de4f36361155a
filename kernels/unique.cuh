// Unique keys of many segments, in order of first appearance, and where each key is among them (host only).
//
// No sort: a segment of n keys has a scratch table of 2n to 4n slots of 4 bytes, linear probing; at a batch's
// usual sizes it stays in a core's first-level cache. Segments are independent: no result depends on threads.
#pragma once
#include <vector>

#include "hash.cuh"
#include "threads.cuh"

namespace {

class UniqueScratch {
  public:
    // index[n]: of each key among the unique ones, unique[at most n]. Returns the number of unique keys.
    // n < 2^31.
    int64_t find(const int64_t* keys, int64_t n, int64_t* unique, uint32_t* index) {
        uint64_t slots = GROUP;
        while (slots < 2 * uint64_t(n)) slots *= 2;
        if (slots_.size() < slots) slots_.resize(slots);
        uint32_t* const table = slots_.data();
        memset(table, 0xFF, slots * sizeof(uint32_t));
        const uint64_t mask = slots - 1;
        uint32_t count = 0;
        for (int64_t begin = 0; begin < n; begin += GROUP) {
            const int64_t size = n - begin < GROUP ? n - begin : GROUP;
            uint64_t homes[GROUP];  // their cache misses overlap
            for (int64_t i = 0; i < size; ++i) homes[i] = mix64(uint64_t(keys[begin + i])) & mask;
            if (slots > NEAR) {
                for (int64_t i = 0; i < size; ++i) prefetch(table + homes[i]);
            }
            for (int64_t i = 0; i < size; ++i) {
                const int64_t key = keys[begin + i];
                uint64_t slot = homes[i];
                uint32_t found;
                while ((found = table[slot]) != EMPTY && unique[found] != key) slot = (slot + 1) & mask;
                if (found == EMPTY) {
                    found = table[slot] = count++;
                    unique[found] = key;
                }
                index[begin + i] = found;
            }
        }
        return count;
    }

  private:
    static constexpr int64_t GROUP = 32;
    static constexpr uint64_t NEAR = 1 << 15;  // slots of a table that needs no prefetch
    static constexpr uint32_t EMPTY = 0xFFFFFFFFu;

    std::vector<uint32_t> slots_;
};

// One a thread; it keeps the size of the largest segment it has seen.
inline UniqueScratch& unique_scratch() {
    static thread_local UniqueScratch scratch;
    return scratch;
}

// Segment s is keys[bounds[s]] to keys[bounds[s + 1]]. Its unique keys come at unique[ends[s]] to
// unique[ends[s + 1]], ends[0] = 0; index[nnz] counts within the segment. unique has room for nnz keys.
// Returns 0, or -1 without memory.
extern "C" int32_t unique_segments(const int64_t* keys, const int64_t* bounds, int64_t segments,
                                   int64_t* unique, int64_t* ends, uint32_t* index) {
    try {
        ends[0] = 0;
        livectr::parallel_for(segments, [&](int64_t s) {
            const int64_t begin = bounds[s], n = bounds[s + 1] - begin;
            ends[s + 1] = unique_scratch().find(keys + begin, n, unique + begin, index + begin);
        });
    } catch (const std::bad_alloc&) {
        return -1;
    }
    for (int64_t s = 0; s < segments; ++s) {  // close the gaps; a segment never moves behind its beginning
        memmove(unique + ends[s], unique + bounds[s], ends[s + 1] * sizeof(int64_t));
        ends[s + 1] += ends[s];
    }
    return 0;
}

}  // namespace
