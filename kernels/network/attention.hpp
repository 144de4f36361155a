// DIN's activation unit over lists of vectors, forward and backward, on the host (models/attention.py has the
// equations). Before this file: Real, K, HIDDEN (how many hidden layers, at least 1) and WIDTHS[HIDDEN] =
// {H_1 … H_L}, constants of the compiler, so that every loop over a layer has a fixed length.
//
// The first layer is split by samples: with its blocks W_v, W_q, W_d, W_p a sample's query makes
//     own = W_v + W_d + q W_p    [K, H_1]          base = b_1 + q (W_q - W_d)    [H_1]
// so that [v, q, v - q, v q] W_1 + b_1 = base + v own. TILE vectors of a list go through all layers at once,
// their widths padded to whole vector registers. The backward pass computes the forward's sums again: that
// takes less time than their memory.
#pragma once
#include "runtime/threads.hpp"

namespace livectr::attention {

// A vector register: a compiler takes wider ones apart in memory, thirty times slower.
#ifdef __AVX512F__
constexpr int BYTES = 64, ROWS = 4;
#else
constexpr int BYTES = 32, ROWS = 8;
#endif
// ROWS: vectors of a tile in registers.
typedef Real Vec __attribute__((vector_size(BYTES), aligned(BYTES), may_alias));

constexpr int LANES = BYTES / sizeof(Real);
constexpr int TILE = 16;    // vectors of a list that pass the layers together
constexpr int BLOCKS = 64;  // chunks of samples whose gradients are summed apart, in order: the same bits

constexpr int padded(int width) { return (width + LANES - 1) / LANES * LANES; }
constexpr int FIRST = padded(WIDTHS[0]), VECTOR = padded(K), LAST = padded(WIDTHS[HIDDEN - 1]);

// Offset of the weights [H_l, padded H_{l+1}] of layer l ≥ 1, and of its units, among all layers'.
constexpr int weight_at(int l) {
    int at = 0;
    for (int i = 1; i < l; ++i) at += WIDTHS[i - 1] * padded(WIDTHS[i]);
    return at;
}
constexpr int turned_at(int l) {
    int at = 0;
    for (int i = 1; i < l; ++i) at += WIDTHS[i] * padded(WIDTHS[i - 1]);
    return at;
}
constexpr int unit_at(int l) {
    int at = 0;
    for (int i = 0; i < l; ++i) at += padded(WIDTHS[i]);
    return at;
}
constexpr int UNITS = unit_at(HIDDEN);

inline Vec load(const Real* at) { return *reinterpret_cast<const Vec*>(at); }
inline Vec& at(Real* where) { return *reinterpret_cast<Vec*>(where); }

// Horizontal sum of v: halves are exchanged and added, then quarters, and so on.
template <int HALF = LANES / 2, int... I>
inline Real total(Vec v, std::integer_sequence<int, I...> lanes) {
#ifdef __clang__
    v += __builtin_shufflevector(v, v, (I ^ HALF)...);
#else
    v += __builtin_shuffle(v, decltype(v > 0){(I ^ HALF)...});
#endif
    if constexpr (HALF > 1) return total<HALF / 2>(v, lanes);
    return v[0];
}

// out[r][o] += sum_i in[r][i] w[i][o], of rows of `stride` numbers and whole registers of out; r < rows,
// a multiple of ROWS.
template <int IN, int OUT>
inline void multiply(int rows, const Real* in, int stride, const Real* w, Real* out) {
    constexpr int N = OUT / LANES;
    for (int r = 0; r < rows; r += ROWS)
        for (int n = 0; n < N; ++n) {
            Vec sums[ROWS];
#pragma GCC unroll 8
            for (int p = 0; p < ROWS; ++p) sums[p] = load(out + (r + p) * OUT + n * LANES);
            for (int i = 0; i < IN; ++i) {
                const Vec weight = load(w + i * OUT + n * LANES);
#pragma GCC unroll 8
                for (int p = 0; p < ROWS; ++p) sums[p] += in[(r + p) * stride + i] * weight;
            }
#pragma GCC unroll 8
            for (int p = 0; p < ROWS; ++p) at(out + (r + p) * OUT + n * LANES) = sums[p];
        }
}

// w[i][o] += sum_r in[r][i] out[r][o]
template <int IN, int OUT>
inline void outer(int rows, const Real* in, int stride, const Real* out, Real* w) {
    for (int n = 0; n < OUT; n += LANES)
        for (int i = 0; i < IN; ++i) {
            Vec sum = load(w + i * OUT + n);
            for (int r = 0; r < rows; ++r) sum += in[r * stride + i] * load(out + r * OUT + n);
            at(w + i * OUT + n) = sum;
        }
}

// All parameters, or their gradients, padded with zeros.
struct alignas(64) Parameters {
    Real of_vector[K * FIRST], grad_query[K * FIRST], of_product[K * FIRST];  // W_v + W_d, W_q - W_d, W_p
    Real weights[HIDDEN > 1 ? weight_at(HIDDEN) : LANES];
    Real last[LAST];
    Real biases[UNITS], slopes[UNITS];
    Real last_bias;

