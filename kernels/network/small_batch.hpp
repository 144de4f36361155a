// Networks of a small batch, learned without torch (host only): partial sums, layers, gradients and Adam. One thread: a
// step of a few examples is as short as the start of a second thread.
//
// values are rows f32[B, F, row], of which a network reads some from an address on; x are dense features f32[B, D], which
// layers take as s = symlog(x).
// Partial sums of a rank's fields, S numbers of an example, are
//
//     Layered    [Σ_f v_f W_f + s U | Σ_f s_f w_f + x u − ½ Σ_f ‖v_f‖² | Σ_f v_f]     S = H + first + K · pairs
//                LR, FM, DNN, Wide & Deep, DeepFM (models/forward.py, `ForwardLayers`); rows have [w | v]
//     Crossed    [Σ_f v_f W_f + s U | c_0 … c_L | d_1 … d_L]                          S = H + 2 L + 1
//                models/dcn.py; rows have v
//     Products   [Σ_f v_f W_f + s U | δ or Σ_f v_f]                                   S = H + H K, H + K
//                models/pnn.py; rows have v
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

#include "network/symlog.hpp"

// Its names have linkage: one unit makes networks, and others call them.
namespace small_batch {

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

constexpr float LEAST_SIZE = 1e-30f;  // of dense features whose weights are learned
constexpr float FIRST = 0.01f;        // under the root of their rate: _FIRST of trainer/des/dense.py
constexpr float FEW = 4.0f;           // squared gradients below which a centre is not known

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
    float* centre;                 // of the weights of dense features; else null
};

// AdaGrad of a bias, which moves by no more than Newton's step. rate 0: it is learned already.
inline void learn_bias(Parameter bias, float gradient, float rate, float curvature) {
    if (!(rate > 0)) return;
    const float size = adagrad(*bias.square, gradient) / rate;
    *bias.value -= gradient / std::max(size, curvature);
}

// Sum over the examples of the products of the sums of both factors' absolute values: of a gradient Σ_b a_b g_bᵀ.
inline double bound_of(int64_t examples, const float* a, int64_t inputs, const float* g, int64_t outputs) {
    double bound = 0;
    for (int64_t b = 0; b < examples; ++b) {
        double left = 0, right = 0;
        for (int64_t i = 0; i < inputs; ++i) left += fabsf(a[b * inputs + i]);
        for (int64_t o = 0; o < outputs; ++o) right += fabsf(g[b * outputs + o]);
        bound += left * right;
    }
    return bound;
}

// First layer of n ≤ `most` examples' vectors v and numbers s, and the layers after it, with relu between them. Without
// a first layer it only holds v.
struct Deep {
    int64_t vectors, dense, hidden, layers;
    std::vector<int64_t> sizes;  // H, then outputs of each layer after the first
    Parameter of_fields, of_dense, first_bias;
    std::vector<Parameter> given;                                   // each layer's weight and bias
    std::vector<float> v, s, of_v, row;                             // of the batch; `row`: of a matrix
    std::vector<std::vector<float>> inputs, of_results, of_biases;  // inputs[layers]: the results

    // parameters: W, U, b₁, and each layer's weight and bias.
    Deep(int64_t vectors, int64_t dense, int64_t layers, int64_t most, const int64_t* outputs,
         const Parameter* parameters)
        : vectors(vectors),
          dense(dense),
          hidden(outputs[0]),
          layers(layers),
          sizes(outputs, outputs + layers + 1),
          of_fields(parameters[0]),
          of_dense(parameters[1]),
          first_bias(parameters[2]),
          given(parameters + 3, parameters + 3 + 2 * layers),
          v(most * vectors),
          s(most * dense),
          of_v(most * vectors),
          row(*std::max_element(sizes.begin(), sizes.end())) {
        for (const int64_t size : sizes) {
            inputs.emplace_back(most * size);
            of_results.emplace_back(most * size);
            of_biases.emplace_back(size);
        }
    }

    // out[n, H] += the first layer's product, rows ld apart.
    void add_product(int64_t n, float* out, int64_t ld) const {
        BY_FOUR(multiply, n, vectors, hidden, v.data() + b * vectors, vectors, of_fields.value, out + b * ld, ld)
        if (dense) BY_FOUR(multiply, n, dense, hidden, &s[b * dense], dense, of_dense.value, out + b * ld, ld)
    }

