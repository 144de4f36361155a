// Parameters of an activation unit, and its layers over a tile of vectors. Included by network/attention.hpp.
#pragma once
#include "network/attention_registers.hpp"

namespace livectr::attention {

constexpr int BLOCKS = 64;  // chunks of samples whose gradients are summed apart, in order: the same bits

constexpr int FIRST = padded(WIDTHS[0]), LAST = padded(WIDTHS[HIDDEN - 1]);

// Offset of the weights [H_l, padded H_{l+1}] of layer l ≥ 1, and of its units, among all layers'.
constexpr int weight_at(int l) {
    int at = 0;
    for (int i = 1; i < l; ++i) at += WIDTHS[i - 1] * padded(WIDTHS[i]);
    return at;
}
constexpr int unit_at(int l) {
    int at = 0;
    for (int i = 0; i < l; ++i) at += padded(WIDTHS[i]);
    return at;
}
constexpr int UNITS = unit_at(HIDDEN);

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
    explicit Unit(const Real* p) : Parameters() { read(p); }
};

// First layer of a sample.
struct alignas(64) Own {
    Real w[K * FIRST], base[FIRST];

    Own(const Unit& unit, const Real* q) {
        for (int h = 0; h < FIRST; h += LANES) {
            Vec sum = load(unit.biases + h);
            for (int k = 0; k < K; ++k) {
                const int i = k * FIRST + h;
                at(w + i) = load(unit.of_vector + i) + q[k] * load(unit.of_product + i);
                sum += q[k] * load(unit.grad_query + i);
            }
            at(base + h) = sum;
        }
    }
};

// Gradients of a sample's first layer.
struct alignas(64) OfOwn {
    Real w[K * FIRST] = {}, base[FIRST] = {};
};

// Vectors of a list, or their gradients: number k of vector r at v[k][r]; zeros behind the last vector.
struct alignas(64) Turned {
    Real v[K * TILE] = {};
    int count = 0, registers = 0;

    Vec number(int k, int r) const { return load(v + k * TILE + r * LANES); }

    void fill(const Real* values) {
        for (int r = 0; r < count; ++r)
            for (int k = 0; k < K; ++k) v[k * TILE + r] = values[r * K + k];
        for (int k = 0; k < K; ++k) std::fill(v + k * TILE + count, v + (k + 1) * TILE, Real(0));
    }
};

// Gradients of parameters that every lane adds apart, over all samples of a chunk.
struct alignas(64) Lanes {
    Vec slopes[UNITS] = {}, biases[UNITS] = {}, last[LAST] = {}, last_bias = {};

    void add_to(Parameters& grads) const {
        for (int u = 0; u < UNITS; ++u) {
            grads.slopes[u] += total(slopes[u]);
            grads.biases[u] += total(biases[u]);
        }
        for (int i = 0; i < LAST; ++i) grads.last[i] += total(last[i]);
        grads.last_bias += total(last_bias);
    }
};

// Results of the layers for a tile: of unit u, before PReLU at sums[u][TILE], after it at out[u][TILE].
struct alignas(64) Layers {
    Real sums[UNITS * TILE], out[UNITS * TILE];
    Vec a[REGISTERS];

    // KEEP: `sums` are written, for `backward`.
    template <bool KEEP>
    void forward(const Unit& unit, const Own& own, const Turned& tile) {
        layer<KEEP, 0, K, FIRST>(tile.registers, tile.v, own.w, own.base, unit);
        for (int r = 0; r < tile.registers; ++r) {
            Vec sum = every(unit.last_bias);
            for (int i = 0; i < WIDTHS[HIDDEN - 1]; ++i)
                sum += unit.last[i] * load(out + (unit_at(HIDDEN - 1) + i) * TILE + r * LANES);
            a[r] = sum;
        }
    }