    // call(flat number, mine) for all but the first layer's weights: W_2 … W_{L+1}, b_1 … b_{L+1}, slopes.
    template <typename Call>
    void each(Call&& call) {
        int64_t flat = 4 * K * WIDTHS[0];
        for (int l = 1; l < HIDDEN; ++l)
            for (int i = 0; i < WIDTHS[l - 1]; ++i)
                for (int o = 0; o < WIDTHS[l]; ++o)
                    call(flat++, weights[weight_at(l) + i * padded(WIDTHS[l]) + o]);
        for (int i = 0; i < WIDTHS[HIDDEN - 1]; ++i) call(flat++, last[i]);
        for (int l = 0; l < HIDDEN; ++l)
            for (int i = 0; i < WIDTHS[l]; ++i) call(flat++, biases[unit_at(l) + i]);
        call(flat++, last_bias);
        for (int l = 0; l < HIDDEN; ++l)
            for (int i = 0; i < WIDTHS[l]; ++i) call(flat++, slopes[unit_at(l) + i]);
    }

    int64_t count() {
        int64_t most = 0;
        each([&](int64_t flat, Real&) { most = flat + 1; });
        return most;
    }

    void read(const Real* p) {
        const Real *v = p, *q = v + K * WIDTHS[0], *d = q + K * WIDTHS[0], *product = d + K * WIDTHS[0];
        for (int k = 0; k < K; ++k)
            for (int h = 0; h < WIDTHS[0]; ++h) {
                const int from = k * WIDTHS[0] + h, to = k * FIRST + h;
                of_vector[to] = v[from] + d[from];
                grad_query[to] = q[from] - d[from];
                of_product[to] = product[from];
            }
        each([&](int64_t flat, Real& mine) { mine = p[flat]; });
    }

    void write_gradients(Real* p) {
        Real *v = p, *q = v + K * WIDTHS[0], *d = q + K * WIDTHS[0], *product = d + K * WIDTHS[0];
        for (int k = 0; k < K; ++k)
            for (int h = 0; h < WIDTHS[0]; ++h) {
                const int to = k * WIDTHS[0] + h, from = k * FIRST + h;
                v[to] = of_vector[from];
                q[to] = grad_query[from];
                d[to] = of_vector[from] - grad_query[from];
                product[to] = of_product[from];
            }
        each([&](int64_t flat, Real& mine) { p[flat] = mine; });
    }

    void add(const Parameters& other) {
        constexpr size_t reals = sizeof(Parameters) / sizeof(Real);
        const Real* from = reinterpret_cast<const Real*>(&other);
        Real* to = reinterpret_cast<Real*>(this);
        for (size_t i = 0; i < reals; ++i) to[i] += from[i];
    }
};

struct alignas(64) Unit : Parameters {
    Real turned[HIDDEN > 1 ? turned_at(HIDDEN) : LANES] = {};  // weights, transposed: [H_{l+1}, padded H_l]

    explicit Unit(const Real* p) : Parameters() {
        read(p);
        for (int l = 1; l < HIDDEN; ++l)
            for (int i = 0; i < WIDTHS[l - 1]; ++i)
                for (int o = 0; o < WIDTHS[l]; ++o)
                    turned[turned_at(l) + o * padded(WIDTHS[l - 1]) + i] =
                        weights[weight_at(l) + i * padded(WIDTHS[l]) + o];
    }
};

// First layer of a sample.
struct alignas(64) Own {
    Real w[K * FIRST], base[FIRST];

    Own(const Unit& unit, const Real* q) {
        std::copy(unit.biases, unit.biases + FIRST, base);
        for (int k = 0; k < K; ++k)
            for (int h = 0; h < FIRST; h += LANES) {
                const int i = k * FIRST + h;
                at(w + i) = load(unit.of_vector + i) + q[k] * load(unit.of_product + i);
                at(base + h) += q[k] * load(unit.grad_query + i);
            }
    }
};

// Tile of a list's vectors, and the results of the layers.
struct alignas(64) Tile {
    Real v[TILE * VECTOR] = {};                // zeros behind K and behind the last vector
    Real sums[TILE * UNITS], out[TILE * UNITS];  // of each layer, before and after PReLU
    Real a[TILE];
    int count, rows;  // vectors, and their number rounded up to ROWS

