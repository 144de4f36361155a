// Network of a small batch, learned without torch (host only): partial sums, MLP, gradients and Adam of LR, FM, DNN,
// Wide & Deep and DeepFM (models/forward.py, `ForwardLayers`). One thread: a step of a few examples is as short as the
// start of a second thread.
//
// values are rows [w | v] f32[B, F, row], of which this network reads the first `first + K` from an address on; x are
// dense features f32[B, D]. Partial sums of a rank's fields, S = H + first + K · pairs numbers of an example, are
//
//     [Σ_f v_f W_f + x U | Σ_f s_f w_f + x u − ½ Σ_f ‖v_f‖² | Σ_f v_f]
//
// Gradients of matrices are outer products of few examples. They are computed where Adam needs them, row by row, and
// never stored. Sums run in an order that depends on the shapes alone, products and sums are rounded one by one, and
// the sixteen lanes of a dot product are added in pairs: bits do not depend on the CPU.
#pragma once
#include <math.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace small_batch {
namespace {

// Vectors are as wide as the registers: a compiler takes wider ones apart in memory.
#ifdef __AVX512F__
constexpr int64_t REGISTER = 16;
#else
constexpr int64_t REGISTER = 8;
#endif
constexpr int64_t WIDE = 16, PARTS = WIDE / REGISTER;  // lanes of a dot product, and their registers
typedef float Lanes __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));

inline Lanes lanes(const float* at) { return *reinterpret_cast<const Lanes*>(at); }
inline float sum(const Lanes* parts) {
    float each[WIDE];
    std::memcpy(each, parts, sizeof each);
    for (int64_t width = WIDE / 2; width; width /= 2)
        for (int64_t i = 0; i < width; ++i) each[i] += each[i + width];
    return each[0];
}

// c[R, O] += a[R, I] w[I, O], rows of c and a ldc and lda apart.
template <int R>
void multiply(int64_t inputs, int64_t outputs, const float* a, int64_t lda, const float* w, float* c, int64_t ldc) {
    int64_t o = 0;
    for (; o + 2 * REGISTER <= outputs; o += 2 * REGISTER) {
        Lanes left[R], right[R];
        for (int r = 0; r < R; ++r) left[r] = lanes(c + r * ldc + o), right[r] = lanes(c + r * ldc + o + REGISTER);
        for (int64_t i = 0; i < inputs; ++i) {
            const Lanes u = lanes(w + i * outputs + o), v = lanes(w + i * outputs + o + REGISTER);
            for (int r = 0; r < R; ++r) {
                const Lanes x = Lanes{} + a[r * lda + i];
                left[r] += x * u;
                right[r] += x * v;
            }
        }
        for (int r = 0; r < R; ++r) {
            std::memcpy(c + r * ldc + o, &left[r], sizeof(Lanes));
            std::memcpy(c + r * ldc + o + REGISTER, &right[r], sizeof(Lanes));
        }
    }
    for (; o < outputs; ++o)
        for (int r = 0; r < R; ++r) {
            float total = c[r * ldc + o];
            for (int64_t i = 0; i < inputs; ++i) total += a[r * lda + i] * w[i * outputs + o];
            c[r * ldc + o] = total;
        }
}

// d[R, I] = g[R, O] w[I, O]ᵀ.
template <int R>
void multiply_turned(int64_t inputs, int64_t outputs, const float* g, int64_t ldg, const float* w, float* d,
                     int64_t ldd) {
    for (int64_t i = 0; i < inputs; ++i) {
        const float* const row = w + i * outputs;
        Lanes total[R][PARTS] = {};
        int64_t o = 0;
        for (; o + WIDE <= outputs; o += WIDE)
            for (int64_t p = 0; p < PARTS; ++p) {
                const Lanes u = lanes(row + o + p * REGISTER);
                for (int r = 0; r < R; ++r) total[r][p] += lanes(g + r * ldg + o + p * REGISTER) * u;
            }
        for (int r = 0; r < R; ++r) {
            float of = sum(total[r]);
            for (int64_t rest = o; rest < outputs; ++rest) of += g[r * ldg + rest] * row[rest];
            d[r * ldd + i] = of;
        }
    }
}

// Calls of a product for every four examples, and for those that are left.
#define BY_FOUR(product, examples, ...)                 \
    for (int64_t b = 0; b < (examples); b += 4) {       \
        switch (std::min<int64_t>((examples) - b, 4)) { \
            case 1: product<1>(__VA_ARGS__); break;     \
            case 2: product<2>(__VA_ARGS__); break;     \
            case 3: product<3>(__VA_ARGS__); break;     \
            default: product<4>(__VA_ARGS__);           \
        }                                               \
    }