    template <bool KEEP, int L, int IN, int STRIDE>
    void layer(int registers, const Real* in, const Real* w, const Real* bias, const Unit& unit) {
        Real *const x = sums + TILE * unit_at(L), *const y = out + TILE * unit_at(L);
        const Real* const slopes = unit.slopes + unit_at(L);
        product<IN, WIDTHS[L], STRIDE, 1>(
            registers, in, w, [=](int o, int) { return every(bias[o]); },
            [=](int o, int r, Vec sum) {
                if constexpr (KEEP) at(x + o * TILE + r * LANES) = sum;
                at(y + o * TILE + r * LANES) = sum > 0 ? sum : sum * slopes[o];
            });
        if constexpr (L + 1 < HIDDEN)
            layer<KEEP, L + 1, WIDTHS[L], padded(WIDTHS[L + 1])>(
                registers, y, unit.weights + weight_at(L + 1), unit.biases + unit_at(L + 1), unit);
    }

    // Gradients of a tile, with g[K] of the sample's result; added to all sums.
    void backward(const Unit& unit, const Own& own, const Turned& tile, const Real* g, OfOwn& of_own,
                  Turned& of_values, Parameters& grads, Lanes& lanes) {
        alignas(64) Real below[LAST * TILE];
        for (int r = 0; r < tile.registers; ++r) {
            Vec of_a = {};
            for (int k = 0; k < K; ++k) {
                of_a += g[k] * tile.number(k, r);
                at(of_values.v + k * TILE + r * LANES) += a[r] * g[k];
            }
            lanes.last_bias += of_a;
            for (int i = 0; i < WIDTHS[HIDDEN - 1]; ++i) {
                const int u = unit_at(HIDDEN - 1) + i;
                lanes.last[i] += of_a * load(out + u * TILE + r * LANES);
                prelu<HIDDEN - 1>(unit, i, r, of_a * unit.last[i], below, lanes);
            }
        }
        lower<HIDDEN - 1>(unit, own, tile, below, of_own, of_values, grads, lanes);
    }

    // Gradient of the output of unit i of layer L → of its sum, at below[i].
    template <int L>
    void prelu(const Unit& unit, int i, int r, Vec grad, Real* below, Lanes& lanes) const {
        const int u = unit_at(L) + i;
        const Vec sum = load(sums + u * TILE + r * LANES);
        const Vec of_sum = sum > 0 ? grad : grad * unit.slopes[u];
        lanes.slopes[u] += sum > 0 ? Vec{} : sum * grad;
        if constexpr (L > 0) lanes.biases[u] += of_sum;
        at(below + i * TILE + r * LANES) = of_sum;
    }

    // below[H_L][TILE]: gradients of the sums of layer L → of its weights and of what is below it.
    template <int L>
    void lower(const Unit& unit, const Own& own, const Turned& tile, const Real* below, OfOwn& of_own,
               Turned& of_values, Parameters& grads, Lanes& lanes) const {
        constexpr int OUT = padded(WIDTHS[L]);
        alignas(64) Real rows[TILE * OUT];
        turn_units<WIDTHS[L]>(tile.registers, below, rows);
        const int count = tile.registers * LANES;
        if constexpr (L > 0) {
            constexpr int IN = WIDTHS[L - 1];
            outer<IN, OUT>(count, out + TILE * unit_at(L - 1), rows, grads.weights + weight_at(L));
            alignas(64) Real next[IN * TILE];
            product<WIDTHS[L], IN, 1, OUT>(
                tile.registers, below, unit.weights + weight_at(L), [](int, int) { return Vec{}; },
                [&](int i, int r, Vec grad) { prelu<L - 1>(unit, i, r, grad, next, lanes); });
            lower<L - 1>(unit, own, tile, next, of_own, of_values, grads, lanes);
        } else {
            outer<K, FIRST>(count, tile.v, rows, of_own.w);
            for (int h = 0; h < FIRST; h += LANES) {
                Vec sum = load(of_own.base + h);
                for (int r = 0; r < count; ++r) sum += load(rows + r * FIRST + h);
                at(of_own.base + h) = sum;
            }
            Real* const v = of_values.v;
            product<WIDTHS[0], K, 1, FIRST>(
                tile.registers, below, own.w, [=](int k, int r) { return load(v + k * TILE + r * LANES); },
                [=](int k, int r, Vec sum) { at(v + k * TILE + r * LANES) = sum; });
        }
    }
};

}  // namespace livectr::attention
