// Small products of which all sums stay in registers: lanes are vectors of a list. Before this file: Real.
#pragma once
#include "runtime/threads.hpp"

namespace livectr::attention {

// A vector register: a compiler takes wider ones apart in memory, thirty times slower.
#ifdef __AVX512F__
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
typedef Real Vec __attribute__((vector_size(BYTES), aligned(BYTES), may_alias));

constexpr int LANES = BYTES / sizeof(Real);
constexpr int REGISTERS = 4, TILE = REGISTERS * LANES;  // vectors of a list that pass the layers together

constexpr int padded(int width) { return (width + LANES - 1) / LANES * LANES; }

inline Vec load(const Real* at) { return *reinterpret_cast<const Vec*>(at); }
inline Vec& at(Real* where) { return *reinterpret_cast<Vec*>(where); }
inline Vec every(Real number) { return number - Vec{}; }  // in every lane

// Load that stays in a register: GCC reads a number again for every product that takes it from memory.
inline Vec kept(const Real* at) {
    Vec one = load(at);
#ifdef __AVX__
    asm("" : "+v"(one));
#endif
    return one;
}

// Sums stay in registers: of `at_once` units, or rows of weights, beside `count` registers that are read.
constexpr int at_once(int count) { return BYTES / 32 * 12 / count; }

#ifdef __clang__
#define LIVECTR_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LIVECTR_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a > 0){__VA_ARGS__})
#endif

// Horizontal sum of v: halves are exchanged and added, then quarters, and so on.
template <int HALF, int... I>
inline Real total(Vec v, std::integer_sequence<int, I...> lanes) {
    v += LIVECTR_SHUFFLE(v, v, (I ^ HALF)...);
    if constexpr (HALF > 1) return total<HALF / 2>(v, lanes);
    return v[0];
}
inline Real total(Vec v) { return total<LANES / 2>(v, std::make_integer_sequence<int, LANES>()); }

// Transposes a square of registers: blocks of 1 × 1 are exchanged, then of 2 × 2, and so on.
template <int STEP, int... I>
inline void transpose(Vec (&square)[LANES], std::integer_sequence<int, I...> lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
        if (i & STEP) continue;
        const Vec a = square[i], b = square[i + STEP];
        square[i] = LIVECTR_SHUFFLE(a, b, (I & STEP ? LANES + I - STEP : I)...);
        square[i + STEP] = LIVECTR_SHUFFLE(a, b, (I & STEP ? LANES + I : I + STEP)...);
    }
    if constexpr (2 * STEP < LANES) transpose<2 * STEP>(square, lanes);
}

// in[WIDTH][TILE] → rows[TILE][padded WIDTH], with zeros behind WIDTH.
template <int WIDTH>
inline void turn_units(int registers, const Real* in, Real* rows) {
    for (int r = 0; r < registers; ++r)
        for (int u = 0; u < WIDTH; u += LANES) {
            Vec square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                square[i] = u + i < WIDTH ? load(in + (u + i) * TILE + r * LANES) : Vec{};
            transpose<1>(square, std::make_integer_sequence<int, LANES>());
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) at(rows + (r * LANES + i) * padded(WIDTH) + u) = square[i];
        }
}

// done(o, r, begin(o, r) + sum_i in[i][r] w[i * BY_IN + o * BY_OUT]) of units o < UNITS and the registers r < COUNT,
// from unit `o` and register `from` on.
template <int COUNT, int UNITS, int IN, int BY_IN, int BY_OUT, typename Begin, typename Done>
[[gnu::noinline]] void sums_of(int o, int from, const Real* in, const Real* w, Begin begin, Done done) {
    Vec sums[UNITS][COUNT];
#pragma GCC unroll 24
    for (int u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) sums[u][r] = begin(o + u, from + r);
#pragma GCC unroll 1
    for (int i = 0; i < IN; ++i) {
        Vec given[COUNT];
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) given[r] = kept(in + i * TILE + (from + r) * LANES);
#pragma GCC unroll 24
        for (int u = 0; u < UNITS; ++u) {
            const Real weight = w[i * BY_IN + (o + u) * BY_OUT];
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) sums[u][r] += weight * given[r];
        }
    }
