// Deduplication by a hash table: unique keys in order of first appearance, and the index of each key (host only).
//
// No sort: n keys have a scratch table of 2n to 4n slots of 4 bytes, linear probing; at a batch's usual sizes it
// stays in a core's own caches.
#pragma once
#include <vector>

#include "runtime/hash.cuh"

namespace {

class UniqueScratch {
  public:
    // Prepares for at most n keys in all (n < 2^31).
    void begin(int64_t n) {
        slots_ = GROUP;
        while (slots_ < 2 * uint64_t(n)) slots_ *= 2;
        if (table_.size() < slots_) table_.resize(slots_);
        memset(table_.data(), 0xFF, slots_ * sizeof(uint32_t));
        count_ = 0;
    }

    // index[n]: of each key among the unique keys; unique[at most the keys added so far]. Returns their number.
    int64_t add(const int64_t* keys, int64_t n, int64_t* unique, uint32_t* index) {
        uint32_t* const table = table_.data();
        const uint64_t mask = slots_ - 1;
        uint32_t count = count_;
        for (int64_t begin = 0; begin < n; begin += GROUP) {
            const int64_t size = n - begin < GROUP ? n - begin : GROUP;
            uint64_t homes[GROUP];  // their cache misses overlap
            for (int64_t i = 0; i < size; ++i) homes[i] = mix64(uint64_t(keys[begin + i])) & mask;
            if (slots_ > NEAR) {
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
        return count_ = count;
    }

    int64_t find(const int64_t* keys, int64_t n, int64_t* unique, uint32_t* index) {
        begin(n);
        return add(keys, n, unique, index);
    }

  private:
    static constexpr int64_t GROUP = 32;
    static constexpr uint64_t NEAR = 1 << 15;  // slots of a table that needs no prefetch
    static constexpr uint32_t EMPTY = 0xFFFFFFFFu;

    std::vector<uint32_t> table_;
    uint64_t slots_ = 0;
    uint32_t count_ = 0;
};

// Scratch of a thread; it keeps the size of its largest batch.
inline UniqueScratch& unique_scratch() {
    static thread_local UniqueScratch scratch;
    return scratch;
}

}  // namespace
