// Layers after the first one, x_{l+1} = relu(x_l) W_l + b_l (models/fused.py, `perceptron`), a cache's worth of
// examples at a time; and beside them FM's substitution, s + ½ ‖v‖² of the numbers [s | v] that follow x in a row.
//
// Wide layers multiply packed factors, narrow ones float32. Sums over examples are of chunks of GRAIN, in order: bits
// do not depend on the threads, nor, with float32 factors, on the CPU.
#include "network/packed.hpp"

namespace livectr::layers {

using product::Matrix;
using product::with;

constexpr int64_t GRAIN = 264;  // examples; whole tiles of either size
constexpr int SUMS = 16;        // partial sums of a dot product, on any CPU

struct Layer {
    const float* weight;  // f32[inputs, outputs]
    const float* bias;
    int64_t inputs, outputs, kind;  // product::NONE: a narrow layer
};

inline float dot(const float* a, const float* b, int64_t n) {
    float sums[SUMS] = {};
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int j = 0; j < SUMS; ++j) sums[j] = std::fma(a[i + j], b[i + j], sums[j]);
    for (; i < n; ++i) sums[i % SUMS] = std::fma(a[i], b[i], sums[i % SUMS]);
    for (int half = SUMS / 2; half; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

// Adds n biases to a row, with an activation or not. NaN stays NaN.
inline void add_bias(float* row, const float* from, const float* bias, int64_t n, bool activate) {
    for (int64_t i = 0; i < n; ++i) {
        const float value = from[i] + bias[i];
        row[i] = activate && value < 0 ? 0 : value;
    }
}

// Layers and what their products need: panels of wide weights, or narrow weights turned to f32[outputs, inputs].
struct Network {
    const Layer* layers;
    int64_t count;
    std::vector<std::unique_ptr<uint32_t[]>> packed;
    std::vector<std::vector<float>> turned;

    // backward: packs the turned weights of wide layers.
    Network(const Layer* layers, int64_t count, bool backward)
        : layers(layers), count(count), packed(count), turned(count) {
        for (int64_t l = 0; l < count; ++l) {
            const auto [weight, bias, inputs, outputs, kind] = layers[l];
            if (kind == product::NONE) {
                turned[l].resize(inputs * outputs);
                for (int64_t i = 0; i < inputs; ++i)
                    for (int64_t o = 0; o < outputs; ++o) turned[l][o * inputs + i] = weight[i * outputs + o];
            } else {
                const Matrix<float> matrix{weight, backward ? 1 : outputs, backward ? outputs : 1};
                const int64_t n = backward ? inputs : outputs, k = backward ? outputs : inputs;
                with(kind, [&](auto factors) { packed[l] = product::packed<decltype(factors)>(matrix, n, k); });
            }
        }
    }

    // Places in a chunk's sums: of each layer's biases, which its weights follow if it is narrow; and the end.
    std::vector<int64_t> places() const {
        std::vector<int64_t> ends{layers[0].inputs};
        for (int64_t l = 0; l < count; ++l) {
            const Layer& layer = layers[l];
            const int64_t weights = layer.kind == product::NONE ? layer.inputs * layer.outputs : 0;
            ends.push_back(ends.back() + layer.outputs + weights);
        }
        return ends;
    }
};

}  // namespace livectr::layers

// Writes inputs[l] f32[B, inputs of l], the activated input of each layer, and out f32[B, outputs]. x has rows `ld`
// apart. pairs: K numbers v after s; -1: none. Returns false without memory.
extern "C" bool layers_forward(const void* given, int64_t count, int64_t examples, const float* x, int64_t ld,
                               int64_t pairs, const float* first_bias, float* const* inputs, float* out) {
    using namespace livectr;
    using namespace livectr::layers;
    try {
        const Network of(static_cast<const Layer*>(given), count, false);
        parallel_chunks(examples, GRAIN, [&](int64_t first, int64_t last) {
            const int64_t width = of.layers[0].inputs;
            for (int64_t b = first; b < last; ++b) add_bias(inputs[0] + b * width, x + b * ld, first_bias, width, true);
            for (int64_t l = 0; l < count; ++l) {
                const Layer& layer = of.layers[l];
                float* const to = l + 1 < count ? inputs[l + 1] : out;
                if (layer.kind == product::NONE) {
                    for (int64_t b = first; b < last; ++b)
                        for (int64_t o = 0; o < layer.outputs; ++o)
                            to[b * layer.outputs + o] =
                                dot(inputs[l] + b * layer.inputs, &of.turned[l][o * layer.inputs], layer.inputs);
                } else {
                    with(layer.kind, [&](auto factors) {
                        product::multiply_rows<decltype(factors)>(Matrix<float>{inputs[l], layer.inputs, 1},
                                                                  of.packed[l].get(), first, last, layer.outputs,
                                                                  layer.inputs, to, layer.outputs, false);
                    });
                }
                for (int64_t b = first; b < last; ++b) {
                    float* const row = to + b * layer.outputs;
                    add_bias(row, row, layer.bias, layer.outputs, l + 1 < count);
                }
            }
            for (int64_t b = first; pairs >= 0 && b < last; ++b) {
                const float* const sums = x + b * ld + width;
                out[b] += std::fma(0.5f, dot(sums + 1, sums + 1, pairs), sums[0]);
            }
        });
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// From grad f32[B, outputs], writes the gradients of x and what follows it in a row, of_x; of each layer's result,
// of_results[l] f32[B, outputs] but of the last; and of all biases and narrow weights, in one array: the first bias,
// then for each layer its bias, and its weight f32[outputs, inputs] if it is narrow. Returns false without memory.
extern "C" bool layers_backward(const void* given, int64_t count, int64_t examples, const float* grad,
                                const float* const* inputs, const float* x, int64_t ld, int64_t pairs, float* of_x,
                                int64_t of_ld, float* const* of_results, float* of_biases) {
    using namespace livectr;
    using namespace livectr::layers;
    try {
        const Network of(static_cast<const Layer*>(given), count, true);
        const std::vector<int64_t> places = of.places();
        const int64_t size = places.back(), chunks = (examples + GRAIN - 1) / GRAIN;
        std::unique_ptr<float[]> partial(new float[chunks * size]());
        parallel_chunks(examples, GRAIN, [&](int64_t first, int64_t last) {
            float* const sums = &partial[first / GRAIN * size];
            for (int64_t l = count - 1; l >= 0; --l) {
                const Layer& layer = of.layers[l];
                const float* const from = l + 1 < count ? of_results[l] : grad;
                float* const to = l ? of_results[l - 1] : of_x;
                const int64_t to_ld = l ? layer.inputs : of_ld;
                float *const of_bias = sums + places[l], *const of_weight = of_bias + layer.outputs;
                if (layer.kind != product::NONE) {
                    with(layer.kind, [&](auto factors) {
                        product::multiply_rows<decltype(factors)>(Matrix<float>{from, layer.outputs, 1},
                                                                  of.packed[l].get(), first, last, layer.inputs,
                                                                  layer.outputs, to, to_ld, false);
                    });
                }
                for (int64_t b = first; b < last; ++b) {
                    const float *const g = from + b * layer.outputs, *const input = inputs[l] + b * layer.inputs;
                    float* const row = to + b * to_ld;
                    for (int64_t o = 0; o < layer.outputs; ++o) of_bias[o] += g[o];
                    for (int64_t o = 0; layer.kind == product::NONE && o < layer.outputs; ++o) {
                        const float* const weight = &of.turned[l][o * layer.inputs];
                        float* const of_row = of_weight + o * layer.inputs;
                        for (int64_t i = 0; i < layer.inputs; ++i) {
                            of_row[i] = std::fma(g[o], input[i], of_row[i]);
                            row[i] = o ? std::fma(g[o], weight[i], row[i]) : g[o] * weight[i];
                        }
                    }
                    for (int64_t i = 0; i < layer.inputs; ++i) row[i] = input[i] <= 0 ? 0 : row[i];
                }
            }
            const int64_t width = of.layers[0].inputs;
            for (int64_t b = first; b < last; ++b) {
                float* const row = of_x + b * of_ld;
                for (int64_t i = 0; i < width; ++i) sums[i] += row[i];
                if (pairs < 0) continue;
                row[width] = grad[b];
                for (int64_t i = 1; i <= pairs; ++i) row[width + i] = grad[b] * x[b * ld + width + i];
            }
        });
        std::fill_n(of_biases, size, 0.0f);
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
            for (int64_t i = 0; i < size; ++i) of_biases[i] += partial[chunk * size + i];
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
