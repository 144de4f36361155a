// Host matrix products whose factors are rounded to bfloat16 and whose sums are float32.
//
// A pair of factors along K is a 32-bit word, which AVX512-BF16 multiplies and adds to a float32 at once; other
// CPUs do the same in two multiplications. B is packed into panels of NR columns, A by blocks of KC factors.
// A sum runs over K in order, whichever thread has its row: its bits depend neither on the number of threads
// nor on the rows beside it.
#pragma once
#include "runtime/threads.hpp"

#include <cstring>
#include <memory>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace livectr::bf16 {

typedef float Vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

constexpr int LANES = 16;
constexpr int MR = 12, NR = 2 * LANES;  // a tile of sums: 24 of 32 vector registers
constexpr int PAIRS = 128, KC = 2 * PAIRS;
constexpr int ROWS = 4 * MR;  // of A that are packed at once

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline uint32_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t near = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : near;
}
inline uint32_t rounded(uint16_t bits) { return bits; }

inline Vec dot(Vec sum, uint32_t a, Words b) {
#ifdef __AVX512BF16__
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#else
    const Words pair = Words{} + a;
    return sum + (Vec)(pair << 16) * (Vec)(b << 16) + (Vec)(pair & 0xFFFF0000) * (Vec)(b & 0xFFFF0000);
#endif
}

template <typename T>
struct Matrix {
    const T* data;
    int64_t row, column;  // strides in numbers