// Adam of one step (Kingma & Ba 2014), as torch's: w −= lr m̂ / (√v̂ + ε), both sides of the fraction times √(1 − β₂ᵗ).
struct Adam {
    float rate, epsilon, inverse;  // inverse: of the number of examples, for the mean of the gradients

    void operator()(int64_t n, const float* __restrict__ sums, float* __restrict__ w, float* __restrict__ mean,
                    float* __restrict__ square) const {
        for (int64_t i = 0; i < n; ++i) {
            const float g = sums[i] * inverse;
            const float m = mean[i] + (g - mean[i]) * 0.1f;
            const float v = square[i] * 0.999f + g * g * 0.001f;
            mean[i] = m;
            square[i] = v;
            w[i] -= rate * m / (sqrtf(v) + epsilon);
        }
    }
};

// AdaGrad with the summed gradient, 1 + N under the root: of the bias and of scales (trainer/des/dense.py).
inline float adagrad(float& square, float g) {
    square += g * g;
    return sqrtf(square + 1.0f);
}

// Moments of weights that nothing moves any more shrink until they are denormal, which some CPUs take 100 cycles for.
class Flushed {
#ifdef __SSE__
    const unsigned before = _mm_getcsr();

  public:
    Flushed() { _mm_setcsr(before | 0x8040); }
    ~Flushed() { _mm_setcsr(before); }
#else
  public:
    Flushed() {}
#endif
};

// Σ weight p (1 − p) of logits f32[n] that are moved by `shift`: the second derivative of their weighted cross entropies
// by a bias. weight: f32[n], or null.
inline double curvature_of(int64_t n, const float* logits, float shift, const float* weight) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double away = exp(-fabs(static_cast<double>(logits[i] + shift)));  // of p / (1 − p), or its inverse
        total += (weight ? static_cast<double>(weight[i]) : 1.0) * away / ((1.0 + away) * (1.0 + away));
    }
    return total;
}

struct Parameter {
    float *value, *mean, *square;  // null: the rank has no such parameter
};

struct Shape {
    int64_t fields, dim, dense, hidden, first, pairs, layers, most;  // `most` examples of a batch
};

struct Network {
    Shape of;
    std::vector<int64_t> sizes;  // H, then outputs of each layer after the first
    std::vector<Parameter> given;
    std::vector<float> v, x, w, sums, of_v, of_scale, of_dense, row;  // of the batch; `row`: of a matrix
    std::vector<std::vector<float>> inputs, of_results, of_biases;
    std::vector<float> slopes;
    int64_t examples = 0;
    float of_bias = 0;

    Parameter bias() const { return given[0]; }
    Parameter scale() const { return given[1]; }
    Parameter of_x() const { return given[2]; }
    Parameter fields_weight() const { return given[3]; }
    Parameter dense_weight() const { return given[4]; }
    Parameter first_bias() const { return given[5]; }
    Parameter weight(int64_t l) const { return given[6 + 2 * l]; }
    Parameter layer_bias(int64_t l) const { return given[7 + 2 * l]; }
    int64_t width() const { return of.first + of.dim; }
    int64_t partial() const { return of.hidden + of.first + of.dim * of.pairs; }
    int64_t vectors() const { return of.fields * of.dim; }

    Network(const int64_t* shape, const int64_t* outputs, const Parameter* parameters)
        : sizes(outputs, outputs + shape[6] + 1), given(parameters, parameters + 6 + 2 * shape[6]) {
        std::memcpy(&of, shape, sizeof of);
        v.resize(of.most * vectors());
        x.resize(of.most * of.dense);
        w.resize(of.most * of.fields);
        sums.resize(of.most * partial());
        of_v.resize(of.most * vectors());
        of_scale.resize(of.fields);
        of_dense.resize(of.dense);
        slopes.resize(of.most);
        for (int64_t l = 0; l <= of.layers; ++l) {
            inputs.emplace_back(of.most * sizes[l]);
            of_results.emplace_back(of.most * sizes[l]);
            of_biases.emplace_back(sizes[l]);
        }
        row.resize(std::max(of.dim, *std::max_element(sizes.begin(), sizes.end())));
    }

    void read(int64_t n, const float* values, int64_t stride, const float* dense) {
        examples = n;
        for (int64_t cell = 0; cell < n * of.fields; ++cell) {
            const float* const from = values + cell * stride;
            if (of.first) w[cell] = from[0];
            std::copy_n(from + of.first, of.dim, v.data() + cell * of.dim);  // LR has no v
        }
        if (of.dense) std::memcpy(x.data(), dense, n * of.dense * sizeof(float));
    }

