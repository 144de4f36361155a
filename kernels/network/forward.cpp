// flags: -ffp-contract=fast
// Forward pass of a CTR network on the host, for servers: first layer, first order and FM out of rows as they lie in
// memory, then an MLP. A block of rows passes through all layers at once, so that its activations stay in the cache.
//
//     x₁ = act(added + Σ_s a_s W_s)                a_s: K_s numbers of a source: a field's vector, symlog of dense features
//     x_{l+1} = act(x_l W_l + b_l), the last layer without activation and with one unit
//     logit = x_L + first + ½ ‖Σ_f v_f‖²,  first = Σ_f s_f w_f + Σ_d x_d u_d − ½ Σ_f ‖v_f‖²
//
// A row's partial result of some sources (DES's M_j) is what they add to x₁, to first and to Σ_f v_f. Rows that share
// sources share their partial result; that of an item's sources may be kept between calls.
//
// A sum runs over its terms in order, whatever rows are beside it: equal rows have equal bits.
#include "network/forward.hpp"
#include "network/symlog.hpp"
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
constexpr int NR = 2 * LANES;  // a tile of MR x NR sums fills the vector registers
constexpr int ROWS = 4 * MR;   // rows that pass through all layers together
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

struct Network {
    struct Layer {
        Packed weights;
        std::vector<float> bias, slopes;  // of the layer's results; slopes of PReLU, empty: ReLU
    };
    int64_t hidden = 0;           // H₁; 0: no MLP
    std::vector<int64_t> depths;  // K_s
    std::vector<Packed> first;    // W_s
    std::vector<float> bias;      // b₁, padded
    std::vector<float> slopes;    // of x₁
    std::vector<Layer> layers;    // without the last
    std::vector<float> last;      // weights of the last layer's unit
    float constant = 0;           // its bias, and the logit's
    bool wide = false, pairs = false;
    int64_t fields = 0;                     // the first sources are fields
    int64_t numbers = 0;                    // those after them are dense features
    std::vector<float> scale;               // s, [fields]
    std::vector<std::vector<float>> dense;  // u of each other source
    int64_t dim = 0;                        // K of the fields

    // Numbers of a partial result: padded H₁, 1 and K, and zeros up to whole vectors.
    int64_t partial_size() const { return padded(padded(hidden) + 1 + dim); }

    bool is_dense(const Source& source) const { return source.number >= fields && source.number < fields + numbers; }

    // Numbers of memory for dense features of ROWS rows, as the first layer takes them.
    int64_t taken_size() const {
        int64_t each = 0;
        for (int64_t s = fields; s < fields + numbers; ++s) each += depths[size_t(s)];
        return hidden ? ROWS * each : 0;
    }

    // Partial results of `height` rows from `row` on, out[height, partial_size].
    void partials(const Source* sources, int64_t count, int64_t row, int height, const float** inputs, float* taken,
                  float* out) const {
        const int64_t size = partial_size(), across = padded(hidden) / NR;
        if (hidden) gather(sources, count, row, height, inputs, taken);
        for (int64_t j = 0; j < across; ++j) {
            for (int m = 0; m < height; m += MR) {
                Vec sums[MR][2] = {};
                for (int64_t s = 0; s < count; ++s) {
                    const Packed& w = first[size_t(sources[s].number)];
                    multiply(sums, inputs + s * ROWS + m, w.panel(j), w.depth);
                }
                for (int r = 0; r < std::min(MR, height - m); ++r)
                    std::memcpy(out + (m + r) * size + j * NR, sums[r], sizeof sums[r]);
            }
        }
        for (int r = 0; r < height; ++r) {
            float* const order = out + r * size + padded(hidden);
            std::fill(order, out + (r + 1) * size, 0.0f);
            if (wide) add_order(sources, count, row + r, order);
        }
    }

    // Partial result of one row of some sources: sums[partial_size], added to what is there.
    void partial(const Source* sources, int64_t count, float* sums) const {
        const int64_t across = padded(hidden) / NR;
        for (int64_t s = 0; s < count; ++s) {
            const Source& source = sources[s];
            for (int64_t j = 0; j < across; ++j) {
                const float* const panel = first[size_t(source.number)].panel(j);
                float* const out = sums + j * NR;
                for (int64_t k = 0; k < depths[size_t(source.number)]; ++k) {
                    float value = source.data[k];
                    if (is_dense(source)) symlog(&value, 1, &value);
                    for (int64_t i = 0; i < NR; ++i) out[i] += value * panel[k * NR + i];
                }
            }
        }
        if (wide) add_order(sources, count, 0, sums + padded(hidden));
    }

