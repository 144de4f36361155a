// Host matrix products of packed factors, with float32 sums: factors are float32, or rounded to bfloat16.
//
// Factors are packed as 32-bit words along K: a float32, or a pair of bfloat16, which AVX512-BF16 multiplies and adds
// to a float32 at once; other CPUs do the same in two multiplications. B is packed into panels of NR columns, A by
// blocks of WORDS words. A sum runs over K in order, whichever thread has its row: its bits depend neither on the
// number of threads nor on the rows beside it. A float32 product is fused with its addition on every CPU, so float32
// sums do not depend on the CPU either.
#pragma once
#include "runtime/threads.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace livectr::product {

// A tile of sums has MR rows of two vector registers: 24 of AVX-512's 32, or 12 of AVX2's 16.
#ifdef __AVX512F__
constexpr int LANES = 16, MR = 12;
#else
constexpr int LANES = 8, MR = 6;
#endif
constexpr int NR = 2 * LANES;
constexpr int ROWS = 48;  // of A that are packed at once; whole tiles

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline uint32_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t near = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : near;
}
inline uint32_t rounded(uint16_t bits) { return bits; }

// Words of two bfloat16 factors.
struct Pairs {
    static constexpr int EACH = 2, WORDS = 128;
    typedef uint16_t Factor;

    template <typename T>
    static Factor factor(T value) {
        return static_cast<Factor>(rounded(value));
    }
    template <typename T>
    static uint32_t word(T low, T high, uint32_t mask) {
        return rounded(low) | (rounded(high) << 16 & mask);
    }
    static Vec dot(Vec sum, uint32_t a, Words b) {
#ifdef __AVX512BF16__
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#else
        const Words pair = Words{} + a;
        return sum + (Vec)(pair << 16) * (Vec)(b << 16) + (Vec)(pair & 0xFFFF0000) * (Vec)(b & 0xFFFF0000);
#endif
    }
};

// Words of a float32 factor.
struct Singles {
    static constexpr int EACH = 1, WORDS = 256;
    typedef uint32_t Factor;

    static Factor factor(float value) {
        Factor bits;
        std::memcpy(&bits, &value, 4);
        return bits;
    }
    static uint32_t word(float low, float, uint32_t) { return factor(low); }
    static Vec dot(Vec sum, uint32_t a, Words b) {
        const Vec left = (Vec)(Words{} + a), right = (Vec)b;
#ifdef __AVX512F__
        return (Vec)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)sum);
#elif defined(__FMA__)
        return (Vec)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)sum);
#else
        for (int i = 0; i < LANES; ++i) sum[i] = std::fma(left[i], right[i], sum[i]);
        return sum;
#endif
    }
};

template <typename T>
struct Matrix {
    const T* data;
    int64_t row, column;  // strides in numbers

    const T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

// Packs columns [n, n + width) of B's rows [k, k + depth) → words[F::WORDS][NR], zeros where B ends.
template <typename F, typename T>
void pack_panel(const Matrix<T>& b, int64_t k, int depth, int64_t n, int width, uint32_t* words) {
    for (int p = 0; p < (depth + F::EACH - 1) / F::EACH; ++p) {
        uint32_t* const out = words + p * NR;
        const bool last = F::EACH * p + 1 == depth || F::EACH == 1;
        const T *low = &b.at(k + F::EACH * p, n), *high = last ? low : low + b.row;
        const uint32_t mask = last ? 0 : 0xFFFFFFFF;
        if (b.column == 1)
            for (int j = 0; j < width; ++j) out[j] = F::word(low[j], high[j], mask);
        else
            for (int j = 0; j < width; ++j) out[j] = F::word(low[j * b.column], high[j * b.column], mask);
        for (int j = width; j < NR; ++j) out[j] = 0;
    }
}

// Packs rows [m, m + height) of A, height ≤ ROWS → tiles of MR rows; a tile's word(r, p) is at r * ACROSS + p * ALONG.
// Rows that are adjacent in memory are packed side by side, other rows in turn.
template <typename F, int ACROSS, int ALONG, typename T>
void pack_rows(const Matrix<T>& a, int64_t m, int height, int64_t k, int depth, uint32_t (*tiles)[MR * F::WORDS]) {
    const int words = (depth + F::EACH - 1) / F::EACH;
    for (int r = height; r % MR; ++r)
        for (int p = 0; p < words; ++p) tiles[r / MR][r % MR * ACROSS + p * ALONG] = 0;
    if (ALONG == 1) {
        for (int r = 0; r < height; ++r) {
            const T* const from = &a.at(m + r, k);
            typename F::Factor* const out = reinterpret_cast<typename F::Factor*>(tiles[r / MR] + r % MR * ACROSS);
            if (a.column == 1)
                for (int i = 0; i < depth; ++i) out[i] = F::factor(from[i]);
            else
                for (int i = 0; i < depth; ++i) out[i] = F::factor(from[i * a.column]);
            if (depth % F::EACH) out[depth] = 0;
        }
        return;
    }
    for (int p = 0; p < words; ++p) {
        const bool last = F::EACH * p + 1 == depth || F::EACH == 1;
        const T *low = &a.at(m, k + F::EACH * p), *high = last ? low : low + a.column;
        const uint32_t mask = last ? 0 : 0xFFFFFFFF;
        uint32_t side[ROWS];
        if (height == ROWS)
            for (int r = 0; r < ROWS; ++r) side[r] = F::word(low[r], high[r], mask);
        else
            for (int r = 0; r < height; ++r) side[r] = F::word(low[r], high[r], mask);
        for (int r = 0; r < height; r += MR) std::memcpy(tiles[r / MR] + p * ALONG, side + r, sizeof(uint32_t) * MR);
    }
}

// c[height, width] (+)= tile · panel
template <typename F, int ACROSS, int ALONG>
void multiply(const uint32_t* a, const uint32_t* b, int words, float* c, int64_t ldc, int height, int width,
              bool add) {
    Vec sums[MR][2] = {};
    for (int p = 0; p < words; ++p) {
        const Words left = *reinterpret_cast<const Words*>(b + p * NR);
        const Words right = *reinterpret_cast<const Words*>(b + p * NR + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const uint32_t word = a[r * ACROSS + p * ALONG];
            sums[r][0] = F::dot(sums[r][0], word, left);
            sums[r][1] = F::dot(sums[r][1], word, right);
        }
    }
    if (height == MR && width == NR) {
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                Vec& out = *reinterpret_cast<Vec*>(c + r * ldc + h * LANES);
                out = add ? out + sums[r][h] : sums[r][h];
            }
        return;
    }
    float edge[MR][NR];
    std::memcpy(edge, sums, sizeof edge);
    for (int r = 0; r < height; ++r)
        for (int j = 0; j < width; ++j) c[r * ldc + j] = edge[r][j] + (add ? c[r * ldc + j] : 0);
}

