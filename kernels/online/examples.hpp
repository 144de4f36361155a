// First and second order of a logit, learned example by example (host only): weights w by FTRL-proximal (McMahan et al.
// 2013, Algorithm 1), the scale of a field's weights (models/layers.py) and vectors v of a factorization machine
// (models/fm.py) by AdaGrad, and the bias, which keeps the mean of all logits where it is (trainer/des/online.py).
#pragma once
#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "row/optimisers.cuh"

namespace {

// Gradient of an example's cross entropy by its logit; a label above 1 is a late positive (models/losses.py).
inline float slope(float logit, float label) { return 1.0f / (1.0f + expf(-logit)) - fminf(label, 1.0f); }

// The U unique rows, learned in place: state[U, 4] has w, then FTRL's state; w is NaN where there is no row.
// vectors[U, 2 * dim] has v, then AdaGrad's state; dim 0: no second order.
struct Rows {
    float* state;
    const float* ftrl;
    int64_t dim;
    float* vectors;
    const float* adagrad;

    float* vector(uint32_t u) const { return vectors + 2 * dim * u; }

    float weight(uint32_t u) const { return state[4 * u]; }
    float squares(uint32_t u) const { return state[4 * u + 2]; }

    // part: share of the examples that have the key, which learns what the others do not.
    void learn(uint32_t u, float g, float times, float part, const float* __restrict__ by_vector) const {
        const float gradient = g * times, beta = ftrl[1];
        const float root = sqrtf(squares(u) + gradient * gradient);
        state[4 * u + 1] -= gradient * beta * part / fmaxf(beta + (1.0f - part) * root, FLT_MIN);
        FTRL::update(1, state + 4 * u, state + 4 * u + 1, &gradient, ftrl);
        float* __restrict__ const v = vector(u);
        float* __restrict__ const sums = v + dim;
        for (int64_t k = 0; k < dim; ++k) {
            const float of_v = g * by_vector[k];
            AdaGrad::update(1, v + k, sums + k, &of_v, adagrad);
        }
    }
};

// Pooled vectors p_f of an example: their sum, and FM's second order. With dim 0 the vectors are empty: they have no
// first element to name.
struct Pooled {
    int64_t fields, dim;
    std::vector<float> p, total, squares;

    void reset(int64_t of_fields, int64_t of_dim) {
        fields = of_fields, dim = of_dim;
        p.resize(fields * dim);
        total.resize(dim);
        squares.resize(dim);
    }

    void clear() { std::fill(p.begin(), p.end(), 0.0f); }
    void add(int64_t f, const float* __restrict__ v) {
        float* __restrict__ const sum = p.data() + f * dim;
        for (int64_t k = 0; k < dim; ++k) sum[k] += v[k];
    }

    // 1/2 (|sum_f p_f|^2 - sum_f |p_f|^2)
    float pairs() {
        std::fill(total.begin(), total.end(), 0.0f);
        std::fill(squares.begin(), squares.end(), 0.0f);
        for (int64_t f = 0; f < fields; ++f) {
            for (int64_t k = 0; k < dim; ++k) {
                const float x = p[f * dim + k];
                total[k] += x;
                squares[k] += x * x;
            }
        }
        float sum = 0.0f;
        for (int64_t k = 0; k < dim; ++k) sum += total[k] * total[k] - squares[k];
        return 0.5f * sum;
    }
};

// Occurrences of B examples, in the order of sequence[B] (null: as they are). The key occurrences of example i in field f
// are slots[offsets[f * B + i] : offsets[f * B + i + 1]], numbers among the U rows.
struct Occurrences {
    int64_t examples;
    const int64_t* sequence;
    int64_t fields;
    const int32_t* offsets;
    const uint32_t* slots;
};

// scale[fields, 2]: s and its sum of squares, learned in place with `rate`; settles: as trainer/des/dense.py has it.
struct Scales {
    float* scale;
    float rate;
    bool settles = false;
};

// state[2]: b and its sum of squared gradients N, learned in place; null: b is not learned here.
struct Bias {
    float* state;

    static constexpr float PRIOR = 0.1f;  // clicks of models/base.py, PRIOR
    static constexpr float RATE = 0.2f;   // of AdaGrad, which follows a drift of the log
    static constexpr float FEW = 4.0f;    // squared gradients below which no key is known as common

