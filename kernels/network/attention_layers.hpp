// Layers of an activation unit over a tile of vectors, forward and backward. Included by network/attention.cpp.
#pragma once
#include "network/attention_unit.hpp"

namespace livectr::attention {

// Vectors of a list, or their gradients: number k of vector r at v[k][r]; zeros behind the last vector.
template <typename Real>
struct Tile {
    using R = Registers<Real>;
    using Vec = typename R::Vec;

    Real* v;  // [K, TILE]
    int count, registers;

    // Reads rows of K numbers.
    void fill(int64_t dim, const Real* values) const {
        for (int64_t k = 0; k < dim; ++k) R::at(v + k * R::TILE + (registers - 1) * R::LANES) = Vec{};
        R::transpose(values, dim, count, dim, v, R::TILE);
    }

    // Writes rows of K numbers.
    void write(int64_t dim, Real* values) const { R::transpose(v, R::TILE, dim, count, values, dim); }
};

// Tiles of a list.
template <typename Real>
struct Tiles {
    std::vector<Tile<Real>> all;

    // Room for `count` tiles of vectors of `dim` numbers.
    void resize(int64_t dim, int64_t count) {
        const int64_t size = dim * Registers<Real>::TILE;
        if (count * size > room_) {
            memory_ = zeros<Real>(count * size);
            room_ = count * size;
        }
        all.resize(size_t(count));
        for (int64_t t = 0; t < count; ++t) all[t].v = memory_.get() + t * size;
    }

    // As many tiles as `other`, of zeros.
    void zero(int64_t dim, const Tiles& other) {
        resize(dim, int64_t(other.all.size()));
        for (size_t t = 0; t < all.size(); ++t) {
            all[t].count = other.all[t].count, all[t].registers = other.all[t].registers;
            std::fill_n(all[t].v, dim * Registers<Real>::TILE, Real(0));
        }
    }

  private:
    Memory<Real> memory_;
    int64_t room_ = 0;
};

// First layer of a sample, and its gradients; the layers' results for a tile. Memory of one thread.
// BACKWARD: has what `backward` needs.
template <typename Real, bool BACKWARD>
class Layers {
  public:
    using R = Registers<Real>;
    using Vec = typename R::Vec;
    static constexpr int LANES = R::LANES, TILE = R::TILE;

    explicit Layers(const Unit<Real>& unit) : unit_(unit), shape_(unit.shape) {
        const Shape<Real>& shape = shape_;
        const int64_t block = shape.dim * shape.first(), units = shape.units();
        int64_t size = 0;
        const auto place = [&](Real*& part, int64_t count) {
            if (memory_) part = memory_.get() + size;
            size += R::padded(count);
        };
        const auto place_all = [&] {
            size = 0;
            place(own_, block), place(base_, shape.first());
            place(out_, units * TILE), place(a_, TILE);
            place(pooled_, shape.wide * LANES);
            if constexpr (!BACKWARD) return;
            place(query_, shape.wide), place(turned_own_, shape.widths[0] * shape.wide);
            place(of_own_, block), place(of_base_, shape.first());
            place(sums_, units * TILE), place(below_, units * TILE);
            place(turned_, shape.widest * TILE);
            place(lanes_, (2 * units + shape.last() + 1) * LANES);
        };
        place_all();
        memory_ = zeros<Real>(size);
        place_all();
        if constexpr (BACKWARD) {
            slopes_ = lanes_, biases_ = slopes_ + units * LANES, last_ = biases_ + units * LANES;
            last_bias_ = last_ + shape.last() * LANES;
        } else {
            sums_ = out_;  // not written
        }
        for (int64_t l = 0; l < shape.hidden; ++l) {
            const int64_t u = shape.unit_at[l];
            const Parameters<Real>& p = unit.parameters;
            const Real* const in = l ? out_ + shape.unit_at[l - 1] * TILE : nullptr;
            const Real* const w = l ? p.weights + shape.weight_at[l] : own_;
            steps_.push_back({{in, w, l ? shape.widths[l - 1] : shape.dim, shape.rows[l], &shape.cuts[l]},
                              {l ? p.biases + u : base_, p.slopes + u, sums_ + u * TILE, out_ + u * TILE}});
        }
    }

    Tiles<Real> vectors, of_vectors;  // of the list, and their gradients

