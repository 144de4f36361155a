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
#if defined(__AVX512F__) || defined(__FMA__) || defined(__F16C__)
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
constexpr int ROWS = 48;    // of A that are packed at once; whole tiles
constexpr int GROUP = 240;  // rows of a thread at a time, at most
constexpr int AHEAD = 8;    // rows of a turned A that are fetched ahead

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

// A stored float16.
struct Half {
    uint16_t bits;
};

inline float widened(Half half) {
#ifdef __F16C__
    return _cvtsh_ss(half.bits);
#else
    const uint32_t sign = uint32_t(half.bits & 0x8000) << 16, rest = half.bits & 0x7FFF;
    float value;
    uint32_t bits = rest << 13;  // with float16's exponent, 112 below that of a float32
    if (rest >= 0x7C00) {
        bits |= rest > 0x7C00 ? 0x7FC00000 : 0x7F800000;
        std::memcpy(&value, &bits, 4);
    } else {
        std::memcpy(&value, &bits, 4);
        value *= 0x1p112f;
    }
    return sign ? -value : value;
#endif
}

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
    static Factor factor(Half half) { return factor(widened(half)); }
    template <typename T>
    static uint32_t word(T low, T, uint32_t) {
        return factor(low);
    }
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

// Packs words of adjacent numbers, `low` with the `high` ones that share their words.
template <typename F, typename T>
void pack_words(const T* low, const T* high, uint32_t mask, int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) out[i] = F::word(low[i], high[i], mask);
}
#ifdef __F16C__
template <>
inline void pack_words<Singles, Half>(const Half* low, const Half* high, uint32_t mask, int count, uint32_t* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + i));
        _mm256_storeu_ps(reinterpret_cast<float*>(out + i), _mm256_cvtph_ps(halves));
    }
    for (; i < count; ++i) out[i] = Singles::word(low[i], high[i], mask);
}
#endif

// Packs factors of adjacent numbers.
template <typename F, typename T>
void pack_factors(const T* from, int count, typename F::Factor* out) {
    if constexpr (F::EACH == 1) pack_words<F>(from, from, 0, count, out);
    else
        for (int i = 0; i < count; ++i) out[i] = F::factor(from[i]);
}

// Packs columns [n, n + width) of B's rows [k, k + depth) → words[F::WORDS][NR], zeros where B ends.
template <typename F, typename T>
void pack_panel(const Matrix<T>& b, int64_t k, int depth, int64_t n, int width, uint32_t* words) {
    for (int p = 0; p < (depth + F::EACH - 1) / F::EACH; ++p) {
        uint32_t* const out = words + p * NR;
        const bool last = F::EACH * p + 1 == depth || F::EACH == 1;
        const T *low = &b.at(k + F::EACH * p, n), *high = last ? low : low + b.row;
        const uint32_t mask = last ? 0 : 0xFFFFFFFF;
        if (b.column == 1 && width == NR) pack_words<F>(low, high, mask, NR, out);
        else if (b.column == 1) pack_words<F>(low, high, mask, width, out);
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
            if (a.column == 1) pack_factors<F>(from, depth, out);
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
        for (int r = 0; r < height; r += 64 / sizeof(T)) __builtin_prefetch(low + AHEAD * a.column + r);
        if (height == ROWS) pack_words<F>(low, high, mask, ROWS, side);
        else pack_words<F>(low, high, mask, height, side);
        for (int r = 0; r < height; r += MR) std::memcpy(tiles[r / MR] + p * ALONG, side + r, sizeof(uint32_t) * MR);
    }
}

// c[height, width] (+)= tile · panel
template <typename F, int ACROSS, int ALONG>
void multiply(const uint32_t* a, const uint32_t* b, int words, float* c, int64_t ldc, int height, int width, bool add) {
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

// Rows [first, last) of the product, block by block of K: a block of panels stays in the cache for all the rows.
template <typename F, int ACROSS, int ALONG, typename T>
void rows(const Matrix<T>& a, const uint32_t* panels, int64_t first, int64_t last, int64_t n, int64_t k, float* c,
          int64_t ldc, bool add) {
    alignas(64) uint32_t tiles[ROWS / MR][MR * F::WORDS];
    constexpr int KC = F::EACH * F::WORDS;
    const int64_t across = (n + NR - 1) / NR;
    for (int64_t at = 0; at < k; at += KC) {
        const int depth = static_cast<int>(std::min<int64_t>(KC, k - at)), words = (depth + F::EACH - 1) / F::EACH;
        for (int64_t block = first; block < last; block += ROWS) {
            const int height = static_cast<int>(std::min<int64_t>(ROWS, last - block));
            pack_rows<F, ACROSS, ALONG>(a, block, height, at, depth, tiles);
            for (int64_t j = 0; j < across; ++j) {
                const uint32_t* const panel = panels + (at / KC * across + j) * F::WORDS * NR;
                const int width = static_cast<int>(std::min<int64_t>(NR, n - j * NR));
                for (int m = 0; m < height; m += MR)
                    multiply<F, ACROSS, ALONG>(tiles[m / MR], panel, words, c + (block + m) * ldc + j * NR, ldc,
                                               std::min(MR, height - m), width, add || at > 0);
            }
        }
    }
}

// Rows that a thread takes at a time: equal shares of whole tiles, of which the sums fit a cache.
inline int64_t share_of(int64_t m) {
    const int64_t threads = pool().size, shares = threads * ((m + GROUP * threads - 1) / (GROUP * threads));
    return ((m + shares - 1) / shares + MR - 1) / MR * MR;
}

// Packs all of B: for each block of K, panels of NR columns.
template <typename F, typename T>
std::unique_ptr<uint32_t[]> packed(const Matrix<T>& b, int64_t n, int64_t k) {
    constexpr int KC = F::EACH * F::WORDS;
    const int64_t across = (n + NR - 1) / NR, blocks = (k + KC - 1) / KC;
    std::unique_ptr<uint32_t[]> panels(new uint32_t[across * blocks * F::WORDS * NR]);
    parallel_for(across * blocks, [&](int64_t i) {
        const int64_t at = i / across * KC, column = i % across * NR;
        pack_panel<F>(b, at, static_cast<int>(std::min<int64_t>(KC, k - at)), column,
                      static_cast<int>(std::min<int64_t>(NR, n - column)), &panels[i * F::WORDS * NR]);
    });
    return panels;
}

// Rows [first, last) of the product of A and a packed B.
template <typename F, typename T>
void multiply_rows(const Matrix<T>& a, const uint32_t* panels, int64_t first, int64_t last, int64_t n, int64_t k,
                   float* c, int64_t ldc, bool add) {
    if (a.row == 1) rows<F, 1, MR>(a, panels, first, last, n, k, c, ldc, add);
    else rows<F, F::WORDS, 1>(a, panels, first, last, n, k, c, ldc, add);
}

// Factors of products that a caller chooses, if any.
enum Factors { NONE, FP32, BF16 };

// Calls body(factors) with the type of `kind`.
template <typename Body>
void with(int64_t kind, Body&& body) {
    if (kind == FP32) body(Singles{});
    if (kind == BF16) body(Pairs{});
}

template <typename F, typename T, typename U>
void product(const Matrix<T>& a, const Matrix<U>& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc, bool add) {
    const auto panels = packed<F>(b, n, k);
    parallel_chunks(m, share_of(m), [&](int64_t first, int64_t last) {
        multiply_rows<F>(a, panels.get(), first, last, n, k, c, ldc, add);
    });
}

}  // namespace livectr::product