    void finish(int64_t n, const float* sums, int64_t ld) {
        for (int64_t b = 0; b < n; ++b)
            for (int64_t o = 0; o < hidden; ++o)
                inputs[0][b * hidden + o] = std::max(sums[b * ld + o] + first_bias.value[o], 0.0f);
        for (int64_t l = 0; l < layers; ++l) {
            const int64_t i = sizes[l], o = sizes[l + 1];
            float* const to = inputs[l + 1].data();
            for (int64_t b = 0; b < n; ++b) std::memcpy(to + b * o, given[2 * l + 1].value, o * sizeof(float));
            BY_FOUR(multiply, n, i, o, &inputs[l][b * i], i, given[2 * l].value, to + b * o, o)
            for (int64_t at = 0; l + 1 < layers && at < n * o; ++at) to[at] = std::max(to[at], 0.0f);
        }
    }

    // Gradients of all before, from of_results[layers]; of_v[n, vectors] is that of v. Returns a bound of the sum of the
    // absolute values of the matrices' gradients.
    double backward(int64_t n) {
        double bound = 0;
        for (int64_t l = layers; l >= 0; --l) {
            const int64_t o = sizes[l];
            float* const of_result = of_results[l].data();
            if (l < layers) {
                const int64_t p = sizes[l + 1];
                BY_FOUR(multiply_turned, n, o, p, &of_results[l + 1][b * p], p, given[2 * l].value, of_result + b * o,
                        o)
                for (int64_t at = 0; at < n * o; ++at) of_result[at] = inputs[l][at] <= 0 ? 0 : of_result[at];
                bound += bound_of(n, inputs[l].data(), o, of_results[l + 1].data(), p);
            }
            float* __restrict__ const of_bias = of_biases[l].data();
            std::fill_n(of_bias, o, 0.0f);
            for (int64_t b = 0; b < n; ++b)
                for (int64_t at = 0; at < o; ++at) of_bias[at] += of_result[b * o + at];
        }
        const float* const of_first = of_results[0].data();
        BY_FOUR(multiply_turned, n, vectors, hidden, &of_first[b * hidden], hidden, of_fields.value,
                of_v.data() + b * vectors, vectors)
        return bound + bound_of(n, v.data(), vectors, of_first, hidden) +
               bound_of(n, s.data(), dense, of_first, hidden);
    }

    void update(int64_t n, const Adam& adam) {
        learn_matrix(n, adam, of_fields, v.data(), vectors, of_results[0].data(), hidden);
        learn_matrix(n, adam, of_dense, s.data(), dense, of_results[0].data(), hidden);
        learn(adam, first_bias, of_biases[0]);
        for (int64_t l = 0; l < layers; ++l) {
            learn_matrix(n, adam, given[2 * l], inputs[l].data(), sizes[l], of_results[l + 1].data(), sizes[l + 1]);
            learn(adam, given[2 * l + 1], of_biases[l + 1]);
        }
    }

    static void learn(const Adam& adam, Parameter to, const std::vector<float>& sums) {
        adam(sums.size(), sums.data(), to.value, to.mean, to.square);
    }

    void learn_matrix(int64_t n, const Adam& adam, Parameter to, const float* a, int64_t inputs_, const float* g,
                      int64_t outputs) {
        for (int64_t i = 0; i < inputs_; ++i) {
            float* __restrict__ const of_row = row.data();
            std::fill_n(of_row, outputs, 0.0f);
            for (int64_t b = 0; b < n; ++b) {
                const float left = a[b * inputs_ + i];
                const float* __restrict__ const right = g + b * outputs;
                for (int64_t o = 0; o < outputs; ++o) of_row[o] += left * right[o];
            }
            const int64_t at = i * outputs;
            adam(outputs, of_row, to.value + at, to.mean + at, to.square + at);
        }
    }
};

// Labels of n examples, and what moves their logits f32[n]. weight: of the examples' losses, or null.
struct Targets {
    const float* logits;
    float shift;
    const float *label, *weight;