    const T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

// Packs columns [n, n + width) of B's rows [k, k + depth) → words[PAIRS][NR], zeros where B ends.
template <typename T>
void pack_panel(const Matrix<T>& b, int64_t k, int depth, int64_t n, int width, uint32_t* words) {
    for (int p = 0; p < (depth + 1) / 2; ++p) {
        uint32_t* const out = words + p * NR;
        const bool odd = 2 * p + 1 == depth;
        const T *low = &b.at(k + 2 * p, n), *high = odd ? low : low + b.row;
        const uint32_t mask = odd ? 0 : 0xFFFFFFFF;
        if (b.column == 1)
            for (int j = 0; j < width; ++j) out[j] = rounded(low[j]) | (rounded(high[j]) << 16 & mask);
        else
            for (int j = 0; j < width; ++j)
                out[j] = rounded(low[j * b.column]) | (rounded(high[j * b.column]) << 16 & mask);
        for (int j = width; j < NR; ++j) out[j] = 0;
    }
}

// Packs rows [m, m + height) of A, height ≤ ROWS → tiles of MR rows; a tile's word(r, p) is at r * ACROSS + p * ALONG.
// Rows that are adjacent in memory are packed side by side, other rows in turn.
template <int ACROSS, int ALONG, typename T>
void pack_rows(const Matrix<T>& a, int64_t m, int height, int64_t k, int depth, uint32_t (*tiles)[MR * PAIRS]) {
    const int pairs = (depth + 1) / 2;
    for (int r = height; r % MR; ++r)
        for (int p = 0; p < pairs; ++p) tiles[r / MR][r % MR * ACROSS + p * ALONG] = 0;
    if (ALONG == 1) {
        for (int r = 0; r < height; ++r) {
            const T* const from = &a.at(m + r, k);
            uint16_t* const out = reinterpret_cast<uint16_t*>(tiles[r / MR] + r % MR * ACROSS);
            if (a.column == 1)
                for (int i = 0; i < depth; ++i) out[i] = static_cast<uint16_t>(rounded(from[i]));
            else
                for (int i = 0; i < depth; ++i) out[i] = static_cast<uint16_t>(rounded(from[i * a.column]));
            if (depth % 2) out[depth] = 0;
        }
        return;
    }
    for (int p = 0; p < pairs; ++p) {
        const bool odd = 2 * p + 1 == depth;
        const T *low = &a.at(m, k + 2 * p), *high = odd ? low : low + a.column;
        const uint32_t mask = odd ? 0 : 0xFFFFFFFF;
        uint32_t words[ROWS];
        if (height == ROWS)
            for (int r = 0; r < ROWS; ++r) words[r] = rounded(low[r]) | (rounded(high[r]) << 16 & mask);
        else
            for (int r = 0; r < height; ++r) words[r] = rounded(low[r]) | (rounded(high[r]) << 16 & mask);
        for (int r = 0; r < height; r += MR)
            std::memcpy(tiles[r / MR] + p * ALONG, words + r, sizeof(uint32_t) * MR);
    }
}

// c[height, width] (+)= tile · panel
template <int ACROSS, int ALONG>
void multiply(const uint32_t* a, const uint32_t* b, int pairs, float* c, int64_t ldc, int height, int width,
              bool add) {
    Vec sums[MR][2] = {};
    for (int p = 0; p < pairs; ++p) {
        const Words left = *reinterpret_cast<const Words*>(b + p * NR);
        const Words right = *reinterpret_cast<const Words*>(b + p * NR + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const uint32_t word = a[r * ACROSS + p * ALONG];
            sums[r][0] = dot(sums[r][0], word, left);
            sums[r][1] = dot(sums[r][1], word, right);
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

template <int ACROSS, int ALONG, typename T>
void rows(const Matrix<T>& a, const uint32_t* panels, int64_t first, int64_t last, int64_t n, int64_t k, float* c,
          int64_t ldc, bool add) {
    alignas(64) uint32_t tiles[ROWS / MR][MR * PAIRS];
    const int64_t across = (n + NR - 1) / NR;
    for (int64_t at = 0; at < k; at += KC) {
        const int depth = static_cast<int>(std::min<int64_t>(KC, k - at)), pairs = (depth + 1) / 2;
        pack_rows<ACROSS, ALONG>(a, first, static_cast<int>(last - first), at, depth, tiles);
        for (int64_t j = 0; j < across; ++j) {
            const uint32_t* const panel = panels + (at / KC * across + j) * PAIRS * NR;
            const int width = static_cast<int>(std::min<int64_t>(NR, n - j * NR));
            for (int64_t m = first; m < last; m += MR)
                multiply<ACROSS, ALONG>(tiles[(m - first) / MR], panel, pairs, c + m * ldc + j * NR, ldc,
                                        static_cast<int>(std::min<int64_t>(MR, last - m)), width, add || at > 0);
        }
    }
}

template <typename T, typename U>
void product(const Matrix<T>& a, const Matrix<U>& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
             bool add) {
    const int64_t across = (n + NR - 1) / NR, blocks = (k + KC - 1) / KC;
    std::unique_ptr<uint32_t[]> panels(new uint32_t[across * blocks * PAIRS * NR]);
    parallel_for(across * blocks, [&](int64_t i) {
        const int64_t at = i / across * KC, column = i % across * NR;
        pack_panel(b, at, static_cast<int>(std::min<int64_t>(KC, k - at)), column,
                   static_cast<int>(std::min<int64_t>(NR, n - column)), &panels[i * PAIRS * NR]);
    });
    parallel_chunks(m, ROWS, [&](int64_t first, int64_t last) {
        if (a.row == 1)
            rows<1, MR>(a, panels.get(), first, last, n, k, c, ldc, add);
        else
            rows<PAIRS, 1>(a, panels.get(), first, last, n, k, c, ldc, add);
    });
}

}  // namespace livectr::bf16

// c f32[m, n] = a [m, k] · b f32[k, n], added to what c has where `add` is set; a is f32, or bf16 where `stored`.
// Strides are in numbers. Returns false without memory.
extern "C" bool bf16_product(const void* a, bool stored, int64_t a_row, int64_t a_column, const float* b,
                             int64_t b_row, int64_t b_column, int64_t m, int64_t n, int64_t k, float* c,
                             int64_t ldc, bool add) {
    using namespace livectr::bf16;
    const Matrix<float> right{b, b_row, b_column};
    try {
        if (stored)
            product(Matrix<uint16_t>{static_cast<const uint16_t*>(a), a_row, a_column}, right, m, n, k, c, ldc, add);
        else
            product(Matrix<float>{static_cast<const float*>(a), a_row, a_column}, right, m, n, k, c, ldc, add);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// True if this CPU multiplies bfloat16 in hardware.
extern "C" bool bf16_native() {
#ifdef __AVX512BF16__
    return true;
#else
    return false;
#endif
}