template <typename F, int ACROSS, int ALONG, typename T>
void rows(const Matrix<T>& a, const uint32_t* panels, int64_t first, int64_t last, int64_t n, int64_t k, float* c,
          int64_t ldc, bool add) {
    alignas(64) uint32_t tiles[ROWS / MR][MR * F::WORDS];
    constexpr int KC = F::EACH * F::WORDS;
    const int64_t across = (n + NR - 1) / NR;
    for (int64_t at = 0; at < k; at += KC) {
        const int depth = static_cast<int>(std::min<int64_t>(KC, k - at)), words = (depth + F::EACH - 1) / F::EACH;
        pack_rows<F, ACROSS, ALONG>(a, first, static_cast<int>(last - first), at, depth, tiles);
        for (int64_t j = 0; j < across; ++j) {
            const uint32_t* const panel = panels + (at / KC * across + j) * F::WORDS * NR;
            const int width = static_cast<int>(std::min<int64_t>(NR, n - j * NR));
            for (int64_t m = first; m < last; m += MR)
                multiply<F, ACROSS, ALONG>(tiles[(m - first) / MR], panel, words, c + m * ldc + j * NR, ldc,
                                        static_cast<int>(std::min<int64_t>(MR, last - m)), width, add || at > 0);
        }
    }
}

template <typename F, typename T, typename U>
void product(const Matrix<T>& a, const Matrix<U>& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
             bool add) {
    constexpr int KC = F::EACH * F::WORDS;
    const int64_t across = (n + NR - 1) / NR, blocks = (k + KC - 1) / KC;
    std::unique_ptr<uint32_t[]> panels(new uint32_t[across * blocks * F::WORDS * NR]);
    parallel_for(across * blocks, [&](int64_t i) {
        const int64_t at = i / across * KC, column = i % across * NR;
        pack_panel<F>(b, at, static_cast<int>(std::min<int64_t>(KC, k - at)), column,
                   static_cast<int>(std::min<int64_t>(NR, n - column)), &panels[i * F::WORDS * NR]);
    });
    parallel_chunks(m, ROWS, [&](int64_t first, int64_t last) {
        if (a.row == 1)
            rows<F, 1, MR>(a, panels.get(), first, last, n, k, c, ldc, add);
        else
            rows<F, F::WORDS, 1>(a, panels.get(), first, last, n, k, c, ldc, add);
    });
}

}  // namespace livectr::product

// c f32[m, n] = a [m, k] · b f32[k, n], added to what c has where `add` is set; `kind` of the factors: 0 float32,
// 1 float32 that are rounded to bfloat16, 2 as 1 with a stored as bfloat16. Strides are in numbers. Returns false
// without memory.
extern "C" bool packed_product(int kind, const void* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                               int64_t b_column, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc, bool add) {
    using namespace livectr::product;
    const Matrix<float> left{static_cast<const float*>(a), a_row, a_column}, right{b, b_row, b_column};
    try {
        if (kind == 0)
            product<Singles>(left, right, m, n, k, c, ldc, add);
        else if (kind == 1)
            product<Pairs>(left, right, m, n, k, c, ldc, add);
        else
            product<Pairs>(Matrix<uint16_t>{static_cast<const uint16_t*>(a), a_row, a_column}, right, m, n, k, c, ldc,
                           add);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Instructions that this library is compiled for: 2 AVX512-BF16, 1 AVX-512, 0 neither.
extern "C" int packed_level() {
#if defined(__AVX512BF16__)
    return 2;
#elif defined(__AVX512F__)
    return 1;
#else
    return 0;
#endif
}