    // Gradients of the examples' losses by their logits.
    void slopes(int64_t n, float* out) const {
        for (int64_t b = 0; b < n; ++b) {
            const float p = 1.0f / (1.0f + expf(-(logits[b] + shift)));
            out[b] = (p - std::min(label[b], 1.0f)) * (weight ? weight[b] : 1.0f);
        }
    }
};

// Rates of an update besides Adam's. bias 0, scale 0: they are learned already; settles: as trainer/des/dense.py has it.
struct OtherRates {
    float bias, curvature, scale, number;
    bool settles = false;
};

// Network of one batch after the other: read, add_partial, finish, backward, update.
class Network {
  public:
    virtual ~Network() = default;

    virtual int64_t partial() const = 0;  // S
    virtual void read(int64_t n, const float* values, int64_t stride, const float* dense) = 0;
    virtual void add_partial(float* out, int64_t ld) = 0;
    virtual void finish(const float* sums, int64_t ld, float* logits) = 0;
    // Gradients of the sum of the examples' losses. Returns a bound of the sum of their absolute values: the products
    // of the sums of both factors' for a matrix. It is not finite where a gradient is not.
    virtual double backward(const Targets& targets, bool first_learned, bool pairs_learned, float* of_values,
                            int64_t stride) = 0;
    // Returns what the weights of dense features have moved the mean of all logits by, which a bias takes back.
    virtual float update(const Adam& adam, const OtherRates& rates) = 0;
    virtual Parameter scale() const { return {}; }  // of the first order
    virtual Parameter bias() const { return {}; }   // of a network with a first order
};

class Layered final : public Network {
  public:
    struct Shape {
        int64_t fields, dim, dense, first, pairs, layers, most;  // `most` examples of a batch
    };

    // parameters: of the bias, the scales, u, W, U, b₁, and each layer's weight and bias.
    Layered(const Shape& shape, const int64_t* outputs, const Parameter* parameters)
        : of(shape),
          bias_(parameters[0]),
          scale_(parameters[1]),
          of_x_(parameters[2]),
          deep_(shape.fields * shape.dim, shape.dense, shape.layers, shape.most, outputs, parameters + 3),
          w_(of.most * of.fields),
          x_(of.most * of.dense),
          sums_(of.most * partial()),
          of_scale_(of.fields),
          of_dense_(of.dense),
          squares_(of.dim),
          slopes_(of.most) {}

    int64_t partial() const override { return deep_.hidden + of.first + of.dim * of.pairs; }
    Parameter scale() const override { return scale_; }
    Parameter bias() const override { return bias_; }

    void read(int64_t n, const float* values, int64_t stride, const float* dense) override {
        examples_ = n;
        for (int64_t cell = 0; cell < n * of.fields; ++cell) {
            const float* const from = values + cell * stride;
            if (of.first) w_[cell] = from[0];
            std::copy_n(from + of.first, of.dim, deep_.v.data() + cell * of.dim);  // LR has no v
        }
        if (of.first && of.dense) std::memcpy(x_.data(), dense, n * of.dense * sizeof(float));
        if (deep_.hidden) symlog(dense, n * of.dense, deep_.s.data());
    }

    void add_partial(float* out, int64_t ld) override {
        const int64_t n = examples_, h = deep_.hidden;
        for (int64_t b = 0; b < n; ++b) {
            float* const to = out + b * ld;
            std::fill_n(to, partial(), 0.0f);
            const float *const of_b = deep_.v.data() + b * deep_.vectors, *const x = x_.data() + b * of.dense;
            for (int64_t f = 0; of.first && f < of.fields; ++f) to[h] += scale_.value[f] * w_[b * of.fields + f];
            for (int64_t d = 0; of.first && d < of.dense; ++d) to[h] += x[d] * of_x_.value[d];
            if (!of.pairs) continue;
            float* __restrict__ const total = to + h + 1;
            float squares = 0;
            std::fill(squares_.begin(), squares_.end(), 0.0f);
            for (int64_t f = 0; f < of.fields; ++f)
                for (int64_t k = 0; k < of.dim; ++k) {
                    total[k] += of_b[f * of.dim + k];
                    squares_[k] += of_b[f * of.dim + k] * of_b[f * of.dim + k];
                }
            for (int64_t k = 0; k < of.dim; ++k) squares += squares_[k];
            to[h] -= 0.5f * squares;
        }
        if (h) deep_.add_product(n, out, ld);
    }