    // First order and FM's second order of a row of some sources, added to the sums [1 + K] of other sources: `base`,
    // and `kept` unless it is null.
    float order(const Source* sources, int64_t count, int64_t row, const float* base, const float* kept) const {
        float first = kept ? base[0] + kept[0] : base[0], square = 0, pair = 0;
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
            if (kept) total += *reinterpret_cast<const Vec*>(kept + 1 + k);
            for (int64_t s = 0; s < count; ++s) {
                if (sources[s].number >= fields) continue;
                const Vec v = *reinterpret_cast<const Vec*>(sources[s].data + row * sources[s].stride + k);
                total += v;
                squares += v * v;
            }
            products += total * total;
        }
        for (; k < dim; ++k) {
            float total = kept ? base[1 + k] + kept[1 + k] : base[1 + k];
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
    void add_order(const Source* sources, int64_t count, int64_t row, float* out) const {
        for (int64_t s = 0; s < count; ++s) {
            const float* const v = sources[s].data + row * sources[s].stride;
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

    // Logits of `height` rows from `row` on. added[partial_size]: b₁ and the partial result of shared sources;
    // kept[height]: addresses of the rows' partial results of other sources, or null. inputs[count, ROWS],
    // buffers[2, ROWS, widest] and taken[taken_size] are scratch memory.
    void rows(const Source* sources, int64_t count, int64_t row, int height, const float* added,
              const float* const* kept, const float** inputs, float* buffers, float* taken, float* out) const {
        float* x = buffers;
        float* next = buffers + ROWS * widest();
        const float* at[ROWS];
        std::fill_n(out, height, constant);
        if (hidden) {
            const int64_t width = padded(hidden);
            if (count || !kept) add_sources(sources, count, row, height, added, kept, inputs, taken, x);
            else add_kept(kept, added, height, x);
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
                    sum += *reinterpret_cast<const Vec*>(x + r * depth + k) *
                           *reinterpret_cast<const Vec*>(&last[size_t(k)]);
                for (int l = 0; l < LANES; ++l) out[r] += sum[l];
            }
        }
        const int64_t width = padded(hidden);
        for (int r = 0; wide && r < height; ++r)
            out[r] += order(sources, count, row + r, added + width, kept ? kept[r] + width : nullptr);
    }

    int64_t widest() const {
        int64_t most = padded(hidden);
        for (const Layer& layer : layers) most = std::max(most, padded(layer.weights.width));
        return most;
    }

  private:
    // Addresses of the rows from `row` on, inputs[count, ROWS]; behind the last, its own again. Dense features are in
    // `taken` as the first layer takes them.
    void gather(const Source* sources, int64_t count, int64_t row, int height, const float** inputs,
                float* taken) const {
        for (int64_t s = 0; s < count; ++s) {
            const float* data = sources[s].data + row * sources[s].stride;
            int64_t stride = sources[s].stride;
            if (is_dense(sources[s])) {
                const int64_t depth = depths[size_t(sources[s].number)];
                for (int r = 0; r < height; ++r) symlog(data + r * stride, depth, taken + r * depth);
                data = taken, stride = depth;
                taken += ROWS * depth;
            }
            for (int r = 0; r < ROWS; ++r) inputs[s * ROWS + r] = data + std::min(r, height - 1) * stride;
        }
    }

    // x₁[height, padded H₁] of rows with sources of their own, tile by tile.
    void add_sources(const Source* sources, int64_t count, int64_t row, int height, const float* added,
                     const float* const* kept, const float** inputs, float* taken, float* x) const {
        const int64_t width = padded(hidden);
        gather(sources, count, row, height, inputs, taken);
        if (kept) add_rows(kept, added, height, x, [](Vec sum, int64_t) { return sum; });
        for (int64_t j = 0; j < width / NR; ++j) {
            for (int m = 0; m < height; m += MR) {
                Vec sums[MR][2];
                float* const to = x + m * width + j * NR;
                if (kept) {
                    for (int r = 0; r < MR; ++r) std::memcpy(sums[r], to + r * width, sizeof sums[r]);
                } else {
                    start(sums, added + j * NR);
                }
                for (int64_t s = 0; s < count; ++s) {
                    const Packed& w = first[size_t(sources[s].number)];
                    multiply(sums, inputs + s * ROWS + m, w.panel(j), w.depth);
                }
                finish(sums, slopes, j, to, width);
            }
        }
    }

    // The same of rows with kept partial results alone.
    void add_kept(const float* const* kept, const float* added, int height, float* x) const {
        const Vec zero = {};
        add_rows(kept, added, height, x, [&](Vec sum, int64_t k) {
            const Vec below = slopes.empty() ? zero : *reinterpret_cast<const Vec*>(&slopes[size_t(k)]) * sum;
            return sum > zero ? sum : below;
        });
    }

    // x[height, padded H₁] = map(added + kept), row by row: memory is read in order, and each line once.
    template <class Map>
    void add_rows(const float* const* kept, const float* added, int height, float* x, Map map) const {
        for (int r = 0; r < (height + MR - 1) / MR * MR; ++r) {  // whole tiles; behind the last row, its own again
            const float* const of = kept[std::min(r, height - 1)];
            for (int64_t k = 0; k < padded(hidden); k += LANES) {
                const Vec sum = *reinterpret_cast<const Vec*>(added + k) + *reinterpret_cast<const Vec*>(of + k);
                *reinterpret_cast<Vec*>(x + r * padded(hidden) + k) = map(sum, k);
            }
        }
    }

    static void start(Vec (&sums)[MR][2], const float* bias) {
        const Vec left = *reinterpret_cast<const Vec*>(bias), right = *reinterpret_cast<const Vec*>(bias + LANES);
        for (int r = 0; r < MR; ++r) sums[r][0] = left, sums[r][1] = right;
    }

    // Activates sums, which are columns of panel j, into out[MR, NR].
    static void finish(const Vec (&sums)[MR][2], const std::vector<float>& slopes, int64_t j, float* out,
                       int64_t stride) {
        const Vec zero = {};
        for (int h = 0; h < 2; ++h) {
            const Vec slope =
                slopes.empty() ? zero : *reinterpret_cast<const Vec*>(&slopes[size_t(j * NR + h * LANES)]);
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

using livectr::forward::Network;
using livectr::forward::Source;

// Runs work(first row, height, inputs, numbers) for blocks of rows, with scratch memory inputs[count, ROWS] and
// numbers[floats]. Returns false without memory.
template <class Work>
static bool in_blocks(int64_t rows, int64_t count, int64_t floats, Work work) {
    using namespace livectr::forward;
    try {
        livectr::parallel_chunks(rows, 16 * ROWS, [&](int64_t first, int64_t last) {
            std::unique_ptr<float[]> numbers(new float[size_t(floats)]);
            std::unique_ptr<const float*[]> inputs(new const float*[size_t(count * ROWS)]);
            for (int64_t row = first; row < last; row += ROWS)
                work(row, static_cast<int>(std::min<int64_t>(ROWS, last - row)), inputs.get(), numbers.get());
        });
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

extern "C" {

void forward_delete(Network* network) { delete network; }

// sizes[layers] = H₁ … H_L = 1, none without an MLP. The sources are fields, then `dense` sources of dense features, then
// others. numbers: the parameters, one behind the other, in the order in which they are read here. Returns null without
// memory.
Network* forward_new(const int64_t* sizes, int64_t layers, const int64_t* depths, int64_t sources, int64_t fields,
                     int64_t dense, int64_t dim, bool wide, bool pairs, bool prelu, const float* numbers) {
    using namespace livectr::forward;
    try {
        auto made = std::make_unique<Network>();
        Network& to = *made;
        const auto take = [&](int64_t count) {
            const float* const at = numbers;
            numbers += count;
            return at;
        };
        to.wide = wide, to.pairs = pairs, to.fields = fields, to.numbers = dense, to.dim = dim;
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
            for (int64_t s = 0; s < sources; ++s)
                to.first.emplace_back(take(depths[s] * sizes[0]), depths[s], sizes[0]);
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

int64_t forward_partial_size(const Network* network) { return network->partial_size(); }

bool forward_partials(const Network* network, const Source* sources, int64_t count, int64_t rows, float* out) {
    return in_blocks(rows, count, network->taken_size(),
                     [=](int64_t row, int height, const float** inputs, float* taken) {
                         float* const to = out + row * network->partial_size();
                         network->partials(sources, count, row, height, inputs, taken, to);
                     });
}

bool forward_run(const Network* network, const Source* own, int64_t count, const Source* common, int64_t shared,
                 const float* const* kept, int64_t rows, float* out) {
    using namespace livectr::forward;
    std::vector<float> added;
    try {
        added.resize(size_t(network->partial_size()));
    } catch (const std::bad_alloc&) {
        return false;
    }
    std::copy(network->bias.begin(), network->bias.end(), added.begin());
    network->partial(common, shared, added.data());
    const int64_t scratch = 2 * ROWS * network->widest(), taken = network->taken_size();
    return in_blocks(rows, count, scratch + taken,
                     [=, &added](int64_t row, int height, const float** inputs, float* to) {
                         network->rows(own, count, row, height, added.data(), kept ? kept + row : nullptr, inputs, to,
                                       to + scratch, out + row);
                     });
}
}
