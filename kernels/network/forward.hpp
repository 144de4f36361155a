// Forward pass of a CTR network on the host, for servers: first layer, first order and FM out of rows as they lie in
// memory, then an MLP. A block of rows passes through all layers at once, so that its activations stay in the cache.
//
//     x₁ = act(added + Σ_s a_s W_s)                a_s: K_s numbers of a source, a field's vector or dense features
//     x_{l+1} = act(x_l W_l + b_l), the last layer without activation and with one unit
//     logit = x_L + first + ½ ‖Σ_f v_f‖²,  first = Σ_f s_f w_f + Σ_d x_d u_d − ½ Σ_f ‖v_f‖²
//
// A sum runs over its terms in order, whatever rows are beside it: equal rows have equal bits.
#pragma once
#include "runtime/threads.hpp"

#include <cstring>
#include <memory>
#include <vector>

namespace livectr::forward {

#ifdef __AVX512F__
constexpr int LANES = 16, MR = 12;
#else
constexpr int LANES = 8, MR = 6;
#endif
constexpr int NR = 2 * LANES;     // a tile of MR x NR sums fills the vector registers
constexpr int ROWS = 4 * MR;      // rows that pass through all layers together
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline int64_t padded(int64_t width) { return (width + NR - 1) / NR * NR; }

// Weights [K, width] as panels [padded / NR][K][NR], zeros where they end.
struct Packed {
    int64_t depth = 0, width = 0;
    std::vector<float> words;

    Packed(const float* weights, int64_t depth, int64_t width)
        : depth(depth), width(width), words(size_t(padded(width) * depth)) {
        for (int64_t k = 0; k < depth; ++k)
            for (int64_t j = 0; j < width; ++j)
                words[size_t((j / NR * depth + k) * NR + j % NR)] = weights[k * width + j];
    }
    const float* panel(int64_t j) const { return words.data() + j * depth * NR; }
};

// sums[MR][NR] += a [MR, depth] · panel; row r of a is at a[r].
inline void multiply(Vec (&sums)[MR][2], const float* const* a, const float* panel, int64_t depth) {
    const float* row[MR];
    for (int r = 0; r < MR; ++r) row[r] = a[r];
    for (int64_t k = 0; k < depth; ++k) {
        const Vec left = *reinterpret_cast<const Vec*>(panel + k * NR);
        const Vec right = *reinterpret_cast<const Vec*>(panel + k * NR + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const float value = row[r][k];
            sums[r][0] += value * left;
            sums[r][1] += value * right;
        }
    }
}

// A part of the inputs of every row: a field's vector, behind whose weight w it lies, or dense features.
struct Source {
    const float* data;  // of row 0
    int64_t stride;     // floats from row to row
    int32_t number;     // of the source in the network
};

struct Network {
    struct Layer {
        Packed weights;
        std::vector<float> bias, slopes;  // of the layer's results; slopes of PReLU, empty: ReLU
    };
    int64_t hidden = 0;            // H₁; 0: no MLP
    std::vector<int64_t> depths;   // K_s
    std::vector<Packed> first;     // W_s
    std::vector<float> bias;       // b₁, padded
    std::vector<float> slopes;     // of x₁
    std::vector<Layer> layers;     // without the last
    std::vector<float> last;       // weights of the last layer's unit
    float constant = 0;            // its bias, and the logit's
    bool wide = false, pairs = false;
    int64_t fields = 0;            // the first sources are fields
    std::vector<float> scale;      // s, [fields]
    std::vector<std::vector<float>> dense;  // u of each other source
    int64_t dim = 0;               // K of the fields

    // Partial result of one row of some sources: sums[padded H₁ + 1 + K], added to what is there.
    void partial(const Source* sources, int64_t count, float* sums) const {
        const int64_t across = padded(hidden) / NR;
        for (int64_t s = 0; s < count; ++s) {
            const Source& source = sources[s];
            for (int64_t j = 0; j < across; ++j) {
                const float* const panel = first[size_t(source.number)].panel(j);
                float* const out = sums + j * NR;
                for (int64_t k = 0; k < depths[size_t(source.number)]; ++k)
                    for (int64_t i = 0; i < NR; ++i) out[i] += source.data[k] * panel[k * NR + i];
            }
        }
        if (wide) add_order(sources, count, sums + padded(hidden));
    }