    void finish(const float* given_sums, int64_t ld, float* logits) override {
        const int64_t n = examples_, h = deep_.hidden, s = partial();
        for (int64_t b = 0; b < n; ++b) std::memcpy(&sums_[b * s], given_sums + b * ld, s * sizeof(float));
        if (h) deep_.finish(n, sums_.data(), s);
        for (int64_t b = 0; b < n; ++b) {
            float logit = h ? deep_.inputs[of.layers][b] : 0.0f;
            if (of.first) logit += sums_[b * s + h];
            float squares = 0;
            for (int64_t k = 0; of.pairs && k < of.dim; ++k) {
                const float total = sums_[b * s + h + 1 + k];
                squares += total * total;
            }
            logits[b] = logit + 0.5f * squares + bias_.value[0];
        }
    }

    double backward(const Targets& targets, bool first_learned, bool pairs_learned, float* of_values,
                    int64_t stride) override {
        const int64_t n = examples_, h = deep_.hidden, s = partial();
        double bound = 0;
        of_bias_ = 0;
        targets.slopes(n, slopes_.data());
        for (int64_t b = 0; b < n; ++b) {
            of_bias_ += slopes_[b];
            if (h) deep_.of_results[of.layers][b] = slopes_[b];
            bound += fabsf(slopes_[b]);
        }
        if (h) {
            bound += deep_.backward(n);
        } else {
            std::fill(deep_.of_v.begin(), deep_.of_v.end(), 0.0f);
        }
        std::fill(of_scale_.begin(), of_scale_.end(), 0.0f);
        std::fill(of_dense_.begin(), of_dense_.end(), 0.0f);
        for (int64_t b = 0; b < n; ++b) {
            const float g = slopes_[b];
            const float* const total = &sums_[b * s] + h + 1;
            for (int64_t d = 0; of.first && d < of.dense; ++d) of_dense_[d] += g * x_[b * of.dense + d];
            for (int64_t f = 0; f < of.fields; ++f) {
                const int64_t cell = b * of.fields + f;
                float* const to = of_values + cell * stride;
                if (of.first) {
                    to[0] = first_learned ? 0.0f : g * scale_.value[f];
                    of_scale_[f] += g * w_[cell];
                }
                for (int64_t k = 0; k < of.dim; ++k) {
                    float of_k = deep_.of_v[cell * of.dim + k];
                    if (of.pairs && !pairs_learned) of_k += g * (total[k] - deep_.v[cell * of.dim + k]);
                    to[of.first + k] = of_k;
                }
                for (int64_t k = 0; k < of.first + of.dim; ++k) bound += fabsf(to[k]);
            }
        }
        for (const float each : of_scale_) bound += fabsf(each);
        for (const float each : of_dense_) bound += fabsf(each);
        return bound;
    }

    float update(const Adam& adam, const OtherRates& rates) override {
        const Flushed flushed;
        if (deep_.hidden) deep_.update(examples_, adam);
        const float moved = of.first ? learn_numbers(rates.number, !(rates.bias > 0)) : 0.0f;
        learn_bias(bias_, of_bias_, rates.bias, rates.curvature);
        for (int64_t f = 0; of.first && rates.scale > 0 && f < of.fields; ++f) {
            float& s = scale_.value[f];
            const float g = of_scale_[f], root = adagrad(scale_.square[f], g);
            s = std::max(
                s - (rates.settles ? g / std::max(root / rates.scale, scale_.square[f]) : rates.scale * g / root),
                0.0f);
        }
        return moved;
    }

  private:
    Shape of;
    Parameter bias_, scale_, of_x_;
    Deep deep_;
    std::vector<float> w_, x_, sums_, of_scale_, of_dense_, squares_, slopes_;
    int64_t examples_ = 0;
    float of_bias_ = 0;

