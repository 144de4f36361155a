// First and second order of a logit, learned example by example (host only): weights w by FTRL-proximal (McMahan et al.
// 2013, Algorithm 1), the scale of a field's weights (models/layers.py) and vectors v of a factorization machine
// (models/fm.py) by AdaGrad.
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

    void learn(uint32_t u, float g, float times, const float* __restrict__ by_vector) const {
        const float gradient = g * times;
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

    Pooled(int64_t fields, int64_t dim) : fields(fields), dim(dim), p(fields * dim), total(dim), squares(dim) {}

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

}  // namespace

extern "C" {

// Examples in the order of sequence[B]. The key occurrences of example i in field f are slots[offsets[f * B + i] :
// offsets[f * B + i + 1]], numbers among the U rows. logits[B]: with the w and v that the rows have; out[B]: with those
// that the examples before have left. scale[fields, 2]: s and its sum of squares, learned in place with `rate`.
// weight[B]: of the examples' losses, or null.
void learn_examples(int64_t examples, const int64_t* sequence, int64_t fields, const int32_t* offsets,
                    const uint32_t* slots, float* scale, float rate, int64_t unique, float* state, const float* ftrl,
                    int64_t dim, float* vectors, const float* adagrad, const float* label, const float* weight,
                    const float* logits, float* out) {
    const Rows rows{state, ftrl, dim, vectors, adagrad};
    std::vector<float> first_scale(fields), first_w(unique), first_v(unique * dim);
    std::vector<float> sums(fields), times(unique), by_vector(unique * dim);
    for (int64_t u = 0; u < unique; ++u) {
        first_w[u] = state[4 * u];
        std::copy_n(rows.vector(u), dim, first_v.data() + dim * u);
    }
    for (int64_t f = 0; f < fields; ++f) first_scale[f] = scale[2 * f];
    std::vector<int64_t> seen(unique, -1);
    std::vector<uint32_t> touched;
    Pooled now(fields, dim), before(fields, dim);
    for (int64_t e = 0; e < examples; ++e) {
        const int64_t i = sequence[e];
        const auto each = [&](auto&& visit) {  // occurrences that have a row
            for (int64_t f = 0; f < fields; ++f) {
                for (int32_t at = offsets[f * examples + i]; at < offsets[f * examples + i + 1]; ++at) {
                    if (!isnan(first_w[slots[at]])) visit(f, slots[at]);
                }
            }
        };
        float moved = 0.0f;
        touched.clear();
        std::fill(sums.begin(), sums.end(), 0.0f);
        now.clear();
        before.clear();
        each([&](int64_t f, uint32_t u) {
            sums[f] += state[4 * u];
            moved += scale[2 * f] * state[4 * u] - first_scale[f] * first_w[u];
            now.add(f, rows.vector(u));
            before.add(f, first_v.data() + dim * u);
            if (seen[u] != e) {
                seen[u] = e;
                times[u] = 0.0f;
                std::fill_n(by_vector.data() + dim * u, dim, 0.0f);
                touched.push_back(u);
            }
            times[u] += scale[2 * f];
        });
        out[i] = logits[i] + moved + (now.pairs() - before.pairs());
        const float g = slope(out[i], label[i]) * (weight ? weight[i] : 1.0f);
        each([&](int64_t f, uint32_t u) {
            for (int64_t k = 0; k < dim; ++k) by_vector[dim * u + k] += now.total[k] - now.p[f * dim + k];
        });
        for (const uint32_t u : touched) rows.learn(u, g, times[u], by_vector.data() + dim * u);
        for (int64_t f = 0; f < fields; ++f) {
            const float of_scale = g * sums[f];
            float& squares = scale[2 * f + 1];
            squares += of_scale * of_scale;
            scale[2 * f] = fmaxf(scale[2 * f] - rate * of_scale / sqrtf(1.0f + squares), 0.0f);
        }
    }
}

}  // extern "C"
