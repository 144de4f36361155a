// DIN's activation unit where all samples read one list, as the candidates of a request read the user's. Included by
// network/attention.hpp, whose general path has the same bits: every sum has its terms in the same order.
//
// The list is turned once: a register holds one number of LANES vectors, so that its sums need no turning for each
// sample, and the weights are the same for all lanes.
#pragma once

namespace livectr::attention {

constexpr int REGISTERS = 2;                   // of vectors that pass the layers together
constexpr int GROUP = REGISTERS * LANES;
constexpr int AT_ONCE = BYTES / 8;             // units whose sums stay in registers; divides every padded width

// Vectors of a list: turned [K, GROUP] for the layers, and in rows [GROUP, VECTOR] for the sum; zeros behind the last.
struct alignas(64) Group {
    Real turned[K * GROUP] = {}, rows[GROUP * VECTOR] = {};
    int count;

    Group(const Real* values, int64_t left) : count(int(std::min<int64_t>(left, GROUP))) {
        for (int r = 0; r < count; ++r)
            for (int k = 0; k < K; ++k) turned[k * GROUP + r] = rows[r * VECTOR + k] = values[r * K + k];
    }
};

// Results of the layers for a group: of unit u at y[u][GROUP].
struct alignas(64) SharedTile {
    Real y[UNITS * GROUP] = {}, a[GROUP];

    void forward(const Unit& unit, const Own& own, const Group& group) {
        units<K, WIDTHS[0]>(group.turned, own.w, own.base, unit.slopes, y);
        layer<1>(unit);
        weights(unit);
    }

    template <int L>
    void layer(const Unit& unit) {
        if constexpr (L < HIDDEN) {
            units<WIDTHS[L - 1], WIDTHS[L]>(y + GROUP * unit_at(L - 1), unit.weights + weight_at(L),
                                            unit.biases + unit_at(L), unit.slopes + unit_at(L), y + GROUP * unit_at(L));
            layer<L + 1>(unit);
        }
    }

    // out[o] = PReLU(bias[o] + sum_i in[i] w[i][o])
    template <int IN, int OUT>
    static void units(const Real* in, const Real* w, const Real* bias, const Real* slopes, Real* out) {
        for (int o = 0; o < OUT; o += AT_ONCE) {
            Vec sums[AT_ONCE][REGISTERS];
#pragma GCC unroll 8
            for (int u = 0; u < AT_ONCE; ++u)
                for (int p = 0; p < REGISTERS; ++p) sums[u][p] = Vec{} + bias[o + u];
            for (int i = 0; i < IN; ++i) {
                const Vec left = load(in + i * GROUP), right = load(in + i * GROUP + LANES);
                const Real* const weights = w + i * padded(OUT) + o;
#pragma GCC unroll 8
                for (int u = 0; u < AT_ONCE; ++u) {
                    sums[u][0] += weights[u] * left;
                    sums[u][1] += weights[u] * right;
                }
            }
#pragma GCC unroll 8
            for (int u = 0; u < AT_ONCE; ++u)
                for (int p = 0; p < REGISTERS; ++p)
                    at(out + (o + u) * GROUP + p * LANES) =
                        sums[u][p] > 0 ? sums[u][p] : sums[u][p] * (Vec{} + slopes[o + u]);
        }
    }

    // a: the last layer; halves of its products are added, then quarters, as `total` does.
    void weights(const Unit& unit) {
        for (int p = 0; p < REGISTERS; ++p) {
            const Real* const in = y + GROUP * unit_at(HIDDEN - 1) + p * LANES;
            Vec products[LANES];
#pragma GCC unroll 16
            for (int l = 0; l < LANES; ++l) {
                products[l] = Vec{};  // a plain product could be fused with a sum of the tree
                for (int i = l; i < LAST; i += LANES) products[l] += load(in + i * GROUP) * unit.last[i];
            }
#pragma GCC unroll 4
            for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
                for (int l = 0; l < half; ++l) products[l] += products[l + half];
            at(a + p * LANES) = unit.last_bias + products[0];
        }
    }
};

inline void attend_shared(const Real* p, const Real* values, int64_t length, const Real* query, int64_t samples,
                          Real* out) {
    const Unit unit(p);
    std::vector<Group> groups;
    for (int64_t i = 0; i < length; i += GROUP) groups.emplace_back(values + i * K, length - i);
    parallel_chunks(samples, 1 + samples / BLOCKS, [&](int64_t from, int64_t to) {
        SharedTile tile;
        for (int64_t b = from; b < to; ++b) {
            alignas(64) Real pooled[VECTOR] = {};
            const Own own(unit, query + b * K);
            for (const Group& group : groups) {
                tile.forward(unit, own, group);
                for (int r = 0; r < group.count; ++r)
                    for (int k = 0; k < VECTOR; k += LANES)
                        at(pooled + k) += tile.a[r] * load(group.rows + r * VECTOR + k);
            }
            std::copy(pooled, pooled + K, out + b * K);
        }
    });
}

}  // namespace livectr::attention