#pragma GCC unroll 24
    for (int u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) done(o + u, from + r, sums[u][r]);
}

// Equal parts of `total`, or one less, of at most `most`: the first of them.
constexpr int part(int total, int most) {
    const int parts = (total + most - 1) / most;
    return (total + parts - 1) / parts;
}

template <int COUNT, int IN, int OUT, int BY_IN, int BY_OUT, int O = 0, typename Begin, typename Done>
inline void of_all_units(int from, const Real* in, const Real* w, Begin& begin, Done& done) {
    constexpr int UNITS = part(OUT - O, at_once(COUNT));
    sums_of<COUNT, UNITS, IN, BY_IN, BY_OUT>(O, from, in, w, begin, done);
    if constexpr (O + UNITS < OUT) of_all_units<COUNT, IN, OUT, BY_IN, BY_OUT, O + UNITS>(from, in, w, begin, done);
}

// Product in[IN][TILE] by a matrix of OUT units, of the first registers; see `sums_of`.
template <int IN, int OUT, int BY_IN, int BY_OUT, typename Begin, typename Done>
inline void product(int registers, const Real* in, const Real* w, Begin begin, Done done) {
    int r = 0;
    if (registers % 2 && registers >= 3) {
        of_all_units<3, IN, OUT, BY_IN, BY_OUT>(0, in, w, begin, done);
        r = 3;
    }
    for (; r + 2 <= registers; r += 2) of_all_units<2, IN, OUT, BY_IN, BY_OUT>(r, in, w, begin, done);
    if (r < registers) of_all_units<1, IN, OUT, BY_IN, BY_OUT>(r, in, w, begin, done);
}

// w[i][o] += sum_r in[i][r] rows[r][o], of ROWS rows of w from i on and COUNT registers from o on.
template <int ROWS, int COUNT, int OUT>
[[gnu::noinline]] void add_outer(int count, int i, int o, const Real* in, const Real* rows, Real* w) {
    Vec sums[ROWS][COUNT];
#pragma GCC unroll 24
    for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
        for (int n = 0; n < COUNT; ++n) sums[p][n] = load(w + (i + p) * OUT + o + n * LANES);
#pragma GCC unroll 1
    for (int r = 0; r < count; ++r) {
        Vec given[COUNT];
#pragma GCC unroll 2
        for (int n = 0; n < COUNT; ++n) given[n] = kept(rows + r * OUT + o + n * LANES);
#pragma GCC unroll 24
        for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
            for (int n = 0; n < COUNT; ++n) sums[p][n] += in[(i + p) * TILE + r] * given[n];
    }
#pragma GCC unroll 24
    for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
        for (int n = 0; n < COUNT; ++n) at(w + (i + p) * OUT + o + n * LANES) = sums[p][n];
}

template <int COUNT, int IN, int OUT, int I = 0>
inline void outer_columns(int count, int o, const Real* in, const Real* rows, Real* w) {
    constexpr int ROWS = part(IN - I, at_once(COUNT));
    add_outer<ROWS, COUNT, OUT>(count, I, o, in, rows, w);
    if constexpr (I + ROWS < IN) outer_columns<COUNT, IN, OUT, I + ROWS>(count, o, in, rows, w);
}

// w[IN][OUT] += in[IN][TILE] rows[TILE][OUT], of the first `count` vectors of a tile.
template <int IN, int OUT>
inline void outer(int count, const Real* in, const Real* rows, Real* w) {
    int o = 0;
    for (; o + 2 * LANES <= OUT; o += 2 * LANES) outer_columns<2, IN, OUT>(count, o, in, rows, w);
    if constexpr (OUT / LANES % 2) outer_columns<1, IN, OUT>(count, o, in, rows, w);
}

}  // namespace livectr::attention
