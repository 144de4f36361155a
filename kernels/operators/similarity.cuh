// Similarity of two strings (edit distance) and of two lists of strings (Jaccard index).
#pragma once
#include "operators/text.cuh"
#include "runtime/hash.cuh"

constexpr int32_t EDIT_CHARACTERS = 256;  // of each string

// The character that begins at i, as its UTF-8 bytes: different characters differ.
static __device__ __forceinline__ uint32_t next_character(Str s, int32_t& i) {
    uint32_t character = s.data[i++];
    while (i < s.size && continues(s.data[i])) character = character << 8 | s.data[i++];
    return character;
}

// Positions of each character among up to 64, as bits: a hash table with open addressing.
struct Places {
    static constexpr uint32_t SLOTS = 128;
    uint32_t characters[SLOTS];  // + 1; 0: free
    uint64_t bits[SLOTS];

    __device__ __forceinline__ void clear() {
        for (uint32_t i = 0; i < SLOTS; ++i) characters[i] = 0;
    }
    __device__ __forceinline__ uint32_t slot(uint32_t character) const {
        uint32_t at = character < SLOTS ? character : character * 0x9E3779B1u >> 25;  // ASCII never collides
        while (characters[at] != 0 && characters[at] != character + 1) at = (at + 1) % SLOTS;
        return at;
    }
    __device__ __forceinline__ void add(uint32_t character, int32_t place) {
        const uint32_t at = slot(character);
        if (characters[at] == 0) bits[at] = 0;
        characters[at] = character + 1;
        bits[at] |= 1ull << place;
    }
    __device__ __forceinline__ uint64_t of(uint32_t character) const {
        const uint32_t at = slot(character);
        return characters[at] == 0 ? 0 : bits[at];
    }
};

// Levenshtein distance, 64 cells of a column at once (Myers, JACM 1999; strips and the boundary of a distance, not
// a search: Hyyrö, "Explaining and extending the bit-parallel approximate string matching algorithm", 2001). The
// strings' first EDIT_CHARACTERS count. `a` runs downwards in strips of 64, `b` to the right.
static __device__ OUT_OF_LINE int32_t edit_distance_strips(Str a, Str b) {
    Places places;
    // One bit per column: is the cell above the strip one more, or one less, than its left neighbour? Above the
    // first strip each is one more.
    constexpr int32_t WORDS = EDIT_CHARACTERS / 64;
    uint64_t more[WORDS], less[WORDS];
    for (int32_t w = 0; w < WORDS; ++w) {
        more[w] = ~0ull;
        less[w] = 0;
    }
    int32_t rows = 0, distance = 0;
    ROLLED for (int32_t i = 0; i < a.size && rows < EDIT_CHARACTERS;) {
        int32_t cells = 0;
        places.clear();
        for (; i < a.size && cells < 64; ++cells) places.add(next_character(a, i), cells);
        rows += cells;
        uint64_t up = ~0ull, down = 0;  // cells one more, one less than the cell above
        distance = rows;                // of the strip's lowest cell
        for (int32_t j = 0, w = 0; j < b.size && w < WORDS; ++w) {
            const uint64_t more_above = more[w], less_above = less[w];
            uint64_t more_below = 0, less_below = 0;
            for (int32_t column = 0; j < b.size && column < 64; ++column) {
                const uint64_t from_more = more_above >> column & 1, from_less = less_above >> column & 1;
                uint64_t same = places.of(next_character(b, j));
                const uint64_t diagonal = same | down;
                same |= from_less;
                const uint64_t zero = (((same & up) + up) ^ up) | same;
                uint64_t right_more = down | ~(zero | up), right_less = up & zero;
                const uint64_t one_more = right_more >> (cells - 1) & 1, one_less = right_less >> (cells - 1) & 1;
                distance += int32_t(one_more) - int32_t(one_less);
                more_below |= one_more << column;
                less_below |= one_less << column;
                right_more = right_more << 1 | from_more;
                right_less = right_less << 1 | from_less;
                up = right_less | ~(diagonal | right_more);
                down = right_more & diagonal;
            }
            more[w] = more_below;
            less[w] = less_below;
        }
    }
    return distance;
}

static __device__ inline int32_t edit_distance(Str a, Str b) {
    if (a.size == 0 || b.size == 0) {
        const int32_t size = characters(a.size == 0 ? b : a);
        return size < EDIT_CHARACTERS ? size : EDIT_CHARACTERS;
    }
    return a.size < b.size ? edit_distance_strips(a, b) : edit_distance_strips(b, a);
}

static __device__ __forceinline__ bool same_string(Str a, Str b) {
    return a.size == b.size && bytes_equal(a.data, b.data, a.size);
}

// One of 64 bits, by the hash of a string.
static __device__ __forceinline__ uint64_t string_bit(Str s) {
    uint64_t word = uint64_t(s.size);
    if (s.size >= 8) word = hash_combine(eight_bytes(s.data), eight_bytes(s.data + s.size - 8)) + word;
    for (int32_t i = 0; s.size < 8 && i < s.size; ++i) word = word << 8 | s.data[i];
    return 1ull << (mix64(word) >> 58);
}

// Jaccard index: items of both sets / items of either set; 0 for two empty sets.
template <typename A, typename B>
static __device__ inline float token_overlap(const Row<A>& a, const Row<B>& b) {
    uint64_t in_a = 0, in_b = 0;
    int32_t only_a = 0, only_b = 0, both = 0;
    ROLLED for (int32_t i = 0; i < b.size(); ++i) {
        const Str item = b.at(i);
        const uint64_t bit = string_bit(item);
        bool again = false;
        ROLLED for (int32_t k = 0; (in_b & bit) != 0 && !again && k < i; ++k) again = same_string(item, b.at(k));
        in_b |= bit;
        only_b += !again;
    }
    ROLLED for (int32_t i = 0; i < a.size(); ++i) {
        const Str item = a.at(i);
        const uint64_t bit = string_bit(item);
        bool again = false, shared = false;
        ROLLED for (int32_t k = 0; (in_a & bit) != 0 && !again && k < i; ++k) again = same_string(item, a.at(k));
        in_a |= bit;
        if (again) continue;
        ROLLED for (int32_t k = 0; (in_b & bit) != 0 && !shared && k < b.size(); ++k) {
            shared = same_string(item, b.at(k));
        }
        both += shared;
        only_a += !shared;
    }
    const int32_t all = only_a + only_b;
    return all == 0 ? 0.0f : float(double(both) / double(all));
}
