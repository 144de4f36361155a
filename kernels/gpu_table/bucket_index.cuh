// (table, key) -> row number in a GPU's memory: open addressing over buckets of 15 slots, probed bucket by bucket.
//
// A bucket is 256 bytes at a multiple of 256: 15 digests (8 bits of the hash each; 0: never used, 1: erased) and a
// byte of padding, then 15 slots of 16 bytes. A search compares 15 digests at once as two 64-bit words and loads the
// slots whose digest agrees: of a present key, two sectors of 32 bytes in almost all cases. Digests beside the keys are
// HierarchicalKV's idea (NVIDIA Merlin; buckets of 128 slots) and WarpSpeed's (McCoy, Pandey, arXiv 2509.16407);
// probing a group of slots at a time is WarpCore's (Juenger et al., arXiv 2009.07914). One thread searches here, not a
// group of threads: a bucket's digests are one 16-byte load.
//
// Keys are compared whole, and an empty slot is known by its digest: every int64 is a valid key, in every table.
//
// Calls of one launch are all searches, all insertions of distinct absent keys, or all erasures of distinct keys, so
// nothing waits for another thread: an insertion claims a digest with one compare-and-swap. Where a key lies then
// depends on who wins; what is found never does. Room runs out only through insertions, which the host counts: it
// rehashes into a new array before more than 9 of 10 slots were ever used.
#pragma once
#include "runtime/index.cuh"

constexpr int32_t BUCKET_SLOTS = 15;

struct alignas(16) BucketSlot {
    int64_t key;
    uint32_t row, table;
};

struct alignas(16) Digests {
    uint64_t words[2];
};

struct alignas(256) Bucket {
    Digests digests;
    BucketSlot slots[BUCKET_SLOTS];
};
static_assert(sizeof(Bucket) == 256, "a bucket is two lines of the GPU's cache");

struct BucketIndex {
    Bucket* buckets;
    uint64_t mask;  // buckets - 1; their number is a power of two
    uint64_t salt;
};

constexpr uint64_t LOW_BITS = 0x0101010101010101ull, HIGH_BITS = 0x8080808080808080ull;
constexpr uint64_t ERASED_DIGEST = 1;

static __device__ __forceinline__ uint64_t key_hash(uint64_t salt, uint32_t table, int64_t key) {
    return mix64(static_cast<uint64_t>(key) ^ (salt + table * 0x9E3779B97F4A7C15ull));
}

// Bits of a hash that do not choose the bucket, as 2 ... 255.
static __device__ __forceinline__ uint64_t digest_of(uint64_t hash) {
    const uint64_t digest = hash >> 56;
    return digest < 2 ? digest + 128 : digest;
}

// The highest bit of each byte that is 0, and no other bit.
static __device__ __forceinline__ uint64_t zero_bytes(uint64_t x) {
    return ~(((x & ~HIGH_BITS) + ~HIGH_BITS) | x) & HIGH_BITS;
}

// Mask of the bytes of word 0 or 1 that are slots.
static __device__ __forceinline__ uint64_t slot_bytes(int32_t word) { return word == 0 ? HIGH_BITS : HIGH_BITS >> 8; }

static __device__ __forceinline__ uint64_t with_digest(uint64_t word, int32_t byte, uint64_t digest) {
    return (word & ~(uint64_t{0xFF} << (8 * byte))) | digest << (8 * byte);
}

struct BucketPlace {
    Bucket* bucket;
    int32_t slot;
    uint32_t row;  // NO_ROW: the key is missing
};

static __device__ __forceinline__ BucketPlace find_place(const BucketIndex& index, uint32_t table, int64_t key) {
    const uint64_t hash = key_hash(index.salt, table, key), pattern = digest_of(hash) * LOW_BITS;
    for (uint64_t at = hash & index.mask;; at = (at + 1) & index.mask) {
        Bucket* const bucket = index.buckets + at;
        const Digests digests = bucket->digests;
        for (int32_t word = 0; word < 2; ++word) {
            uint64_t equal = zero_bytes(digests.words[word] ^ pattern) & slot_bytes(word);
            for (; equal != 0; equal &= equal - 1) {
                const int32_t slot = word * 8 + lowest_bit(equal) / 8;
                const BucketSlot found = bucket->slots[slot];
                if (found.key == key && found.table == table) return {bucket, slot, found.row};
            }
        }
        if (zero_bytes(digests.words[0]) | (zero_bytes(digests.words[1]) & slot_bytes(1))) return {nullptr, 0, NO_ROW};
    }
}

// The key must be absent, and no other thread may insert it.
static __device__ __forceinline__ void insert_slot(const BucketIndex& index, const BucketSlot& slot) {
    const uint64_t hash = key_hash(index.salt, slot.table, slot.key), digest = digest_of(hash);
    for (uint64_t at = hash & index.mask;; at = (at + 1) & index.mask) {
        Bucket* const bucket = index.buckets + at;
        for (int32_t word = 0; word < 2; ++word) {
            uint64_t* const digests = &bucket->digests.words[word];
            uint64_t seen = peek(digests);
            while (const uint64_t free = zero_bytes(seen & ~LOW_BITS) & slot_bytes(word)) {
                const int32_t byte = lowest_bit(free) / 8;
                const uint64_t before = seen;
                seen = atomicCAS(digests, before, with_digest(before, byte, digest));
                if (seen == before) {
                    bucket->slots[word * 8 + byte] = slot;
                    return;
                }
            }
        }
    }
}

// A bucket with a slot that was never used was never full, so no search passed it: its slots may be as if never used.
static __device__ __forceinline__ void erase_place(const BucketPlace& place) {
    uint64_t* const words = place.bucket->digests.words;
    const bool passed = !(zero_bytes(peek(words)) | (zero_bytes(peek(words + 1)) & slot_bytes(1)));
    uint64_t* const digests = words + place.slot / 8;
    for (uint64_t seen = peek(digests);;) {
        const uint64_t before = seen;
        seen = atomicCAS(digests, before, with_digest(before, place.slot % 8, passed ? ERASED_DIGEST : 0));
        if (seen == before) return;
    }
}