    // First order and FM's second order of a row of some sources, added to their sums [1 + K] of other sources.
    float order(const Source* sources, int64_t count, int64_t row, const float* base) const {
        float first = base[0], square = 0, pair = 0;
        for (int64_t s = 0; s < count; ++s) {
            const Source& source = sources[s];
            const float* const v = source.data + row * source.stride;
            if (source.number < fields) {
                first += scale[size_t(source.number)] * v[-1];
                continue;
            }
            const std::vector<float>& u = dense[size_t(source.number - fields)];
            for (size_t d = 0; d < u.size(); ++d) first += v[d] * u[d];
        }
        if (!pairs) return first;
        Vec squares = {}, products = {};
        int64_t k = 0;
        for (; k + LANES <= dim; k += LANES) {
            Vec total = *reinterpret_cast<const Vec*>(base + 1 + k);
            for (int64_t s = 0; s < count; ++s) {
                if (sources[s].number >= fields) continue;
                const Vec v = *reinterpret_cast<const Vec*>(sources[s].data + row * sources[s].stride + k);
                total += v;
                squares += v * v;
            }
            products += total * total;
        }
        for (; k < dim; ++k) {
            float total = base[1 + k];
            for (int64_t s = 0; s < count; ++s) {
                if (sources[s].number >= fields) continue;
                const float v = sources[s].data[row * sources[s].stride + k];
                total += v;
                square += v * v;
            }
            pair += total * total;
        }
        for (int l = 0; l < LANES; ++l) square += squares[l], pair += products[l];
        return first + 0.5f * (pair - square);
    }

    // Adds the sums [1 + K] of a row of some sources: Σ s w + Σ x u − ½ Σ ‖v‖², and Σ v.
    void add_order(const Source* sources, int64_t count, float* out) const {
        for (int64_t s = 0; s < count; ++s) {
            const float* const v = sources[s].data;
            if (sources[s].number >= fields) {
                const std::vector<float>& u = dense[size_t(sources[s].number - fields)];
                for (size_t d = 0; d < u.size(); ++d) out[0] += v[d] * u[d];
                continue;
            }
            out[0] += scale[size_t(sources[s].number)] * v[-1];
            for (int64_t k = 0; pairs && k < dim; ++k) {
                out[1 + k] += v[k];
                out[0] -= 0.5f * v[k] * v[k];
            }
        }
    }

    // Logits of `height` rows from `row` on. added[padded H₁ + 1 + K]: b₁ and the partial result of shared sources.
    // inputs[count, ROWS] and buffers[2, ROWS, widest] are scratch memory.
    void rows(const Source* sources, int64_t count, int64_t row, int height, const float* added,
              const float** inputs, float* buffers, float* out) const {
        float* x = buffers;
        float* next = buffers + ROWS * widest();
        const float* at[ROWS];
        std::fill_n(out, height, constant);
        if (hidden) {
            const int64_t width = padded(hidden);
            for (int64_t s = 0; s < count; ++s)
                for (int r = 0; r < ROWS; ++r)
                    inputs[s * ROWS + r] = sources[s].data + (row + std::min(r, height - 1)) * sources[s].stride;
            for (int64_t j = 0; j < width / NR; ++j) {
                for (int m = 0; m < height; m += MR) {
                    Vec sums[MR][2];
                    start(sums, added + j * NR);
                    for (int64_t s = 0; s < count; ++s) {
                        const Packed& w = first[size_t(sources[s].number)];
                        multiply(sums, inputs + s * ROWS + m, w.panel(j), w.depth);
                    }
                    finish(sums, slopes, j, x + m * width + j * NR, width);
                }
            }
            int64_t depth = width;
            for (const Layer& layer : layers) {
                const int64_t to = padded(layer.weights.width);
                for (int r = 0; r < ROWS; ++r) at[r] = x + r * depth;
                for (int64_t j = 0; j < to / NR; ++j) {
                    for (int m = 0; m < height; m += MR) {
                        Vec sums[MR][2];
                        start(sums, layer.bias.data() + j * NR);
                        multiply(sums, at + m, layer.weights.panel(j), layer.weights.depth);
                        finish(sums, layer.slopes, j, next + m * to + j * NR, to);
                    }
                }
                std::swap(x, next);
                depth = to;
            }
            for (int r = 0; r < height; ++r) {
                Vec sum = {};
                for (int64_t k = 0; k < depth; k += LANES)
                    sum += *reinterpret_cast<const Vec*>(x + r * depth + k) * *reinterpret_cast<const Vec*>(&last[size_t(k)]);
                for (int l = 0; l < LANES; ++l) out[r] += sum[l];
            }
        }
        for (int r = 0; wide && r < height; ++r) out[r] += order(sources, count, row + r, added + padded(hidden));
    }