    // Makes the first layer of the sample of a query.
    void begin(const Real* q) {
        const Parameters<Real> p = unit_.parameters;
        const int64_t dim = shape_.dim, first = shape_.first(), wide = shape_.wide;
        Real *const own = own_, *const turned = turned_own_;
        first_ = true;
        for (int64_t h = 0; h < first; h += LANES) {
            Vec sum = R::load(p.biases + h);
            for (int64_t k = 0, i = h; k < dim; ++k, i += first) {
                R::at(own + i) = R::load(p.of_vector + i) + q[k] * R::load(p.of_product + i);
                sum += q[k] * R::load(p.grad_query + i);
            }
            R::at(base_ + h) = sum;
        }
        if constexpr (!BACKWARD) return;
        std::copy(q, q + dim, query_);
        const Real *const vector = unit_.turned_vector, *const product = unit_.turned_product;
        const int64_t block = shape_.widths[0] * wide;
        for (int64_t k = 0; k < wide; k += LANES) {
            const Vec mine = R::load(query_ + k);
            for (int64_t i = k; i < block; i += wide)
                R::at(turned + i) = R::load(vector + i) + mine * R::load(product + i);
        }
    }

    // Adds a tile's vectors, times their results a, to the sample's sums. BACKWARD: writes a and the sums before PReLU
    // instead.
    void forward(const Tile<Real>& tile) {
        steps_[0].product.in = tile.v;
        for (const Step& step : steps_) R::multiply(tile.registers, step.product, step.ends);
        switch (tile.registers) {
            case 1: results<1>(tile); break;
            case 2: results<2>(tile); break;
            case 3: results<3>(tile); break;
            default: results<4>(tile);
        }
    }

    // Writes the sample's sums, out[K]; 0 without a tile.
    void write_pooled(Real* out) const {
        if (first_) std::fill_n(out, shape_.dim, Real(0));
        else write_totals(out);
    }

    // Adds the gradients of a tile, with g[K] of the sample's result.
    void backward(const Tile<Real>& tile, const Real* g, const Tile<Real>& of_values, const Parameters<Real>& grads) {
        const int64_t last = shape_.hidden - 1;
        const Prelu ends = prelu(last);
        switch (tile.registers) {
            case 1: top<1>(tile, g, of_values.v, ends); break;
            case 2: top<2>(tile, g, of_values.v, ends); break;
            case 3: top<3>(tile, g, of_values.v, ends); break;
            default: top<4>(tile, g, of_values.v, ends);
        }
        const int count = tile.registers * LANES;
        for (int64_t l = last; l >= 0; --l) {
            const Real* const below = below_ + shape_.unit_at[l] * TILE;
            R::turn_units(tile.registers, shape_.rows[l], below, turned_);
            if (l) {
                const typename R::Cut& inputs = shape_.cuts[l - 1];
                R::outer(count, inputs, shape_.rows[l], out_ + shape_.unit_at[l - 1] * TILE, turned_,
                         grads.weights + shape_.weight_at[l]);
                R::multiply(tile.registers,
                            {below, unit_.turned + shape_.turned_at[l], shape_.widths[l], shape_.rows[l - 1], &inputs},
                            prelu(l - 1));
                continue;
            }
            const int64_t first = shape_.first();
            R::outer(count, shape_.dim_cut, first, tile.v, turned_, of_own_);
            for (int64_t h = 0; h < first; h += LANES) {
                Vec sum = R::load(of_base_ + h);
                for (int r = 0; r < count; ++r) sum += R::load(turned_ + r * first + h);
                R::at(of_base_ + h) = sum;
            }
            R::multiply(tile.registers, {below, turned_own_, shape_.widths[0], shape_.wide, &shape_.dim_cut},
                        Added{of_values.v});
        }
    }

