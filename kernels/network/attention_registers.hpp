// Small products of which all sums stay in registers: lanes are vectors of a list. Sizes are run-time values; only the
// numbers of registers that a loop holds are constants of the compiler, and tables choose among them.
#pragma once
#include "runtime/threads.hpp"

#include <utility>

namespace livectr::attention {

// A vector register: a compiler takes wider ones apart in memory, thirty times slower.
#ifdef __AVX512F__
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
constexpr int REGISTERS = 4;  // of a tile: vectors of a list that pass the layers together

// Sums stay in registers: of `at_once` units, or rows of weights, beside `count` registers that are read.
constexpr int at_once(int count) { return BYTES / 32 * 12 / count; }

#ifdef __clang__
#define LIVECTR_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LIVECTR_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a > 0){__VA_ARGS__})
#endif

// Equal parts of `total`, or one less, of at most `most` each; the longer ones first.
struct Parts {
    int64_t count, size, longer;

    Parts(int64_t total, int64_t most) : count(1), size(total), longer(0) {
        if (total <= most) return;
        count = (total + most - 1) / most;
        size = total / count;
        longer = total % count;
    }
    int64_t of(int64_t i) const { return size + (i < longer); }
};

template <typename Real>
struct Registers {
    typedef Real Vec __attribute__((vector_size(BYTES), aligned(BYTES), may_alias));

    static constexpr int LANES = BYTES / int(sizeof(Real));
    static constexpr int TILE = REGISTERS * LANES;

    static constexpr int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

    static Vec load(const Real* at) { return *reinterpret_cast<const Vec*>(at); }
    static Vec& at(Real* where) { return *reinterpret_cast<Vec*>(where); }
    static Vec every(Real number) { return number - Vec{}; }  // in every lane

    // Load that stays in a register: GCC reads a number again for every product that takes it from memory.
    static Vec kept(const Real* at) {
        Vec one = load(at);
#ifdef __AVX__
        asm("" : "+v"(one));
#endif
        return one;
    }

    // Horizontal sum of v: halves are exchanged and added, then quarters, and so on.
    template <int HALF, int... I>
    static Real total(Vec v, std::integer_sequence<int, I...> lanes) {
        v += LIVECTR_SHUFFLE(v, v, (I ^ HALF)...);
        if constexpr (HALF > 1) return total<HALF / 2>(v, lanes);
        return v[0];
    }
    static Real total(Vec v) { return total<LANES / 2>(v, std::make_integer_sequence<int, LANES>()); }

    // Horizontal sums of all registers of a square, as `total` makes them: that of square[i] in lane i of square[0].
    template <int HALF, int... I>
    static void totals(Vec (&square)[LANES], std::integer_sequence<int, I...> lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < HALF; ++i) {
            const Vec a = square[i], b = square[i + HALF];
            square[i] = LIVECTR_SHUFFLE(a, b, (I & HALF ? LANES + I - HALF : I)...) +
                        LIVECTR_SHUFFLE(a, b, (I & HALF ? LANES + I : I + HALF)...);
        }
        if constexpr (HALF > 1) totals<HALF / 2>(square, lanes);
    }

    // Horizontal sums of in[LANES][LANES], one in a lane.
    static Vec totals(const Real* in) {
        Vec square[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) square[i] = load(in + i * LANES);
        totals<LANES / 2>(square, std::make_integer_sequence<int, LANES>());
        return square[0];
    }

    // Copies the first `count` lanes, at most all, to any address: a piece of COUNT lanes, then half of it, and so on.
    template <int COUNT = LANES>
    static void store(const Vec& v, int64_t count, Real* to, int from = 0) {
        if (count >= COUNT) {
            std::memcpy(to + from, reinterpret_cast<const Real*>(&v) + from, COUNT * sizeof(Real));
            count -= COUNT, from += COUNT;
        }
        if constexpr (COUNT > 1)
            if (count > 0) store<COUNT / 2>(v, count, to, from);
    }

