// Key -> slot of a table's rows in the row log: open addressing with linear probing over two columns, 12 bytes an entry.
// Every int64 is a valid key. The keys are in memory, so that a write or a search for an absent key never reads the disk.
//
// find, put and erase O(1). PIECES arrays, chosen by the hash's top bits, grow by a quarter on their own: growing rehashes
// one PIECES-th of a table. Bytes: 15 to 19 a key.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>
#include "runtime/hash.cuh"

namespace {

constexpr uint32_t NO_SLOT = 0xFFFFFFFFu;

class SlotIndex {
  public:
    int64_t size() const { return size_; }

    int64_t bytes() const {
        int64_t total = 0;
        for (const Piece& piece : pieces_) total += 12 * piece.slots.size();
        return total;
    }

    // Slot of `key`, or NO_SLOT.
    uint32_t find(int64_t key) const {
        const uint64_t hash = mix64(key);
        const Piece& piece = pieces_[hash >> SHIFT];
        return piece.slots.empty() ? NO_SLOT : piece.slots[piece.probe(key, hash)];
    }

    void ahead(int64_t key) const {
        const uint64_t hash = mix64(key);
        const Piece& piece = pieces_[hash >> SHIFT];
        if (piece.slots.empty()) return;
        prefetch(piece.keys.data() + piece.home(hash));
        prefetch(piece.slots.data() + piece.home(hash));
    }

    // Returns the slot that `key` had, or NO_SLOT.
    uint32_t put(int64_t key, uint32_t slot) {
        const uint64_t hash = mix64(key);
        Piece& piece = pieces_[hash >> SHIFT];
        if (piece.count + 1 > piece.slots.size() / 5 * 4) piece.grow();
        const size_t at = piece.probe(key, hash);
        const uint32_t former = std::exchange(piece.slots[at], slot);
        piece.keys[at] = key;
        piece.count += former == NO_SLOT;
        size_ += former == NO_SLOT;
        return former;
    }

    // Returns the slot that `key` had, or NO_SLOT.
    uint32_t erase(int64_t key) {
        const uint64_t hash = mix64(key);
        Piece& piece = pieces_[hash >> SHIFT];
        if (piece.slots.empty()) return NO_SLOT;
        const uint32_t former = piece.close(piece.probe(key, hash));
        size_ -= former != NO_SLOT;
        return former;
    }

    // All slots, in no promised order.
    std::vector<uint32_t> slots() const {
        std::vector<uint32_t> all;
        all.reserve(size_);
        for (const Piece& piece : pieces_) {
            for (const uint32_t slot : piece.slots) {
                if (slot != NO_SLOT) all.push_back(slot);
            }
        }
        return all;
    }

  private:
    static constexpr int PIECES = 64, SHIFT = 58;

    struct Piece {
        std::vector<int64_t> keys;
        std::vector<uint32_t> slots;  // NO_SLOT: empty
        size_t count = 0;

        size_t home(uint64_t hash) const { return (hash << 6 >> 32) * slots.size() >> 32; }
        size_t next(size_t at) const { return at + 1 == slots.size() ? 0 : at + 1; }

        // Place of `key`, or the empty place where it would go.
        size_t probe(int64_t key, uint64_t hash) const {
            size_t at = home(hash);
            while (slots[at] != NO_SLOT && keys[at] != key) at = next(at);
            return at;
        }

        void grow() {
            Piece wider;
            const size_t size = slots.empty() ? 10 : slots.size() * 5 / 4 + 5;
            wider.keys.resize(size);
            wider.slots.assign(size, NO_SLOT);
            for (size_t i = 0; i < slots.size(); ++i) {
                if (slots[i] == NO_SLOT) continue;
                const size_t at = wider.probe(keys[i], mix64(keys[i]));
                wider.keys[at] = keys[i];
                wider.slots[at] = slots[i];
            }
            wider.count = count;
            *this = std::move(wider);
        }

        // Empties a place; later keys of its cluster move back, so that no search stops early.
        uint32_t close(size_t hole) {
            const uint32_t former = slots[hole];
            if (former == NO_SLOT) return NO_SLOT;
            const size_t size = slots.size();
            for (size_t i = next(hole); slots[i] != NO_SLOT; i = next(i)) {
                // a key may move back to the hole unless its home lies behind it
                if ((i + size - home(mix64(keys[i]))) % size >= (i + size - hole) % size) {
                    keys[hole] = keys[i];
                    slots[hole] = slots[i];
                    hole = i;
                }
            }
            slots[hole] = NO_SLOT;
            --count;
            return former;
        }
    };

    Piece pieces_[PIECES];
    int64_t size_ = 0;
};

}  // namespace