    // Adds the gradients of a sample's first layer to those of the parameters, and writes those of its query.
    void end(const Real* q, const Parameters<Real>& given, Real* grad_query) {
        const Parameters<Real> p = unit_.parameters, grads = given;
        const int64_t dim = shape_.dim, first = shape_.first();
        Real *const of_w = of_own_, *const of_b = of_base_;
        for (int64_t k = 0; k < dim; ++k) {
            Vec sums = {};
            const Real number = q[k];
            for (int64_t h = 0, j = k * first; h < first; h += LANES, j += LANES) {
                const Vec mine = R::load(of_w + j), base = R::load(of_b + h);
                R::at(of_w + j) = Vec{};
                R::at(grads.of_vector + j) += mine;
                R::at(grads.of_product + j) += number * mine;
                R::at(grads.grad_query + j) += number * base;
                sums += R::load(p.of_product + j) * mine + R::load(p.grad_query + j) * base;
            }
            R::at(pooled_ + k * LANES) = sums;
        }
        write_totals(grad_query);
        for (int64_t h = 0; h < first; h += LANES) {
            R::at(grads.biases + h) += R::load(of_b + h);
            R::at(of_b + h) = Vec{};
        }
    }

    // Adds the gradients that every lane has added apart, over all samples of a chunk, and sets them to zero.
    void add_lanes(const Parameters<Real>& given) {
        const Parameters<Real> grads = given;
        const int64_t units = shape_.units(), last = shape_.last();
        for (int64_t u = 0; u < units; u += LANES) {
            R::at(grads.slopes + u) += R::totals(slopes_ + u * LANES);
            R::at(grads.biases + u) += R::totals(biases_ + u * LANES);
        }
        for (int64_t i = 0; i < last; i += LANES) R::at(grads.last + i) += R::totals(last_ + i * LANES);
        *grads.last_bias += R::total(R::load(last_bias_));
        std::fill_n(lanes_, (2 * units + last + 1) * LANES, Real(0));
    }

  private:
    // Ends of a layer's sums: biases, and PReLU.
    struct Activated {
        const Real *bias, *slopes;
        Real *sums, *out;

        Activated at(int64_t o, int r) const {
            const int64_t place = o * TILE + r * LANES;
            return {bias + o, slopes + o, sums + place, out + place};
        }
        Vec begin(int64_t o, int) const { return R::every(bias[o]); }
        template <int COUNT>
        void done(int64_t o, const Vec (&found)[COUNT]) const {
            const Real slope = slopes[o];
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) {
                const Vec sum = found[r];
                if constexpr (BACKWARD) R::at(sums + o * TILE + r * LANES) = sum;
                R::at(out + o * TILE + r * LANES) = sum > 0 ? sum : sum * slope;
            }
        }
    };

    // Ends of the gradients of a layer's results: those of its sums.
    struct Prelu {
        const Real *slopes, *sums;
        Real *of_sums, *of_slopes, *of_biases;  // of_biases: nullptr in the first layer

