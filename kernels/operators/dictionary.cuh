// Dictionaries: open addressing with linear probing of 64-bit keys, built by kernels/operators/dictionary.py. The probe
// begins at the upper bits of the key's hash; the last slot is empty, so it needs no wrap-around. An empty slot holds
// the key `empty`, which the dictionary does not have, and the default's word: a miss reads no other line than a hit.
#pragma once
#include "operators/features.cuh"
#include "runtime/sinks.cuh"

struct alignas(16) DictionarySlot {
    int64_t key;
    uint64_t word;
};

static __device__ __forceinline__ uint64_t dictionary_word(const DictionarySlot* slots, int64_t shift, int64_t empty,
                                                           int64_t key) {
    const DictionarySlot* slot = slots + (mix64(uint64_t(key)) >> shift);
    while (slot->key != key && slot->key != empty) ++slot;
    return slot->word;
}

// A word's lower bytes are the number.
template <typename T>
struct NumberDictionary {
    const DictionarySlot* slots;
    int64_t shift, empty;
    __device__ __forceinline__ T at(int64_t key) const {
        const uint64_t word = dictionary_word(slots, shift, empty, key);
        T value;
        memcpy(&value, &word, sizeof(T));
        return value;
    }
};

// A word is (begin, size), 40 and 24 bits.
constexpr int32_t SIZE_BITS = 24;
constexpr uint64_t SIZE_MASK = (1ull << SIZE_BITS) - 1;

struct StringDictionary {
    const DictionarySlot* slots;
    const uint8_t* bytes;
    int64_t shift, empty;
    __device__ __forceinline__ Str at(int64_t key) const {
        const uint64_t word = dictionary_word(slots, shift, empty, key);
        return Str{bytes + (word >> SIZE_BITS), int32_t(word & SIZE_MASK)};
    }
};

template <typename T>
struct ListDictionary {
    const DictionarySlot* slots;
    const T* items;
    int64_t shift, empty;
    template <typename Sink>
    __device__ __forceinline__ void put(int64_t key, Sink& sink) const {
        const uint64_t word = dictionary_word(slots, shift, empty, key);
        const T* const first = items + (word >> SIZE_BITS);
        ROLLED for (int32_t i = 0; i < int32_t(word & SIZE_MASK); ++i) sink.push(first[i]);
    }
};

// float32[rows, stride], whose first `dim` columns count: stride is dim rounded up to VECTOR_STEP. A slot's word is the
// row, as int32; -1 for an unknown word.
constexpr int32_t VECTOR_STEP = 8;

struct WordVectors {
    const DictionarySlot* slots;
    const float* vectors;
    int64_t shift, empty, dim, stride;
    __device__ __forceinline__ int32_t row_of(int64_t key) const {
        return int32_t(uint32_t(dictionary_word(slots, shift, empty, key)));
    }
};

template <typename T>
struct OneWord {
    T word;
    __device__ __forceinline__ int32_t size() const { return 1; }
    __device__ __forceinline__ T at(int32_t) const { return word; }
};

// Rows of the first words are kept, so that only longer texts are looked up again for each run of columns.
constexpr int32_t KEPT_WORDS = 32;

// Columns from … from + COLUMNS of the sum over words, divided.
template <int32_t COLUMNS, typename Words, typename Sink>
static __device__ __forceinline__ void pool_columns(const WordVectors& known, const Words& words, const int32_t* kept,
                                                    int64_t from, float divisor, Sink& sink) {
    float sum[COLUMNS] = {};
    ROLLED for (int32_t i = 0; i < words.size(); ++i) {
        const int32_t row = i < KEPT_WORDS ? kept[i] : known.row_of(key(words.at(i)));
        if (row < 0) continue;
        const float* const vector = known.vectors + row * known.stride + from;
        for (int32_t k = 0; k < COLUMNS; ++k) sum[k] += vector[k];
    }
    for (int32_t k = 0; k < COLUMNS && from + k < known.dim; ++k) sink.push(sum[k] / divisor);
}

// Sum of the words' vectors in order of the words, in float32, or that divided by the number of known words.
template <typename Words, typename Sink>
static __device__ inline void pool_words(const WordVectors& known, const Words& words, bool mean, Sink& sink) {
    int32_t kept[KEPT_WORDS], count = 0;
    ROLLED for (int32_t i = 0; i < words.size(); ++i) {
        const int32_t row = known.row_of(key(words.at(i)));
        count += row >= 0;
        if (i < KEPT_WORDS) kept[i] = row;
    }
    const float divisor = mean && count > 0 ? float(count) : 1.0f;
    int64_t from = 0;
#ifdef LIVECTR_HOST  // its vector registers hold so many sums
    for (; known.dim - from >= 4 * VECTOR_STEP; from += 4 * VECTOR_STEP) {
        pool_columns<4 * VECTOR_STEP>(known, words, kept, from, divisor, sink);
    }
#endif
    ROLLED for (; from < known.dim; from += VECTOR_STEP) {
        pool_columns<VECTOR_STEP>(known, words, kept, from, divisor, sink);
    }
}

// Measuring needs no look-up of the words.
template <typename Words>
static __device__ __forceinline__ void pool_words(const WordVectors& known, const Words&, bool, CountItems& sink) {
    sink.items += known.dim;
}

template <typename Items, typename Sink>
static __device__ __forceinline__ void word_embedding(const WordVectors& known, const Row<Items>& words, bool mean,
                                                      Sink& sink) {
    pool_words(known, words, mean, sink);
}
template <typename Sink>
static __device__ __forceinline__ void word_embedding(const WordVectors& known, Str word, bool mean, Sink& sink) {
    pool_words(known, OneWord<Str>{word}, mean, sink);
}
template <typename Sink>
static __device__ __forceinline__ void word_embedding(const WordVectors& known, int64_t word, bool mean, Sink& sink) {
    pool_words(known, OneWord<int64_t>{word}, mean, sink);
}
