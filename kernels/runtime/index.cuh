// Key -> row number by extendible hashing (Fagin et al. 1979): a directory, indexed by the top bits of a
// key's hash, of small segments with linear probing. A full segment splits in two, so growing never
// rehashes more than one segment. Every int64 is a valid key.
//
// find O(1); insert O(1), at worst one split of SEGMENT_SLOTS slots and, log2(keys) times in a table's
// life, a copy of the directory (8 bytes per segment or a few times that); erase O(1) by shifting back,
// without tombstones; segments are never merged. Bytes: 16 per slot at a load of 0.44 to 0.87.
#pragma once
#include "runtime/hash.cuh"

constexpr uint32_t NO_ROW = 0xFFFFFFFFu;
constexpr uint32_t SEGMENT_SLOTS = 512;
constexpr uint32_t SEGMENT_LIMIT = SEGMENT_SLOTS / 8 * 7;  // keys in a segment before it splits

struct Slot {
    int64_t key;
    uint32_t row;   // NO_ROW: empty
    uint32_t home;  // slot of its key without collisions; erasing reads it of all neighbours
};

struct Segment {
    Slot slots[SEGMENT_SLOTS];
    uint32_t count;
    uint32_t depth;  // number of the hash's top bits that its keys share
};

// Reader's view; valid until the next insert or erase.
struct IndexView {
    Segment* const* directory;  // 2^depth entries
    uint32_t depth;
    uint64_t salt;  // of the table: keys that collide in a table collide in no other
};

static __device__ __forceinline__ uint64_t index_hash(const IndexView& view, int64_t key) {
    return mix64(static_cast<uint64_t>(key) ^ view.salt);
}

static __device__ __forceinline__ Segment* segment_of(const IndexView& view, uint64_t hash) {
    return view.directory[hash >> 1 >> (63 - view.depth)];  // two shifts: one of 64 bits is undefined
}

static __device__ __forceinline__ uint32_t home_slot(uint64_t hash) { return hash % SEGMENT_SLOTS; }

// The slot of `key`, or the empty slot where it would go.
static __device__ __forceinline__ uint32_t probe(const Slot* slots, int64_t key, uint32_t home) {
    while (slots[home].row != NO_ROW && slots[home].key != key) home = (home + 1) % SEGMENT_SLOTS;
    return home;
}

static __device__ __forceinline__ uint32_t find_row(const IndexView& view, int64_t key) {
    const uint64_t hash = index_hash(view, key);
    const Segment* const segment = segment_of(view, hash);
    return segment->slots[probe(segment->slots, key, home_slot(hash))].row;
}

#ifdef LIVECTR_HOST
#include "runtime/pages.hpp"

namespace {

// Finds the rows of n keys; missing: NO_ROW. Probes of a group overlap their cache misses.
inline void find_rows(const IndexView& view, const int64_t* keys, int64_t n, uint32_t* rows) {
    constexpr int64_t GROUP = 32;
    const Slot* slots[GROUP];
    uint32_t homes[GROUP];
    for (int64_t begin = 0; begin < n; begin += GROUP) {
        const int64_t size = std::min(GROUP, n - begin);
        for (int64_t i = 0; i < size; ++i) {
            const uint64_t hash = index_hash(view, keys[begin + i]);
            slots[i] = segment_of(view, hash)->slots;
            homes[i] = home_slot(hash);
            prefetch(slots[i] + homes[i]);
        }
        for (int64_t i = 0; i < size; ++i) {
            rows[begin + i] = slots[i][probe(slots[i], keys[begin + i], homes[i])].row;
        }
    }
}

class Index {
  public:
    explicit Index(uint64_t salt) : salt_(salt), directory_{allocate(0)} {}

    IndexView view() const { return {directory_.data(), depth_, salt_}; }

    int64_t bytes() const { return segments_ * sizeof(Segment) + directory_.capacity() * sizeof(Segment*); }

    // Returns the row of `key`; a missing key gets `row`.
    uint32_t find_or_insert(int64_t key, uint32_t row) {
        const uint64_t hash = index_hash(view(), key);
        for (;;) {
            Segment* const segment = segment_of(view(), hash);
            const uint32_t home = home_slot(hash);
            Slot& slot = segment->slots[probe(segment->slots, key, home)];
            if (slot.row != NO_ROW) return slot.row;
            if (segment->count < SEGMENT_LIMIT) {
                slot = {key, row, home};
                ++segment->count;
                return row;
            }
            split(segment, hash);
        }
    }

    // Returns the row that `key` had, or NO_ROW.
    uint32_t erase(int64_t key) {
        const uint64_t hash = index_hash(view(), key);
        Segment* const segment = segment_of(view(), hash);
        Slot* const slots = segment->slots;
        uint32_t hole = probe(slots, key, home_slot(hash));
        const uint32_t row = slots[hole].row;
        if (row == NO_ROW) return NO_ROW;
        for (uint32_t i = (hole + 1) % SEGMENT_SLOTS; slots[i].row != NO_ROW; i = (i + 1) % SEGMENT_SLOTS) {
            // a key may move back to the hole unless its home lies behind it
            if ((i - slots[i].home) % SEGMENT_SLOTS >= (i - hole) % SEGMENT_SLOTS) {
                slots[hole] = slots[i];
                hole = i;
            }
        }
        slots[hole].row = NO_ROW;
        --segment->count;
        return row;
    }

  private:
    static constexpr uint32_t MAX_DEPTH = 40;
    static constexpr int64_t ARENA_SEGMENTS = 2 * Pages::HUGE_PAGE / sizeof(Segment);

    uint64_t salt_;
    uint32_t depth_ = 0;
    int64_t segments_ = 0;
    std::vector<Pages> arenas_;
    std::vector<Segment*> directory_;

    Segment* allocate(uint32_t depth) {
        const int64_t place = segments_ % ARENA_SEGMENTS;
        if (place == 0) arenas_.emplace_back(ARENA_SEGMENTS * sizeof(Segment), segments_ > 0);
        ++segments_;
        Segment* const segment = reinterpret_cast<Segment*>(arenas_.back().data()) + place;
        reset(segment, depth);
        return segment;
    }

    static void reset(Segment* segment, uint32_t depth) {
        memset(segment->slots, 0xFF, sizeof(segment->slots));
        segment->count = 0;
        segment->depth = depth;
    }

    void split(Segment* low, uint64_t hash) {
        if (low->depth == depth_) {
            // Only keys made to collide in 40 bits of their hash come here.
            if (depth_ == MAX_DEPTH) throw std::bad_alloc();
            std::vector<Segment*> wider(directory_.size() * 2);
            for (size_t i = 0; i < wider.size(); ++i) wider[i] = directory_[i / 2];
            directory_ = std::move(wider);
            ++depth_;
        }
        const Segment old = *low;
        Segment* const high = allocate(old.depth + 1);
        reset(low, old.depth + 1);
        for (const Slot& slot : old.slots) {
            if (slot.row == NO_ROW) continue;
            const uint64_t slot_hash = index_hash(view(), slot.key);
            Segment* const target = slot_hash >> (63 - old.depth) & 1 ? high : low;
            target->slots[probe(target->slots, slot.key, home_slot(slot_hash))] = slot;
            ++target->count;
        }
        const uint32_t free_bits = depth_ - old.depth;  // entries of `low`: its prefix, then any free_bits
        const uint64_t first = (hash >> 1 >> (63 - depth_)) >> free_bits << free_bits;
        const uint64_t span = uint64_t{1} << free_bits;
        std::fill(directory_.begin() + first + span / 2, directory_.begin() + first + span, high);
    }
};

}  // namespace

#endif