        Prelu at(int64_t i, int r) const {
            const int64_t place = i * TILE + r * LANES;
            return {slopes + i, sums + place, of_sums + place, of_slopes + i * LANES,
                    of_biases ? of_biases + i * LANES : nullptr};
        }
        Vec begin(int64_t, int) const { return Vec{}; }
        template <int COUNT>
        void done(int64_t i, const Vec (&grads)[COUNT]) const {
            const Real slope = slopes[i];
            Vec of_slope = R::load(of_slopes + i * LANES), of_sum[COUNT];
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) {
                const Vec sum = R::load(sums + i * TILE + r * LANES), grad = grads[r];
                of_sum[r] = sum > 0 ? grad : grad * slope;
                of_slope += sum > 0 ? Vec{} : sum * grad;
                R::at(of_sums + i * TILE + r * LANES) = of_sum[r];
            }
            R::at(of_slopes + i * LANES) = of_slope;
            if (!of_biases) return;
            Vec of_bias = R::load(of_biases + i * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) of_bias += of_sum[r];
            R::at(of_biases + i * LANES) = of_bias;
        }
    };

    // Ends of sums that are added to a tile.
    struct Added {
        Real* v;

        Added at(int64_t k, int r) const { return {v + k * TILE + r * LANES}; }
        Vec begin(int64_t k, int r) const { return R::load(v + k * TILE + r * LANES); }
        template <int COUNT>
        void done(int64_t k, const Vec (&sums)[COUNT]) const {
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) R::at(v + k * TILE + r * LANES) = sums[r];
        }
    };

    // Results a of a tile of COUNT registers; see `forward`.
    template <int COUNT>
    void results(const Tile<Real>& tile) {
        const Real *const out = out_ + shape_.last_unit() * TILE, *const weights = unit_.parameters.last;
        const int64_t dim = shape_.dim, width = shape_.last_width();
        Vec a[COUNT];
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) a[r] = R::every(*unit_.parameters.last_bias);
        for (int64_t i = 0; i < width; ++i)
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) a[r] += weights[i] * R::load(out + i * TILE + r * LANES);
        if constexpr (BACKWARD) {
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) R::at(a_ + r * LANES) = a[r];
            return;
        }
        const bool first = std::exchange(first_, false);
        const Real* const v = tile.v;
        Real* const pooled = pooled_;
        for (int64_t k = 0; k < dim; ++k) {
            Vec sum = first ? Vec{} : R::load(pooled + k * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) sum += a[r] * R::load(v + k * TILE + r * LANES);
            R::at(pooled + k * LANES) = sum;
        }
    }

    // Gradients of a tile's results a, of COUNT registers: those of the last layer, and those of the vectors by `a`.
    template <int COUNT>
    void top(const Tile<Real>& tile, const Real* g, Real* of_values, const Prelu& given) const {
        const Prelu ends = given;
        const Real* const v = tile.v;
        const int64_t dim = shape_.dim, width = shape_.last_width();
        Vec a[COUNT], of_a[COUNT];
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) a[r] = R::load(a_ + r * LANES), of_a[r] = Vec{};
        for (int64_t k = 0; k < dim; ++k)
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) {
                of_a[r] += g[k] * R::load(v + k * TILE + r * LANES);
                R::at(of_values + k * TILE + r * LANES) += a[r] * g[k];
            }
        const Real *const out = out_ + shape_.last_unit() * TILE, *const weights = unit_.parameters.last;
        Real* const of_last = last_;
        for (int64_t i = 0; i < width; ++i) {
            Vec of_weight = R::load(of_last + i * LANES), below[COUNT];
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; ++r) {
                of_weight += of_a[r] * R::load(out + i * TILE + r * LANES);
                below[r] = of_a[r] * weights[i];
            }
            R::at(of_last + i * LANES) = of_weight;
            ends.done(i, below);
        }
        Vec of_bias = R::load(last_bias_);
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; ++r) of_bias += of_a[r];
        R::at(last_bias_) = of_bias;
    }

    // Horizontal sums of `pooled_`, K numbers.
    void write_totals(Real* to) const {
        const int64_t dim = shape_.dim;
        for (int64_t k = 0; k < dim; k += LANES) {
            const Real* const from = pooled_ + k * LANES;
            const int64_t count = std::min<int64_t>(LANES, dim - k);
            if (3 * count > LANES) R::store(R::totals(from), count, to + k);
            else
                for (int64_t i = 0; i < count; ++i) to[k + i] = R::total(R::load(from + i * LANES));
        }
    }

    // A layer's product; the vectors of a tile are the input of the first.
    struct Step {
        typename R::Product product;
        Activated ends;
    };

    Prelu prelu(int64_t l) const {
        const int64_t u = shape_.unit_at[l];
        return {unit_.parameters.slopes + u, sums_ + u * TILE, below_ + u * TILE, slopes_ + u * LANES,
                l ? biases_ + u * LANES : nullptr};
    }

    const Unit<Real>& unit_;
    const Shape<Real>& shape_;
    Memory<Real> memory_;
    std::vector<Step> steps_;
    bool first_ = true;                                     // no tile of the sample has gone through the layers
    Real *own_ = nullptr, *base_ = nullptr;                 // [K, first], [first]: the sample's first layer
    Real* pooled_ = nullptr;                                // [wide, LANES]: sums of a sample, with zeros behind K
    Real *query_ = nullptr, *turned_own_ = nullptr;         // [wide], [H_1, wide]
    Real *of_own_ = nullptr, *of_base_ = nullptr;           // gradients of own_ and base_
    Real *sums_ = nullptr, *out_ = nullptr, *a_ = nullptr;  // [units, TILE] before and after PReLU; [TILE]
    Real *below_ = nullptr, *turned_ = nullptr;  // gradients of sums [units, TILE]; those of a layer, [TILE, units]
    // Gradients that every lane adds apart.
    Real *lanes_ = nullptr, *slopes_ = nullptr, *biases_ = nullptr, *last_ = nullptr, *last_bias_ = nullptr;
};

}  // namespace livectr::attention
