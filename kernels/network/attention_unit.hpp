// Widths and parameters of an activation unit. Included by network/attention_layers.hpp.
#pragma once
#include "network/attention_registers.hpp"

#include <memory>

namespace livectr::attention {

struct Freed {
    void operator()(void* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
};
template <typename Real>
using Memory = std::unique_ptr<Real[], Freed>;

// Zeros that begin with a line of the cache. Throws std::bad_alloc.
template <typename Real>
Memory<Real> zeros(int64_t count) {
    void* const memory = ::operator new[](size_t(count) * sizeof(Real), std::align_val_t(64));
    std::memset(memory, 0, size_t(count) * sizeof(Real));
    return Memory<Real>(static_cast<Real*>(memory));
}

// Widths of a unit: K numbers of a vector, hidden layers of H_1 … H_L units; and its numbers' places in an array where
// every row is padded to whole registers.
template <typename Real>
struct Shape {
    using R = Registers<Real>;
    using Cut = typename R::Cut;

    int64_t dim, hidden, wide;  // wide: padded K
    const int64_t* widths;
    Cut dim_cut;
    std::vector<Cut> cuts;           // of widths
    std::vector<int64_t> rows;       // padded widths
    std::vector<int64_t> weight_at;  // of layer l ≥ 1: its weights [H_l, rows of H_{l+1}] among all layers'
    std::vector<int64_t> turned_at;  // the same weights turned, [H_{l+1}, rows of H_l]
    std::vector<int64_t> unit_at;    // of layer l: its units among all layers'; last: their number
    int64_t weights = 0, turned = 0, widest = 0;

    Shape(int64_t dim, const int64_t* widths, int64_t hidden)
        : dim(dim), hidden(hidden), wide(R::padded(dim)), widths(widths), dim_cut(dim), unit_at{0} {
        for (int64_t l = 0; l < hidden; ++l) {
            cuts.emplace_back(widths[l]);
            rows.push_back(R::padded(widths[l]));
            weight_at.push_back(weights);
            turned_at.push_back(turned);
            if (l) weights += widths[l - 1] * rows[l], turned += widths[l] * rows[l - 1];
            unit_at.push_back(unit_at[l] + rows[l]);
            widest = std::max(widest, rows[l]);
        }
    }

    int64_t first() const { return rows[0]; }
    int64_t last() const { return rows[hidden - 1]; }
    int64_t last_width() const { return widths[hidden - 1]; }
    int64_t last_unit() const { return unit_at[hidden - 1]; }
    int64_t units() const { return unit_at[hidden]; }
    int64_t parameters() const { return 3 * dim * first() + weights + last() + 2 * units() + R::LANES; }
};

// All parameters, or their gradients, padded with zeros.
template <typename Real>
struct Parameters {
    Real *of_vector, *grad_query, *of_product;  // [K, first]: W_v + W_d, W_q - W_d, W_p
    Real *weights, *last, *biases, *slopes, *last_bias;

    // Parts of `memory`, Shape::parameters() numbers.
    Parameters(const Shape<Real>& shape, Real* memory)
        : of_vector(memory),
          grad_query(of_vector + shape.dim * shape.first()),
          of_product(grad_query + shape.dim * shape.first()),
          weights(of_product + shape.dim * shape.first()),
          last(weights + shape.weights),
          biases(last + shape.last()),
          slopes(biases + shape.units()),
          last_bias(slopes + shape.units()) {}

    // call(flat number, mine) for all but the first layer's weights: W_2 … W_{L+1}, b_1 … b_{L+1}, slopes.
    template <typename Call>
    void each(const Shape<Real>& shape, Call&& call) const {
        const int64_t* const widths = shape.widths;
        int64_t flat = 4 * shape.dim * widths[0];
        for (int64_t l = 1; l < shape.hidden; ++l)
            for (int64_t i = 0; i < widths[l - 1]; ++i)
                for (int64_t o = 0; o < widths[l]; ++o)
                    call(flat++, weights[shape.weight_at[l] + i * shape.rows[l] + o]);
        for (int64_t i = 0; i < shape.last_width(); ++i) call(flat++, last[i]);
        for (int64_t l = 0; l < shape.hidden; ++l)
            for (int64_t i = 0; i < widths[l]; ++i) call(flat++, biases[shape.unit_at[l] + i]);
        call(flat++, *last_bias);
        for (int64_t l = 0; l < shape.hidden; ++l)
            for (int64_t i = 0; i < widths[l]; ++i) call(flat++, slopes[shape.unit_at[l] + i]);
    }

    void read(const Shape<Real>& shape, const Real* p) const {
        const int64_t width = shape.widths[0], block = shape.dim * width;
        const Real *v = p, *q = v + block, *d = q + block, *product = d + block;
        for (int64_t k = 0; k < shape.dim; ++k)
            for (int64_t h = 0; h < width; ++h) {
                const int64_t from = k * width + h, to = k * shape.first() + h;
                of_vector[to] = v[from] + d[from];
                grad_query[to] = q[from] - d[from];
                of_product[to] = product[from];
            }
        each(shape, [&](int64_t flat, Real& mine) { mine = p[flat]; });
    }

    void write_gradients(const Shape<Real>& shape, Real* p) const {
        const int64_t width = shape.widths[0], block = shape.dim * width;
        Real *v = p, *q = v + block, *d = q + block, *product = d + block;
        for (int64_t k = 0; k < shape.dim; ++k)
            for (int64_t h = 0; h < width; ++h) {
                const int64_t to = k * width + h, from = k * shape.first() + h;
                v[to] = of_vector[from];
                q[to] = grad_query[from];
                d[to] = of_vector[from] - grad_query[from];
                product[to] = of_product[from];
            }
        each(shape, [&](int64_t flat, Real& mine) { p[flat] = mine; });
    }
};

// A unit's parameters; for the backward pass also its weights turned, so that products read rows of them.
template <typename Real>
struct Unit {
    const Shape<Real> shape;
    const Memory<Real> memory;
    const Parameters<Real> parameters;
    Memory<Real> turned_memory;
    Real *turned_vector, *turned_product, *turned;  // [H_1, wide] twice, then the further layers'

    Unit(int64_t dim, const int64_t* widths, int64_t hidden, const Real* p, bool backward)
        : shape(dim, widths, hidden), memory(zeros<Real>(shape.parameters())), parameters(shape, memory.get()) {
        parameters.read(shape, p);
        if (!backward) return;
        const int64_t block = widths[0] * shape.wide;
        turned_memory = zeros<Real>(2 * block + shape.turned);
        turned_vector = turned_memory.get(), turned_product = turned_vector + block, turned = turned_product + block;
        turn(parameters.of_vector, dim, widths[0], turned_vector);
        turn(parameters.of_product, dim, widths[0], turned_product);
        for (int64_t l = 1; l < hidden; ++l)
            turn(parameters.weights + shape.weight_at[l], widths[l - 1], widths[l], turned + shape.turned_at[l]);
    }

  private:
    using R = Registers<Real>;

    static void turn(const Real* from, int64_t inputs, int64_t outputs, Real* to) {
        R::transpose(from, R::padded(outputs), inputs, outputs, to, R::padded(inputs));
    }
};

}  // namespace livectr::attention
