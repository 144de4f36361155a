// Operators on many values at once, for the host's vector instructions. Each gives the bits of its form for one value.
#pragma once
#include "runtime/columns.cuh"
#include "runtime/hash.cuh"
#ifdef LIVECTR_HOST

#include <algorithm>
#include <vector>

namespace livectr {

// Numbers of a vector register: a compiler takes wider vectors apart in memory.
#ifdef __AVX512F__
constexpr int32_t LANES = 8;
#else
constexpr int32_t LANES = 4;
#endif
using Words = uint64_t __attribute__((vector_size(8 * LANES)));

// XXH64 of strings of less than 32 bytes side by side: every step runs for all, and counts where a string is long
// enough for it. No byte outside of a string is used; those before a short one on its page are read.
struct ShortStrings {
    static constexpr int64_t LONGEST = 31;
    static constexpr uint8_t NONE[8] = {};

    static Words turned(Words x, int r) { return x << r | x >> (64 - r); }

    // The last size % 8 bytes as a number.
    READS_AROUND static uint64_t rest(const uint8_t* p, uint64_t size) {
        const uint64_t left = size & 7;
        if (__builtin_expect(left != 0 && size < 8 && (reinterpret_cast<uintptr_t>(p) & 4095) < 8, 0)) {
            uint64_t word = 0;
            memcpy(&word, p, size_t(left));
            return word;
        }
        uint64_t word;  // read here: a call of `read` would be sanitized
        memcpy(&word, left != 0 ? p + size - 8 : NONE, sizeof word);
        return word >> (8 * (7 - left)) >> 8;
    }

    static void hash(const Str* strings, int64_t* out) {
        using namespace xxh64;
        Words size, word;
        uint64_t longest = 0;
        for (int32_t i = 0; i < LANES; ++i) longest |= size[i] = uint64_t(strings[i].size);
        if (longest > LONGEST) {
            for (int32_t i = 0; i < LANES; ++i) out[i] = int64_t(hash_bytes(strings[i].data, strings[i].size));
            return;
        }
        Words h = size + P5;
        for (uint64_t at = 8; at <= longest; at += 8) {
            for (int32_t i = 0; i < LANES; ++i)
                word[i] = read_bytes<uint64_t>(at <= uint64_t(strings[i].size) ? strings[i].data + at - 8 : NONE);
            const Words next = turned(h ^ turned(word * P2, 31) * P1, 27) * P1 + P4;
            h = size >= at ? next : h;
        }
        for (int32_t i = 0; i < LANES; ++i) word[i] = rest(strings[i].data, uint64_t(strings[i].size));
        const auto four = (size & 4) != 0;
        h = four ? turned(h ^ (word & 0xFFFFFFFF) * P1, 23) * P2 + P3 : h;
        finish(h, four ? word >> 32 : word, size, out);
    }

    // As `hash`, of strings of 0 to 7 bytes at text + at[i], where 8 bytes may be read.
    static void hash(const uint8_t* text, const int32_t* at, const int32_t* ends, int64_t* out) {
        using namespace xxh64;
        Words size, word;
        uint64_t all = 0;
        for (int32_t i = 0; i < LANES; ++i) {
            word[i] = read_bytes<uint64_t>(text + at[i]);
            all |= size[i] = uint64_t(ends[i] - at[i]);
        }
        Words h = size + P5;
        if (all & 4) {
            const auto four = (size & 4) != 0;
            h = four ? turned(h ^ (word & 0xFFFFFFFF) * P1, 23) * P2 + P3 : h;
            word = four ? word >> 32 : word;
        }
        finish(h, word, size, out);
    }

  private:
    // The last size % 4 bytes, which are the first of `word`, and the avalanche.
    static void finish(Words h, Words word, Words size, int64_t* out) {
        using namespace xxh64;
        for (uint64_t k = 0; k < 3; ++k) {
            h = (size & 3) > k ? turned(h ^ (word & 0xFF) * P5, 11) * P1 : h;
            word >>= 8;
        }
        h = (h ^ h >> 33) * P2;
        h = (h ^ h >> 29) * P3;
        h ^= h >> 32;
        memcpy(out, &h, sizeof h);
    }
};

// key() of n strings.
inline void keys(const Str* strings, int64_t n, int64_t* out) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) ShortStrings::hash(strings + i, out + i);
    for (; i < n; ++i) out[i] = int64_t(hash_bytes(strings[i].data, strings[i].size));
}

// key(ngrams(text, n)) without the n-grams between: the starts of a text's characters, then keys LANES at a time.
class GramKeys {
  public:
    explicit GramKeys(int32_t n) : n_(n) {}

    // Finds the characters of a text and returns the number of its n-grams.
    int32_t begin(Str text) {
        const size_t room = size_t(text.size) + size_t(n_) + 2 * LANES;
        if (at_.size() < room) at_.resize(room), bytes_.resize(room);
        int32_t* const at = at_.data();
        at[0] = 0;
        int32_t found = text.size > 0;
        for (int32_t i = 1; i < text.size; ++i) {
            at[found] = i;
            found += (text.data[i] & 0xC0) != 0x80;
        }
        const int32_t grams = std::max(0, found - n_ + 1);
        if (grams == 0) return 0;
        std::fill_n(at + found, n_ + LANES, text.size);
        memcpy(bytes_.data(), text.data, size_t(text.size));
        return grams;
    }

    // Keys of the n-grams; up to LANES - 1 numbers behind them are written too.
    void keys(int32_t grams, int64_t* out) const {
        for (int32_t k = 0; k < grams; k += LANES) {
            const int32_t *const at = at_.data() + k, *const ends = at + n_;
            int32_t longest = 0;
            for (int32_t i = 0; i < LANES; ++i) longest = std::max(longest, ends[i] - at[i]);
            if (__builtin_expect(longest < 8, 1)) {
                ShortStrings::hash(bytes_.data(), at, ends, out + k);
                continue;
            }
            Str strings[LANES];
            for (int32_t i = 0; i < LANES; ++i) strings[i] = Str{bytes_.data() + at[i], ends[i] - at[i]};
            ShortStrings::hash(strings, out + k);
        }
    }

  private:
    int32_t n_;
    std::vector<int32_t> at_;     // start of each character, then the text's size
    std::vector<uint8_t> bytes_;  // of the text, and bytes that may be read behind it
};

}  // namespace livectr

#endif