    // Learns an example of gradient g, once the weights of its keys have moved the mean of all logits by `moved`.
    void learn(float g, float moved) const {
        if (!isfinite(g) || !isfinite(moved)) return;  // of a batch that is not learned
        const float newton = log1pf(fabsf(g) / (PRIOR + state[1]));
        state[1] += g * g;
        state[0] -= moved + copysignf(fmaxf(newton, RATE * fabsf(g) / sqrtf(1.0f + state[1])), g);
    }
};

// weight[B]: of the examples' losses, or null: all are 1.
struct Labels {
    const float *label, *weight;
};

// A pass over the examples of a batch; its memory is kept for the next.
class ExamplesPass {
  public:
    // logits[B]: with the w and v that the U rows have; out[B]: with those that the examples before have left.
    void learn(const Occurrences& of, const Scales& scales, const Bias& bias, int64_t unique, const Rows& rows,
               const Labels& labels, const float* logits, float* out) {
        const int64_t fields = of.fields, dim = rows.dim;
        const float first_bias = bias.state ? bias.state[0] : 0.0f;
        float *const state = rows.state, *const scale = scales.scale;
        first_scale_.resize(fields);
        first_w_.resize(unique);
        first_v_.resize(unique * dim);
        sums_.resize(fields);
        times_.resize(unique);
        by_vector_.resize(unique * dim);
        for (int64_t u = 0; u < unique; ++u) {
            first_w_[u] = state[4 * u];
            std::copy_n(rows.vector(u), dim, first_v_.data() + dim * u);
        }
        for (int64_t f = 0; f < fields; ++f) first_scale_[f] = scale[2 * f];
        seen_.assign(unique, -1);
        now_.reset(fields, dim);
        before_.reset(fields, dim);
        for (int64_t e = 0; e < of.examples; ++e) {
            const int64_t i = of.sequence ? of.sequence[e] : e;
            const auto each = [&](auto&& visit) {  // occurrences that have a row
                for (int64_t f = 0; f < fields; ++f) {
                    const int32_t* const ends = of.offsets + f * of.examples + i;
                    for (int32_t at = ends[0]; at < ends[1]; ++at) {
                        if (!isnan(first_w_[of.slots[at]])) visit(f, of.slots[at]);
                    }
                }
            };
            float moved = 0.0f;
            touched_.clear();
            std::fill(sums_.begin(), sums_.end(), 0.0f);
            now_.clear();
            before_.clear();
            each([&](int64_t f, uint32_t u) {
                sums_[f] += state[4 * u];
                moved += scale[2 * f] * state[4 * u] - first_scale_[f] * first_w_[u];
                now_.add(f, rows.vector(u));
                before_.add(f, first_v_.data() + dim * u);
                if (seen_[u] != e) {
                    seen_[u] = e;
                    times_[u] = 0.0f;
                    std::fill_n(by_vector_.data() + dim * u, dim, 0.0f);
                    touched_.push_back(u);
                }
                times_[u] += scale[2 * f];
            });
            if (bias.state) moved += bias.state[0] - first_bias;
            out[i] = logits[i] + moved + (now_.pairs() - before_.pairs());
            const float g = slope(out[i], labels.label[i]) * (labels.weight ? labels.weight[i] : 1.0f);
            each([&](int64_t f, uint32_t u) {
                for (int64_t k = 0; k < dim; ++k) by_vector_[dim * u + k] += now_.total[k] - now_.p[f * dim + k];
            });
            const float all = bias.state ? most_common(rows, bias) : INFINITY;
            float mean = 0.0f;  // change of the mean of all logits
            for (const uint32_t u : touched_) {
                const float before = rows.weight(u), part = share(rows, u) / all;
                rows.learn(u, g, times_[u], part, by_vector_.data() + dim * u);
                mean += part * times_[u] * (rows.weight(u) - before);
            }
            if (bias.state) bias.learn(g, mean);
            for (int64_t f = 0; f < fields; ++f) {
                const float of_scale = g * sums_[f];
                float& squares = scale[2 * f + 1];
                squares += of_scale * of_scale;
                const float root = sqrtf(1.0f + squares);
                const float step =
                    scales.settles ? of_scale / fmaxf(root / scales.rate, squares) : scales.rate * of_scale / root;
                scale[2 * f] = fmaxf(scale[2 * f] - step, 0.0f);
            }
        }
    }

  private:
    // Squared gradients by the logit of the examples with a key.
    float share(const Rows& rows, uint32_t u) const {
        return times_[u] > 0 ? rows.squares(u) / (times_[u] * times_[u]) : 0.0f;
    }

    // Those of all examples: at least as many as of any key of this one, as a bias may be younger than its rows.
    float most_common(const Rows& rows, const Bias& bias) const {
        float most = bias.state[1] + Bias::FEW;
        for (const uint32_t u : touched_) most = fmaxf(most, share(rows, u));
        return most;
    }

    std::vector<float> first_scale_, first_w_, first_v_, sums_, times_, by_vector_;
    std::vector<int64_t> seen_;
    std::vector<uint32_t> touched_;
    Pooled now_, before_;
};

}  // namespace