    void add_partial(float* out, int64_t ld) {
        const int64_t n = examples, h = of.hidden, inputs_ = vectors();
        for (int64_t b = 0; b < n; ++b) {
            float* const to = out + b * ld;
            std::fill_n(to, partial(), 0.0f);
            const float* const of_b = v.data() + b * inputs_;
            for (int64_t f = 0; of.first && f < of.fields; ++f) to[h] += scale().value[f] * w[b * of.fields + f];
            for (int64_t d = 0; of.first && d < of.dense; ++d) to[h] += x[b * of.dense + d] * of_x().value[d];
            if (!of.pairs) continue;
            float* __restrict__ const total = to + h + 1;
            float squares = 0;
            std::fill_n(row.data(), of.dim, 0.0f);
            for (int64_t f = 0; f < of.fields; ++f)
                for (int64_t k = 0; k < of.dim; ++k) {
                    total[k] += of_b[f * of.dim + k];
                    row[k] += of_b[f * of.dim + k] * of_b[f * of.dim + k];
                }
            for (int64_t k = 0; k < of.dim; ++k) squares += row[k];
            to[h] -= 0.5f * squares;
        }
        if (!h) return;
        BY_FOUR(multiply, n, inputs_, h, v.data() + b * inputs_, inputs_, fields_weight().value, out + b * ld, ld)
        if (of.dense)
            BY_FOUR(multiply, n, of.dense, h, &x[b * of.dense], of.dense, dense_weight().value, out + b * ld, ld)
    }

    void finish(const float* given_sums, int64_t ld, float* logits) {
        const int64_t n = examples, h = of.hidden, s = partial();
        for (int64_t b = 0; b < n; ++b) std::memcpy(&sums[b * s], given_sums + b * ld, s * sizeof(float));
        for (int64_t b = 0; h && b < n; ++b)
            for (int64_t o = 0; o < h; ++o)
                inputs[0][b * h + o] = std::max(sums[b * s + o] + first_bias().value[o], 0.0f);
        for (int64_t l = 0; l < of.layers; ++l) {
            const int64_t i = sizes[l], o = sizes[l + 1];
            float* const to = inputs[l + 1].data();
            for (int64_t b = 0; b < n; ++b) std::memcpy(to + b * o, layer_bias(l).value, o * sizeof(float));
            BY_FOUR(multiply, n, i, o, &inputs[l][b * i], i, weight(l).value, to + b * o, o)
            for (int64_t at = 0; l + 1 < of.layers && at < n * o; ++at) to[at] = std::max(to[at], 0.0f);
        }
        for (int64_t b = 0; b < n; ++b) {
            float logit = h ? inputs[of.layers][b] : 0.0f;
            if (of.first) logit += sums[b * s + h];
            float squares = 0;
            for (int64_t k = 0; of.pairs && k < of.dim; ++k) {
                const float total = sums[b * s + h + 1 + k];
                squares += total * total;
            }
            logits[b] = logit + 0.5f * squares + bias().value[0];
        }
    }