    void forward(const Unit& unit, const Own& own, const Real* values, int64_t left) {
        count = int(std::min<int64_t>(left, TILE));
        rows = (count + ROWS - 1) / ROWS * ROWS;
        for (int r = 0; r < rows; ++r)
            for (int k = 0; k < K; ++k) v[r * VECTOR + k] = r < count ? values[r * K + k] : Real(0);
        for (int r = 0; r < rows; ++r)
            for (int h = 0; h < FIRST; h += LANES) at(sums + r * FIRST + h) = load(own.base + h);
        multiply<K, FIRST>(rows, v, VECTOR, own.w, sums);
        layer<0>(unit);
    }

    template <int L>
    void layer(const Unit& unit) {
        constexpr int IN = padded(WIDTHS[L]);
        Real *const x = sums + TILE * unit_at(L), *const y = out + TILE * unit_at(L);
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < IN; i += LANES) {
                const Vec one = load(x + r * IN + i);
                at(y + r * IN + i) = one > 0 ? one : one * load(unit.slopes + unit_at(L) + i);
            }
        if constexpr (L + 1 < HIDDEN) {
            constexpr int OUT = padded(WIDTHS[L + 1]);
            Real* const next = sums + TILE * unit_at(L + 1);
            for (int r = 0; r < rows; ++r)
                for (int o = 0; o < OUT; o += LANES)
                    at(next + r * OUT + o) = load(unit.biases + unit_at(L + 1) + o);
            multiply<WIDTHS[L], OUT>(rows, y, IN, unit.weights + weight_at(L + 1), next);
            layer<L + 1>(unit);
        } else {
            for (int r = 0; r < rows; ++r) {
                Vec products = {};
                for (int i = 0; i < IN; i += LANES) products += load(y + r * IN + i) * load(unit.last + i);
                a[r] = unit.last_bias + total(products, std::make_integer_sequence<int, LANES>());
            }
        }
    }

    // below[rows, padded H_L]: gradients of layer L's outputs → gradients of layer 0's sums, in its own
    // `below`.
    template <int L>
    void backward(const Unit& unit, Real* below, Parameters& grads, Real* first) {
        constexpr int IN = padded(WIDTHS[L]);
        const Real* const x = sums + TILE * unit_at(L);
        Real *const of_slope = grads.slopes + unit_at(L), *const of_bias = grads.biases + unit_at(L);
        for (int i = 0; i < IN; i += LANES) {
            const Vec slope = load(unit.slopes + unit_at(L) + i);
            Vec slopes = {}, biases = {};
            for (int r = 0; r < rows; ++r) {
                const Vec one = load(x + r * IN + i), g = load(below + r * IN + i);
                slopes += one > 0 ? Vec{} : one * g;
                const Vec of_sum = one > 0 ? g : slope * g;
                biases += of_sum;
                at(below + r * IN + i) = of_sum;
            }
            at(of_slope + i) += slopes;
            at(of_bias + i) += biases;
        }
        if constexpr (L > 0) {
            constexpr int LOWER = padded(WIDTHS[L - 1]);
            outer<WIDTHS[L - 1], IN>(rows, out + TILE * unit_at(L - 1), LOWER, below,
                                     grads.weights + weight_at(L));
            alignas(64) Real lower[TILE * LOWER] = {};
            multiply<WIDTHS[L], LOWER>(rows, below, IN, unit.turned + turned_at(L), lower);
            backward<L - 1>(unit, lower, grads, first);
        } else {
            std::copy(below, below + rows * IN, first);
        }
    }
};

// List of sample b: vectors offsets[b] to offsets[b + 1].
inline void attend(const Real* p, const Real* values, const int64_t* offsets, const Real* query, int64_t samples,
                   Real* out) {
    const Unit unit(p);
    parallel_chunks(samples, 1 + samples / BLOCKS, [&](int64_t from, int64_t to) {
        Tile tile;
        for (int64_t b = from; b < to; ++b) {
            alignas(64) Real pooled[VECTOR] = {};
            const Own own(unit, query + b * K);
            const int64_t end = offsets[b + 1];
            for (int64_t i = offsets[b]; i < end; i += TILE) {
                tile.forward(unit, own, values + i * K, end - i);
                for (int r = 0; r < tile.count; ++r)
                    for (int k = 0; k < VECTOR; k += LANES)
                        at(pooled + k) += tile.a[r] * load(tile.v + r * VECTOR + k);
            }
            std::copy(pooled, pooled + K, out + b * K);
        }
    });
}