    // Normalised AdaGrad of dense features' weights: `mean` has their sizes, `centre` their means (trainer/des/dense.py).
    // Returns as `update` does; 0 if they are not centred.
    float learn_numbers(float rate, bool centred) {
        float moved = 0.0f, squares = 0.0f;
        for (int64_t b = 0; b < examples_; ++b) squares += slopes_[b] * slopes_[b];
        const float all = fmaxf(bias_.square[0] + FEW, squares);
        for (int64_t d = 0; d < of.dense; ++d) {
            float &u = of_x_.value[d], &size = of_x_.mean[d];
            float largest = size;
            for (int64_t b = 0; b < examples_; ++b) largest = std::max(largest, fabsf(x_[b * of.dense + d]));
            const float shrink = size > 0 ? size / std::max(largest, LEAST_SIZE) : 1.0f;
            size = largest;
            u = u * shrink;
            if (size < LEAST_SIZE) continue;
            const float unit = of_dense_[d] / size;
            of_x_.square[d] += unit * unit;
            const float step = rate * (unit / sqrtf(FIRST + of_x_.square[d]) / size);
            u -= step;
            if (!centred) continue;
            moved -= step * of_x_.centre[d];
            float of_squares = 0.0f;
            for (int64_t b = 0; b < examples_; ++b) of_squares += slopes_[b] * slopes_[b] * x_[b * of.dense + d];
            of_x_.centre[d] += (of_squares - of_x_.centre[d] * squares) / all;
        }
        return isfinite(moved) ? moved : 0.0f;
    }
};

// Network whose rows are vectors, with a first layer of all of them.
class OfVectors : public Network {
  public:
    struct Shape {
        int64_t fields, dim, dense, layers, most;
    };

    // parameters: of the bias, W, U, b₁, and each layer's weight and bias.
    OfVectors(const Shape& shape, const int64_t* outputs, const Parameter* parameters)
        : of(shape),
          bias_(parameters[0]),
          deep_(of.fields * of.dim, of.dense, of.layers, of.most, outputs, parameters + 1),
          slopes_(of.most) {}

    void read(int64_t n, const float* values, int64_t stride, const float* dense) override {
        examples_ = n;
        for (int64_t cell = 0; cell < n * of.fields; ++cell)
            std::copy_n(values + cell * stride, of.dim, deep_.v.data() + cell * of.dim);
        symlog(dense, n * of.dense, deep_.s.data());
    }

  protected:
    Shape of;
    Parameter bias_;
    Deep deep_;
    std::vector<float> slopes_;
    int64_t examples_ = 0;
    float of_bias_ = 0;

    // Gradients by the logits, then of the layers.
    double begin_backward(const Targets& targets) {
        double bound = 0;
        of_bias_ = 0;
        targets.slopes(examples_, slopes_.data());
        for (int64_t b = 0; b < examples_; ++b) {
            of_bias_ += slopes_[b];
            deep_.of_results[of.layers][b] = slopes_[b];
            bound += fabsf(slopes_[b]);
        }
        return bound + deep_.backward(examples_);
    }

    // Writes the gradients of the vectors.
    double end_backward(float* of_values, int64_t stride) const {
        double bound = 0;
        const float* from = deep_.of_v.data();
        for (int64_t cell = 0; cell < examples_ * of.fields; ++cell)
            for (int64_t k = 0; k < of.dim; ++k) bound += fabsf(of_values[cell * stride + k] = *from++);
        return bound;
    }
};

// Deep & Cross with one ⊕: α_1 = 1 + c_0, α_{l+1} = α_l + α_l c_l + d_l, logit = MLP + α_L c_L + d_L + b.
class Crossed final : public OfVectors {
  public:
    // parameters: those of OfVectors, then w f32[F K, L + 1] and b f32[F K, L], and the dense features'.
    Crossed(const Shape& shape, int64_t crosses, const int64_t* outputs, const Parameter* parameters)
        : OfVectors(shape, outputs, parameters),
          crosses_(crosses),
          alpha_(of.most * (crosses + 1)),
          of_c_(of.most * (crosses + 1)),
          sums_(of.most * (2 * crosses + 1)),
          of_d_(crosses + 1),
          of_weight_(crosses + 1),
          of_bias_row_(crosses) {
        std::copy_n(parameters + 4 + 2 * of.layers, 4, cross_);
    }

    int64_t partial() const override { return deep_.hidden + 2 * crosses_ + 1; }