    // Gradients of the sum of the examples' losses. Returns a bound of the sum of their absolute values: the products
    // of the sums of both factors' for a matrix. It is not finite where a gradient is not.
    double backward(const float* logits, float shift, const float* label, const float* weight, bool first_learned,
                    bool pairs_learned, float* of_values, int64_t stride) {
        const int64_t n = examples, h = of.hidden, s = partial(), last = of.layers;
        double bound = 0;
        of_bias = 0;
        for (int64_t b = 0; b < n; ++b) {
            const float p = 1.0f / (1.0f + expf(-(logits[b] + shift)));
            slopes[b] = (p - std::min(label[b], 1.0f)) * (weight ? weight[b] : 1.0f);
            of_bias += slopes[b];
            if (h) of_results[last][b] = slopes[b];
            bound += fabsf(slopes[b]);
        }
        for (int64_t l = last; h && l >= 0; --l) {
            const int64_t o = sizes[l];
            float* const of_result = of_results[l].data();
            if (l < last) {
                const int64_t p = sizes[l + 1];
                BY_FOUR(multiply_turned, n, o, p, &of_results[l + 1][b * p], p, this->weight(l).value,
                        of_result + b * o, o)
                for (int64_t at = 0; at < n * o; ++at) of_result[at] = inputs[l][at] <= 0 ? 0 : of_result[at];
                bound += bound_of(inputs[l].data(), o, of_results[l + 1].data(), p);
            }
            float* __restrict__ const of_bias_ = of_biases[l].data();
            std::fill_n(of_bias_, o, 0.0f);
            for (int64_t b = 0; b < n; ++b)
                for (int64_t at = 0; at < o; ++at) of_bias_[at] += of_result[b * o + at];
        }
        if (h) {
            const int64_t i = vectors();
            BY_FOUR(multiply_turned, n, i, h, &of_results[0][b * h], h, fields_weight().value, of_v.data() + b * i, i)
            bound +=
                bound_of(v.data(), i, of_results[0].data(), h) + bound_of(x.data(), of.dense, of_results[0].data(), h);
        } else {
            std::fill(of_v.begin(), of_v.end(), 0.0f);
        }
        std::fill(of_scale.begin(), of_scale.end(), 0.0f);
        std::fill(of_dense.begin(), of_dense.end(), 0.0f);
        for (int64_t b = 0; b < n; ++b) {
            const float g = slopes[b];
            const float* const total = &sums[b * s] + h + 1;
            for (int64_t d = 0; of.first && d < of.dense; ++d) of_dense[d] += g * x[b * of.dense + d];
            for (int64_t f = 0; f < of.fields; ++f) {
                const int64_t cell = b * of.fields + f;
                float* const to = of_values + cell * stride;
                if (of.first) {
                    to[0] = first_learned ? 0.0f : g * scale().value[f];
                    of_scale[f] += g * w[cell];
                }
                for (int64_t k = 0; k < of.dim; ++k) {
                    float of_k = of_v[cell * of.dim + k];
                    if (of.pairs && !pairs_learned) of_k += g * (total[k] - v[cell * of.dim + k]);
                    to[of.first + k] = of_k;
                }
                for (int64_t k = 0; k < width(); ++k) bound += fabsf(to[k]);
            }
        }
        for (const float each : of_scale) bound += fabsf(each);
        for (const float each : of_dense) bound += fabsf(each);
        return bound;
    }

    double bound_of(const float* a, int64_t inputs_, const float* g, int64_t outputs) const {
        double bound = 0;
        for (int64_t b = 0; b < examples; ++b) {
            double left = 0, right = 0;
            for (int64_t i = 0; i < inputs_; ++i) left += fabsf(a[b * inputs_ + i]);
            for (int64_t o = 0; o < outputs; ++o) right += fabsf(g[b * outputs + o]);
            bound += left * right;
        }
        return bound;
    }

    void learn_matrix(const Adam& adam, Parameter to, const float* a, int64_t inputs_, const float* g,
                      int64_t outputs) {
        for (int64_t i = 0; i < inputs_; ++i) {
            float* __restrict__ const of_row = row.data();
            std::fill_n(of_row, outputs, 0.0f);
            for (int64_t b = 0; b < examples; ++b) {
                const float left = a[b * inputs_ + i];
                const float* __restrict__ const right = g + b * outputs;
                for (int64_t o = 0; o < outputs; ++o) of_row[o] += left * right[o];
            }
            const int64_t at = i * outputs;
            adam(outputs, of_row, to.value + at, to.mean + at, to.square + at);
        }
    }

    void update(const Adam& adam, float bias_rate, float curvature, float scale_rate) {
        const Flushed flushed;
        const int64_t h = of.hidden;
        const auto learn = [&](Parameter to, const std::vector<float>& sums_) {
            adam(sums_.size(), sums_.data(), to.value, to.mean, to.square);
        };
        if (h) {
            learn_matrix(adam, fields_weight(), v.data(), vectors(), of_results[0].data(), h);
            learn_matrix(adam, dense_weight(), x.data(), of.dense, of_results[0].data(), h);
            learn(first_bias(), of_biases[0]);
        }
        for (int64_t l = 0; l < of.layers; ++l) {
            learn_matrix(adam, weight(l), inputs[l].data(), sizes[l], of_results[l + 1].data(), sizes[l + 1]);
            learn(layer_bias(l), of_biases[l + 1]);
        }
        if (of.first) learn(of_x(), of_dense);
        const float size = adagrad(*bias().square, of_bias) / bias_rate;
        *bias().value -= of_bias / std::max(size, curvature);
        for (int64_t f = 0; of.first && scale_rate > 0 && f < of.fields; ++f) {
            float& s = scale().value[f];
            s = std::max(s - scale_rate * of_scale[f] / adagrad(scale().square[f], of_scale[f]), 0.0f);
        }
    }
};

}  // namespace
}  // namespace small_batch