// Gradients of a chunk of samples: of values and query they are written, of parameters added.
inline void attend_back(const Unit& unit, const Real* values, const int64_t* offsets, const Real* query,
                        const Real* grad_out, int64_t from, int64_t to, Real* grad_values, Real* grad_query,
                        Parameters& grads) {
    Tile tile;
    for (int64_t b = from; b < to; ++b) {
        const Real* const q = query + b * K;
        const Own own(unit, q);
        alignas(64) Real g[VECTOR] = {}, turned[WIDTHS[0] * VECTOR] = {};
        alignas(64) Real of_own[K * FIRST] = {}, of_base[FIRST] = {};
        std::copy(grad_out + b * K, grad_out + (b + 1) * K, g);
        for (int k = 0; k < K; ++k)
            for (int h = 0; h < WIDTHS[0]; ++h) turned[h * VECTOR + k] = own.w[k * FIRST + h];
        for (int64_t i = offsets[b]; i < offsets[b + 1]; i += TILE) {
            tile.forward(unit, own, values + i * K, offsets[b + 1] - i);
            alignas(64) Real below[TILE * LAST], first[TILE * FIRST], of_v[TILE * VECTOR];
            for (int r = 0; r < tile.rows; ++r) {
                Real of_a = 0;
                for (int k = 0; k < K; ++k) of_a += g[k] * tile.v[r * VECTOR + k];
                for (int k = 0; k < VECTOR; k += LANES) at(of_v + r * VECTOR + k) = tile.a[r] * load(g + k);
                for (int h = 0; h < LAST; h += LANES) {
                    const Real* const out = tile.out + TILE * unit_at(HIDDEN - 1) + r * LAST + h;
                    at(grads.last + h) += of_a * load(out);
                    at(below + r * LAST + h) = of_a * load(unit.last + h);
                }
                grads.last_bias += of_a;
            }
            tile.backward<HIDDEN - 1>(unit, below, grads, first);
            for (int r = 0; r < tile.rows; ++r)
                for (int h = 0; h < FIRST; h += LANES) at(of_base + h) += load(first + r * FIRST + h);
            outer<K, FIRST>(tile.rows, tile.v, VECTOR, first, of_own);
            multiply<WIDTHS[0], VECTOR>(tile.rows, first, FIRST, turned, of_v);
            for (int r = 0; r < tile.count; ++r)
                std::copy(of_v + r * VECTOR, of_v + r * VECTOR + K, grad_values + (i + r) * K);
        }
        for (int k = 0; k < K; ++k) {
            Vec sums = {};
            for (int h = 0; h < FIRST; h += LANES) {
                const int j = k * FIRST + h;
                const Vec mine = load(of_own + j), base = load(of_base + h);
                at(grads.of_vector + j) += mine;
                at(grads.of_product + j) += q[k] * mine;
                at(grads.grad_query + j) += q[k] * base;
                sums += load(unit.of_product + j) * mine + load(unit.grad_query + j) * base;
            }
            Real sum = 0;
            for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
            grad_query[b * K + k] = sum;
        }
    }
}

}  // namespace livectr::attention

#include "network/attention_shared.hpp"

// Numbers of a unit: W_1 [4 K, H_1] … W_{L+1} [H_L, 1], b_1 … b_{L+1}, the slopes of H_1 … H_L.
extern "C" int64_t attention_parameters() {
    livectr::attention::Parameters any;
    return any.count();
}

// values [nnz, K], offsets i64[B + 1], query [B, K] → out [B, K]. Without offsets all of `values` is the list of every
// sample. False: no memory.
extern "C" bool attention_forward(const Real* p, const Real* values, int64_t vectors, const int64_t* offsets,
                                  const Real* query, int64_t samples, Real* out) try {
    if (offsets)
        livectr::attention::attend(p, values, offsets, query, samples, out);
    else
        livectr::attention::attend_shared(p, values, vectors, query, samples, out);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

// grad_out [B, K] → grad_values [nnz, K] of the vectors that are in lists, grad_query [B, K], grad_p. False: no memory.
extern "C" bool attention_backward(const Real* p, const Real* values, const int64_t* offsets,
                                   const Real* query, const Real* grad_out, int64_t samples, Real* grad_values,
                                   Real* grad_query, Real* grad_p) try {
    using namespace livectr::attention;
    const Unit unit(p);
    const int64_t grain = 1 + samples / BLOCKS;
    std::vector<Parameters> grads(size_t((samples + grain - 1) / grain));
    livectr::parallel_chunks(samples, grain, [&](int64_t from, int64_t to) {
        attend_back(unit, values, offsets, query, grad_out, from, to, grad_values, grad_query, grads[from / grain]);
    });
    Parameters sum = {};
    for (const Parameters& part : grads) sum.add(part);
    sum.write_gradients(grad_p);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}