    void add_partial(float* out, int64_t ld) override {
        const int64_t n = examples_, h = deep_.hidden;
        for (int64_t b = 0; b < n; ++b) std::fill_n(out + b * ld, partial(), 0.0f);
        deep_.add_product(n, out, ld);
        for (int kind = 0; kind < 2; ++kind) {
            const auto [rows, inputs] = block(kind);
            for (int64_t b = 0; b < n; ++b)
                for (int64_t i = 0; i < rows; ++i)
                    for (int64_t l = 0; l <= crosses_; ++l)
                        out[b * ld + h + l] += inputs[b * rows + i] * weight(kind)[i * (crosses_ + 1) + l];
            std::fill(of_d_.begin(), of_d_.end(), 0.0f);  // d_1 … d_L, the same for all examples
            for (int64_t i = 0; i < rows; ++i) {
                float beta = 0;
                for (int64_t l = 1; l <= crosses_; ++l) {
                    beta += bias_of(kind)[i * crosses_ + l - 1];
                    of_d_[l] += beta * weight(kind)[i * (crosses_ + 1) + l];
                }
            }
            for (int64_t b = 0; b < n; ++b)
                for (int64_t l = 1; l <= crosses_; ++l) out[b * ld + h + crosses_ + l] += of_d_[l];
        }
    }

    void finish(const float* given_sums, int64_t ld, float* logits) override {
        const int64_t n = examples_, h = deep_.hidden, last = crosses_, width = 2 * last + 1;
        deep_.finish(n, given_sums, ld);
        for (int64_t b = 0; b < n; ++b) {
            float *const c = &sums_[b * width], *const alpha = &alpha_[b * (last + 1)];
            std::copy_n(given_sums + b * ld + h, width, c);
            const float* const d = c + last;  // d[l] is d_l, from 1 on
            alpha[0] = 1.0f;
            alpha[1] = 1.0f + c[0];
            for (int64_t l = 1; l < last; ++l) alpha[l + 1] = alpha[l] + alpha[l] * c[l] + d[l];
            logits[b] = deep_.inputs[of.layers][b] + alpha[last] * c[last] + d[last] + bias_.value[0];
        }
    }

    double backward(const Targets& targets, bool, bool, float* of_values, int64_t stride) override {
        const int64_t n = examples_, last = crosses_, width = 2 * last + 1;
        double bound = begin_backward(targets);
        std::fill(of_d_.begin(), of_d_.end(), 0.0f);
        for (int64_t b = 0; b < n; ++b) {
            const float *const c = &sums_[b * width], *const alpha = &alpha_[b * (last + 1)];
            float *const of_c = &of_c_[b * (last + 1)], of_alpha = slopes_[b] * c[last];
            of_c[last] = slopes_[b] * alpha[last];
            of_d_[last] += slopes_[b];
            for (int64_t l = last - 1; l >= 1; --l) {
                of_c[l] = of_alpha * alpha[l];
                of_d_[l] += of_alpha;
                of_alpha *= 1.0f + c[l];
            }
            of_c[0] = of_alpha;
        }
        for (int64_t b = 0; b < n; ++b)
            for (int64_t i = 0; i < deep_.vectors; ++i)
                for (int64_t l = 0; l <= last; ++l)
                    deep_.of_v[b * deep_.vectors + i] += of_c_[b * (last + 1) + l] * weight(0)[i * (last + 1) + l];
        for (int kind = 0; kind < 2; ++kind) {
            const auto [rows, inputs] = block(kind);
            bound += bound_of(n, inputs, rows, of_c_.data(), last + 1);
            double constants = 0, sums = 0;
            for (int64_t at = 0; at < rows * (last + 1); ++at) constants += fabsf(weight(kind)[at]);
            for (int64_t at = 0; at < rows * last; ++at) constants += fabsf(bias_of(kind)[at]);
            for (const float each : of_d_) sums += fabsf(each);
            bound += constants * sums;
        }
        return bound + end_backward(of_values, stride);
    }