    int64_t widest() const {
        int64_t most = padded(hidden);
        for (const Layer& layer : layers) most = std::max(most, padded(layer.weights.width));
        return most;
    }

  private:
    static void start(Vec (&sums)[MR][2], const float* bias) {
        const Vec left = *reinterpret_cast<const Vec*>(bias), right = *reinterpret_cast<const Vec*>(bias + LANES);
        for (int r = 0; r < MR; ++r) sums[r][0] = left, sums[r][1] = right;
    }

    // Activates sums, which are columns of panel j, into out[MR, NR].
    static void finish(const Vec (&sums)[MR][2], const std::vector<float>& slopes, int64_t j, float* out, int64_t stride) {
        const Vec zero = {};
        for (int h = 0; h < 2; ++h) {
            const Vec slope = slopes.empty() ? zero : *reinterpret_cast<const Vec*>(&slopes[size_t(j * NR + h * LANES)]);
            for (int r = 0; r < MR; ++r) {
                const Vec sum = sums[r][h], below = slopes.empty() ? zero : slope * sum;
                *reinterpret_cast<Vec*>(out + r * stride + h * LANES) = sum > zero ? sum : below;
            }
        }
    }
};

inline std::vector<float> extended(const float* values, int64_t count) {
    std::vector<float> out(size_t(padded(count)));
    std::copy_n(values, count, out.begin());
    return out;
}

}  // namespace livectr::forward

extern "C" {

using livectr::forward::Network;
using livectr::forward::Source;

void forward_delete(Network* network) { delete network; }

// sizes[layers] = H₁ … H_L = 1, none without an MLP; numbers: the parameters, one behind the other, in the order in
// which they are read here. Returns null without memory.
Network* forward_new(const int64_t* sizes, int64_t layers, const int64_t* depths, int64_t sources, int64_t fields,
                     int64_t dim, bool wide, bool pairs, bool prelu, const float* numbers) {
    using namespace livectr::forward;
    try {
        auto made = std::make_unique<Network>();
        Network& to = *made;
        const auto take = [&](int64_t count) {
            const float* const at = numbers;
            numbers += count;
            return at;
        };
        to.wide = wide, to.pairs = pairs, to.fields = fields, to.dim = dim;
        to.hidden = layers ? sizes[0] : 0;
        to.depths.assign(depths, depths + sources);
        to.constant = *take(1);
        if (wide) {
            const float* const scale = take(fields);
            to.scale.assign(scale, scale + fields);
            for (int64_t s = fields; s < sources; ++s) {
                const float* const u = take(depths[s]);
                to.dense.emplace_back(u, u + depths[s]);
            }
        }
        if (layers) {
            for (int64_t s = 0; s < sources; ++s) to.first.emplace_back(take(depths[s] * sizes[0]), depths[s], sizes[0]);
            to.bias = extended(take(sizes[0]), sizes[0]);
            if (prelu) to.slopes = extended(take(sizes[0]), sizes[0]);
            for (int64_t l = 1; l + 1 < layers; ++l) {
                Packed weights(take(sizes[l - 1] * sizes[l]), sizes[l - 1], sizes[l]);
                std::vector<float> bias = extended(take(sizes[l]), sizes[l]), slopes;
                if (prelu) slopes = extended(take(sizes[l]), sizes[l]);
                to.layers.push_back({std::move(weights), std::move(bias), std::move(slopes)});
            }
            const int64_t before = sizes[layers - 2];
            to.last = extended(take(before), before);
            to.constant += *take(1);
        }
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Logits out[rows] of rows with `count` sources of their own and `shared` sources that all rows share.
bool forward_run(const Network* network, const Source* own, int64_t count, const Source* common, int64_t shared,
                 int64_t rows, float* out) {
    using namespace livectr::forward;
    try {
        std::vector<float> added(size_t(padded(network->hidden) + 1 + network->dim));
        std::copy(network->bias.begin(), network->bias.end(), added.begin());
        network->partial(common, shared, added.data());
        livectr::parallel_chunks(rows, 16 * ROWS, [&](int64_t first, int64_t last) {
            std::unique_ptr<float[]> buffers(new float[size_t(2 * ROWS * network->widest())]);
            std::unique_ptr<const float*[]> inputs(new const float*[size_t(count * ROWS)]);
            for (int64_t row = first; row < last; row += ROWS)
                network->rows(own, count, row, static_cast<int>(std::min<int64_t>(ROWS, last - row)), added.data(),
                              inputs.get(), buffers.get(), out + row);
        });
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
}
