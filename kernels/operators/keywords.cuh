// Aho–Corasick automaton of keywords (Efficient string matching, CACM 1975), built by kernels/operators/keywords.py.
#pragma once
#include "runtime/columns.cuh"

// A label is the byte that leads to a state, + 256 if a word ends there. Transitions are numbers 2 · state + (a word
// ends there). The first `dense` states, those of the shortest prefixes, have a row of 256 transitions; the
// children of any other stand side by side.
struct KeywordState {
    int32_t first;  // child, with its label at hand, since most states have one child
    uint16_t children;
    uint16_t label;
    int32_t fail;    // the longest proper suffix that is a state
    int32_t suffix;  // the longest proper suffix that is a word; 0: none
};

struct Keywords {
    const int32_t* rows;         // [dense, 256] transitions
    const KeywordState* states;  // [states]
    const uint16_t* labels;      // [states]
    const int32_t* words;        // [states] index of the word that the state is; -1: none
    int64_t dense;
};

static __device__ __forceinline__ int32_t keyword_step(const Keywords& k, int32_t state, uint8_t byte) {
    while (state >= k.dense) {
        const KeywordState from = k.states[state];
        if (from.children > 0 && uint8_t(from.label) == byte) return 2 * from.first + (from.label >> 8);
        ROLLED for (int32_t i = 1; i < from.children; ++i) {
            const uint16_t label = k.labels[from.first + i];
            if (uint8_t(label) == byte) return 2 * (from.first + i) + (label >> 8);
        }
        state = from.fail;
    }
    return k.rows[state * 256 + byte];
}

constexpr int32_t KEYWORDS_KEPT = 32;

// The smallest indexes above `above`, increasing, each once.
struct KeptWords {
    int32_t above, size;
    bool more;  // some had no place
    int32_t words[KEYWORDS_KEPT];

    __device__ inline void add(int32_t word) {
        if (word <= above) return;
        int32_t at = size;
        while (at > 0 && words[at - 1] > word) --at;
        if (at > 0 && words[at - 1] == word) return;
        more = more || size == KEYWORDS_KEPT;
        if (at == KEYWORDS_KEPT) return;
        size += size < KEYWORDS_KEPT;
        ROLLED for (int32_t i = size - 1; i > at; --i) words[i] = words[i - 1];
        words[at] = word;
    }
};

// Indexes of the words in s, increasing, each once. s is read once for every 32 different words in it.
template <typename Sink>
static __device__ inline void keywords(Str s, const Keywords& k, Sink& sink) {
    KeptWords kept;
    kept.above = -1;
    do {
        kept.size = 0;
        kept.more = false;
        int32_t state = 0;
        ROLLED for (int32_t i = 0; i < s.size; ++i) {
            const int32_t step = keyword_step(k, state, s.data[i]);
            state = step >> 1;
            if ((step & 1) == 0) continue;
            int32_t end = k.words[state] >= 0 ? state : k.states[state].suffix;
            for (; end != 0; end = k.states[end].suffix) kept.add(k.words[end]);
        }
        ROLLED for (int32_t i = 0; i < kept.size; ++i) sink.push(kept.words[i]);
        if (kept.size > 0) kept.above = kept.words[kept.size - 1];
    } while (kept.more);
}