    float update(const Adam& adam, const OtherRates& rates) override {
        const Flushed flushed;
        const int64_t last = crosses_;
        for (int kind = 0; kind < 2; ++kind) {  // before the layers learn, which read the same inputs
            const auto [rows, inputs] = block(kind);
            for (int64_t i = 0; i < rows; ++i) {
                const float *const w = weight(kind) + i * (last + 1), *const bias = bias_of(kind) + i * last;
                std::fill(of_weight_.begin(), of_weight_.end(), 0.0f);
                for (int64_t b = 0; b < examples_; ++b)
                    for (int64_t l = 0; l <= last; ++l)
                        of_weight_[l] += inputs[b * rows + i] * of_c_[b * (last + 1) + l];
                float beta = 0;
                for (int64_t l = 1; l <= last; ++l) {
                    beta += bias[l - 1];
                    of_weight_[l] += of_d_[l] * beta;
                }
                float later = 0;
                for (int64_t l = last; l >= 1; --l) of_bias_row_[l - 1] = later += of_d_[l] * w[l];
                learn_row(adam, cross_[2 * kind], i, of_weight_);
                learn_row(adam, cross_[2 * kind + 1], i, of_bias_row_);
            }
        }
        deep_.update(examples_, adam);
        learn_bias(bias_, of_bias_, rates.bias, rates.curvature);
        return 0.0f;
    }

  private:
    struct Rows {
        int64_t rows;
        const float* inputs;  // of n examples
    };

    int64_t crosses_;     // L
    Parameter cross_[4];  // w and b of the fields, then of the dense features
    std::vector<float> alpha_, of_c_, sums_, of_d_, of_weight_, of_bias_row_;

    Rows block(int kind) const {
        if (kind) return {of.dense, deep_.s.data()};
        return {deep_.vectors, deep_.v.data()};
    }
    const float* weight(int kind) const { return cross_[2 * kind].value; }
    const float* bias_of(int kind) const { return cross_[2 * kind + 1].value; }
    static void learn_row(const Adam& adam, Parameter to, int64_t row, const std::vector<float>& sums) {
        const int64_t at = row * sums.size();
        adam(sums.size(), sums.data(), to.value + at, to.mean + at, to.square + at);
    }
};

// Products of vectors before the layers: l_p joins the first layer's product.
class Products final : public OfVectors {
  public:
    // parameters: those of OfVectors, then θ f32[F, H], or W f32[K, K H] of the outer product.
    Products(const Shape& shape, bool outer, const int64_t* outputs, const Parameter* parameters)
        : OfVectors(shape, outputs, parameters),
          outer_(outer),
          product_(parameters[4 + 2 * of.layers]),
          size_(outer ? of.dim : deep_.hidden * of.dim),
          sums_(of.most * size_),
          of_sums_(of.most * size_),
          first_(of.most * deep_.hidden),
          row_(std::max(deep_.hidden, of.dim * deep_.hidden)) {}

    int64_t partial() const override { return deep_.hidden + size_; }

    void add_partial(float* out, int64_t ld) override {
        const int64_t h = deep_.hidden, dim = of.dim;
        for (int64_t b = 0; b < examples_; ++b) {
            std::fill_n(out + b * ld, partial(), 0.0f);
            float* const to = out + b * ld + h;
            for (int64_t f = 0; f < of.fields; ++f) {
                const float* const v = deep_.v.data() + (b * of.fields + f) * dim;
                if (outer_) {
                    for (int64_t k = 0; k < dim; ++k) to[k] += v[k];
                    continue;
                }
                for (int64_t u = 0; u < h; ++u)
                    for (int64_t k = 0; k < dim; ++k) to[u * dim + k] += product_.value[f * h + u] * v[k];
            }
        }
        deep_.add_product(examples_, out, ld);
    }

    void finish(const float* given_sums, int64_t ld, float* logits) override {
        const int64_t n = examples_, h = deep_.hidden, dim = of.dim;
        for (int64_t b = 0; b < n; ++b) {
            float *const s = &sums_[b * size_], *const first = &first_[b * h];
            std::copy_n(given_sums + b * ld, h, first);
            std::copy_n(given_sums + b * ld + h, size_, s);
            if (outer_) {
                for (int64_t k = 0; k < dim; ++k)
                    for (int64_t j = 0; j < dim; ++j)
                        for (int64_t u = 0; u < h; ++u) first[u] += s[k] * s[j] * weight(k, j)[u];
                continue;
            }
            for (int64_t u = 0; u < h; ++u)
                for (int64_t k = 0; k < dim; ++k) first[u] += s[u * dim + k] * s[u * dim + k];
        }
        deep_.finish(n, first_.data(), h);
        for (int64_t b = 0; b < n; ++b) logits[b] = deep_.inputs[of.layers][b] + bias_.value[0];
    }