    // Transposes a square of SIDE vectors of SIDE numbers: blocks of 1 × 1 are exchanged, then of 2 × 2, and so on.
    template <int STEP, typename Row, int SIDE, int... I>
    static void turn_square(Row (&square)[SIDE], std::integer_sequence<int, I...> lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < SIDE; ++i) {
            if (i & STEP) continue;
            const Row a = square[i], b = square[i + STEP];
            square[i] = LIVECTR_SHUFFLE(a, b, (I & STEP ? SIDE + I - STEP : I)...);
            square[i + STEP] = LIVECTR_SHUFFLE(a, b, (I & STEP ? SIDE + I : I + STEP)...);
        }
        if constexpr (2 * STEP < SIDE) turn_square<2 * STEP>(square, lanes);
    }

    // Transposes from[rows][columns] to to[columns][rows], rows `stride` and `to_stride` apart: in squares of at most
    // 32 bytes a side, then number by number.
    template <int SIDE = 32 / sizeof(Real)>
    static void transpose(const Real* from, int64_t stride, int64_t rows, int64_t columns, Real* to,
                          int64_t to_stride) {
        if constexpr (SIDE < 4) {
            if (rows < columns) {
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * stride + c];
            } else {
                for (int64_t c = 0; c < columns; ++c)
                    for (int64_t r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * stride + c];
            }
        } else {
            typedef Real Row __attribute__((vector_size(SIDE * sizeof(Real))));
            const int64_t high = rows / SIDE * SIDE, wide = columns / SIDE * SIDE;
            for (int64_t r = 0; r < high; r += SIDE)
                for (int64_t c = 0; c < wide; c += SIDE) {
                    Row square[SIDE];
#pragma GCC unroll 8
                    for (int i = 0; i < SIDE; ++i) std::memcpy(&square[i], from + (r + i) * stride + c, sizeof(Row));
                    turn_square<1>(square, std::make_integer_sequence<int, SIDE>());
#pragma GCC unroll 8
                    for (int i = 0; i < SIDE; ++i) std::memcpy(to + (c + i) * to_stride + r, &square[i], sizeof(Row));
                }
            if (wide < columns)
                transpose<SIDE / 2>(from + wide, stride, high, columns - wide, to + wide * to_stride, to_stride);
            if (high < rows)
                transpose<SIDE / 2>(from + high * stride, stride, rows - high, columns, to + high, to_stride);
        }
    }

    // in[width][TILE] → rows[TILE][width], of the first registers; width is padded.
    static void turn_units(int registers, int64_t width, const Real* in, Real* rows) {
        for (int r = 0; r < registers; ++r)
            for (int64_t u = 0; u < width; u += LANES) {
                Vec square[LANES];
#pragma GCC unroll 16
                for (int i = 0; i < LANES; ++i) square[i] = load(in + (u + i) * TILE + r * LANES);
                turn_square<1>(square, std::make_integer_sequence<int, LANES>());
#pragma GCC unroll 16
                for (int i = 0; i < LANES; ++i) at(rows + (r * LANES + i) * width + u) = square[i];
            }
    }

    // Parts of outputs, or of rows of weights, beside 1, 2 or 3 registers that are read.
    struct Cut {
        Parts beside[3];

        explicit Cut(int64_t total) : beside{{total, at_once(1)}, {total, at_once(2)}, {total, at_once(3)}} {}
        const Parts& parts(int count) const { return beside[count - 1]; }
    };

    // Product of in[inputs][TILE] by w[inputs][outputs], rows of w `stride` apart.
    struct Product {
        const Real *in, *w;
        int64_t inputs, stride;
        const Cut* outputs;
    };

    // Sums begin(o, r) + sum_i in[i][r] w[i][o] of UNITS outputs from `first` and COUNT registers from `from`. Those
    // of an output go to done(o, sums). Both count from the place of `ends.at`.
    template <int COUNT, int UNITS, typename Ends>
    [[gnu::noinline]] static void sums_of(const Product& product, int64_t first, int from, const Ends& given_ends) {
        const Ends ends = given_ends.at(first, from);
        Vec sums[UNITS][COUNT];
#pragma GCC unroll 24
        for (int u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) sums[u][r] = ends.begin(u, r);
        const Real *in = product.in + from * LANES, *w = product.w + first;
        const int64_t stride = product.stride;
#pragma GCC unroll 1
        for (int64_t i = product.inputs; i > 0; --i, in += TILE, w += stride) {
            Vec given[COUNT];
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) given[r] = kept(in + r * LANES);
#pragma GCC unroll 24
            for (int u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
                for (int r = 0; r < COUNT; ++r) sums[u][r] += w[u] * given[r];
        }
#pragma GCC unroll 24
        for (int u = 0; u < UNITS; ++u) ends.done(u, sums[u]);
    }

    template <int COUNT, typename Ends, int... U>
    static void of_all_units(const Product& product, int from, const Ends& ends, std::integer_sequence<int, U...>) {
        using Sums = void (*)(const Product&, int64_t, int, const Ends&);
        static constexpr Sums of_units[] = {sums_of<COUNT, U + 1, Ends>...};
        const Parts parts = product.outputs->parts(COUNT);
        int64_t first = 0;
        for (int64_t i = 0; i < parts.count; first += parts.of(i++))
            of_units[parts.of(i) - 1](product, first, from, ends);
    }
    template <int COUNT, typename Ends>
    static void of_all_units(const Product& product, int from, const Ends& ends) {
        of_all_units<COUNT>(product, from, ends, std::make_integer_sequence<int, at_once(COUNT)>());
    }

    // A product of the first registers of a tile; see `sums_of`.
    template <typename Ends>
    static void multiply(int registers, const Product& product, const Ends& ends) {
        int r = 0;
        if (registers % 2 && registers >= 3) {
            of_all_units<3>(product, 0, ends);
            r = 3;
        }
        for (; r + 2 <= registers; r += 2) of_all_units<2>(product, r, ends);
        if (r < registers) of_all_units<1>(product, r, ends);
    }

    // w[i][o] += sum_r in[i][r] rows[r][o], of ROWS rows of w and COUNT registers; rows of `rows` and w `stride` apart.
    template <int ROWS, int COUNT>
    [[gnu::noinline]] static void add_outer(int count, const Real* in, const Real* rows, Real* w, int64_t stride) {
        Vec sums[ROWS][COUNT];
#pragma GCC unroll 24
        for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
            for (int n = 0; n < COUNT; ++n) sums[p][n] = load(w + p * stride + n * LANES);
#pragma GCC unroll 1
        for (int r = count; r > 0; --r, ++in, rows += stride) {
            Vec given[COUNT];
#pragma GCC unroll 2
            for (int n = 0; n < COUNT; ++n) given[n] = kept(rows + n * LANES);
#pragma GCC unroll 24
            for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
                for (int n = 0; n < COUNT; ++n) sums[p][n] += in[p * TILE] * given[n];
        }
#pragma GCC unroll 24
        for (int p = 0; p < ROWS; ++p)
#pragma GCC unroll 2
            for (int n = 0; n < COUNT; ++n) at(w + p * stride + n * LANES) = sums[p][n];
    }

    template <int COUNT, int... P>
    static void outer_columns(int count, const Cut& inputs, const Real* in, const Real* rows, Real* w, int64_t stride,
                              std::integer_sequence<int, P...>) {
        using Outer = void (*)(int, const Real*, const Real*, Real*, int64_t);
        static constexpr Outer of_rows[] = {add_outer<P + 1, COUNT>...};
        const Parts parts = inputs.parts(COUNT);
        int64_t first = 0;
        for (int64_t i = 0; i < parts.count; first += parts.of(i++))
            of_rows[parts.of(i) - 1](count, in + first * TILE, rows, w + first * stride, stride);
    }

    // w[inputs][width] += in[inputs][TILE] rows[TILE][width], of the first `count` vectors; width is padded.
    static void outer(int count, const Cut& inputs, int64_t width, const Real* in, const Real* rows, Real* w) {
        int64_t o = 0;
        for (; o + 2 * LANES <= width; o += 2 * LANES)
            outer_columns<2>(count, inputs, in, rows + o, w + o, width, std::make_integer_sequence<int, at_once(2)>());
        if (o < width)
            outer_columns<1>(count, inputs, in, rows + o, w + o, width, std::make_integer_sequence<int, at_once(1)>());
    }
};

}  // namespace livectr::attention