    double backward(const Targets& targets, bool, bool, float* of_values, int64_t stride) override {
        const int64_t n = examples_, h = deep_.hidden, dim = of.dim;
        double bound = begin_backward(targets);
        std::fill(of_sums_.begin(), of_sums_.end(), 0.0f);
        for (int64_t b = 0; b < n; ++b) {
            const float *const s = &sums_[b * size_], *const of_first = &deep_.of_results[0][b * h];
            float* const of_s = &of_sums_[b * size_];
            if (outer_) {
                for (int64_t k = 0; k < dim; ++k)
                    for (int64_t j = 0; j < dim; ++j) {
                        float total = 0;
                        for (int64_t u = 0; u < h; ++u) total += weight(k, j)[u] * of_first[u];
                        of_s[k] += s[j] * total;
                        of_s[j] += s[k] * total;
                    }
            } else {
                for (int64_t u = 0; u < h; ++u)
                    for (int64_t k = 0; k < dim; ++k) of_s[u * dim + k] = 2.0f * s[u * dim + k] * of_first[u];
            }
            for (int64_t f = 0; f < of.fields; ++f) {
                float* const of_v = &deep_.of_v[(b * of.fields + f) * dim];
                if (outer_) {
                    for (int64_t k = 0; k < dim; ++k) of_v[k] += of_s[k];
                    continue;
                }
                for (int64_t u = 0; u < h; ++u)
                    for (int64_t k = 0; k < dim; ++k) of_v[k] += product_.value[f * h + u] * of_s[u * dim + k];
            }
        }
        if (outer_) {
            for (int64_t b = 0; b < n; ++b) {
                double total = 0, of_first = 0;
                for (int64_t k = 0; k < dim; ++k) total += fabsf(sums_[b * size_ + k]);
                for (int64_t u = 0; u < h; ++u) of_first += fabsf(deep_.of_results[0][b * h + u]);
                bound += total * total * of_first;
            }
        } else {
            bound += bound_of(n, deep_.v.data(), deep_.vectors, of_sums_.data(), size_);
        }
        return bound + end_backward(of_values, stride);
    }

    float update(const Adam& adam, const OtherRates& rates) override {
        const Flushed flushed;
        const int64_t h = deep_.hidden, dim = of.dim;
        const int64_t rows = outer_ ? dim : of.fields, width = outer_ ? dim * h : h;
        for (int64_t i = 0; i < rows; ++i) {
            std::fill_n(row_.data(), width, 0.0f);
            for (int64_t b = 0; b < examples_; ++b) {
                const float *const s = &sums_[b * size_], *const of_first = &deep_.of_results[0][b * h];
                if (outer_) {
                    for (int64_t j = 0; j < dim; ++j)
                        for (int64_t u = 0; u < h; ++u) row_[j * h + u] += s[i] * s[j] * of_first[u];
                    continue;
                }
                const float *const v = &deep_.v[(b * of.fields + i) * dim], *const of_s = &of_sums_[b * size_];
                for (int64_t u = 0; u < h; ++u)
                    for (int64_t k = 0; k < dim; ++k) row_[u] += of_s[u * dim + k] * v[k];
            }
            const int64_t at = i * width;
            adam(width, row_.data(), product_.value + at, product_.mean + at, product_.square + at);
        }
        deep_.update(examples_, adam);
        learn_bias(bias_, of_bias_, rates.bias, rates.curvature);
        return 0.0f;
    }

  private:
    bool outer_;
    Parameter product_;
    int64_t size_;  // partial sums of the products
    std::vector<float> sums_, of_sums_, first_, row_;

    const float* weight(int64_t k, int64_t j) const { return product_.value + (k * of.dim + j) * deep_.hidden; }
};

}  // namespace small_batch
