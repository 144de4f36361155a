// flags: -ffp-contract=fast
// DIN's activation unit over lists of vectors, forward and backward, on the host (models/attention.py has the
// equations). One source for all units: widths are run-time values; numbers are float or double.
//
// The first layer is split by samples: with its blocks W_v, W_q, W_d, W_p a sample's query makes
//     own = W_v + W_d + q W_p    [K, H_1]          base = b_1 + q (W_q - W_d)    [H_1]
// so that [v, q, v - q, v q] W_1 + b_1 = base + v own. A register holds one number of LANES vectors, and a tile of
// registers goes through all layers at once. A list is turned into tiles once for all samples that share it, as the
// examples of a user share the user's behaviors. The backward pass computes the forward's sums again: that takes
// less time than their memory.
#include "network/attention.hpp"
#include "network/attention_layers.hpp"

namespace livectr::attention {

constexpr int BLOCKS = 64;          // chunks of samples whose gradients are summed apart, in order: the same bits
constexpr int64_t SMALL = 1 << 20;  // products of vectors and parameters that one thread takes

// Lists and their samples: list l is the vectors offsets[l] to offsets[l + 1], of the samples order[starts[l]] to
// order[starts[l + 1]]. Without starts, sample l has list l; without order, the samples are in the order of the lists.
template <typename Real>
struct Lists {
    using R = Registers<Real>;

    const Real* values;
    const int64_t *offsets, *starts, *order;
    int64_t lists;

    // Products of all samples' vectors with `parameters`, if every list had as many samples as the others.
    int64_t products(int64_t samples, int64_t parameters) const {
        return (offsets[lists] - offsets[0]) * std::max<int64_t>(samples / std::max<int64_t>(lists, 1), 1) * parameters;
    }
    int64_t start(int64_t l) const { return starts ? starts[l] : l; }
    int64_t sample(int64_t place) const { return order ? order[place] : place; }

    // First list that starts at a place or behind it.
    int64_t first_from(int64_t place) const {
        return starts ? std::lower_bound(starts, starts + lists, place) - starts : std::min(place, lists);
    }
    // List of the sample at a place; the last of those that start there, as the others have no samples.
    int64_t list_at(int64_t place) const {
        return starts ? std::upper_bound(starts, starts + lists, place) - starts - 1 : place;
    }

    // Turns list l into tiles of equal numbers of registers, one more or less.
    void turn(int64_t dim, int64_t l, Tiles<Real>& tiles) const {
        const int64_t length = offsets[l + 1] - offsets[l], registers = (length + R::LANES - 1) / R::LANES;
        const int64_t count = (registers + REGISTERS - 1) / REGISTERS;
        tiles.resize(dim, count);
        int64_t from = 0;
        for (int64_t t = 0; t < count; ++t) {
            Tile<Real>& tile = tiles.all[t];
            tile.registers = int(registers * (t + 1) / count - registers * t / count);
            tile.count = int(std::min<int64_t>(length - from, tile.registers * R::LANES));
            tile.fill(dim, values + (offsets[l] + from) * dim);
            from += tile.count;
        }
    }
};

// Memory of the threads of a call: a thread takes what another has given back, or makes it.
template <typename Layers, typename Unit>
class Desk {
  public:
    explicit Desk(const Unit& unit) : unit_(unit) {}

    template <typename Body>
    void with(Body&& body) {
        std::unique_ptr<Layers> layers;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!free_.empty()) {
                layers = std::move(free_.back());
                free_.pop_back();
            }
        }
        if (!layers) layers = std::make_unique<Layers>(unit_);
        body(*layers);
        std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(layers));
    }

  private:
    const Unit& unit_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Layers>> free_;
};

template <typename Real>
using Forward = Desk<Layers<Real, false>, Unit<Real>>;

template <typename Real>
void attend(Forward<Real>& desk, const Unit<Real>& unit, const Lists<Real>& lists, const Real* query, int64_t samples,
            Real* out) {
    const int64_t dim = unit.shape.dim;
    Tiles<Real> only;
    if (lists.lists == 1) lists.turn(dim, 0, only);
    const bool worth = lists.products(samples, unit.shape.parameters()) > SMALL;
    parallel_chunks(
        samples, 1 + samples / BLOCKS,
        [&](int64_t from, int64_t to) {
            desk.with([&](Layers<Real, false>& layers) {
                int64_t end = from, l = lists.list_at(from) - 1;
                for (int64_t place = from; place < to; ++place) {
                    for (; place >= end; end = lists.start(l + 1)) ++l;
                    if (lists.lists > 1 && (place == from || place == lists.start(l)))
                        lists.turn(dim, l, layers.vectors);
                    const int64_t b = lists.sample(place);
                    layers.begin(query + b * dim);
                    for (const Tile<Real>& tile : (lists.lists > 1 ? layers.vectors : only).all) layers.forward(tile);
                    layers.write_pooled(out + b * dim);
                }
            });
        },
        worth);
}

// Gradients of the lists from `first` to `last`: of values and query they are written, of parameters added.
template <typename Real>
void attend_back(Layers<Real, true>& layers, int64_t dim, const Lists<Real>& lists, const Real* query,
                 const Real* grad_out, int64_t first, int64_t last, Real* grad_values, Real* grad_query,
                 const Parameters<Real>& grads) {
    for (int64_t l = first; l < last; ++l) {
        if (lists.start(l) == lists.start(l + 1)) continue;
        lists.turn(dim, l, layers.vectors);
        layers.of_vectors.zero(dim, layers.vectors);
        const std::vector<Tile<Real>>&tiles = layers.vectors.all, &of_tiles = layers.of_vectors.all;
        for (int64_t place = lists.start(l); place < lists.start(l + 1); ++place) {
            const int64_t b = lists.sample(place);
            layers.begin(query + b * dim);
            for (size_t t = 0; t < tiles.size(); ++t) {
                layers.forward(tiles[t]);
                layers.backward(tiles[t], grad_out + b * dim, of_tiles[t], grads);
            }
            layers.end(query + b * dim, grads, grad_query + b * dim);
        }
        Real* to = grad_values + lists.offsets[l] * dim;
        for (const Tile<Real>& tile : of_tiles) {
            tile.write(dim, to);
            to += tile.count * dim;
        }
    }
    layers.add_lanes(grads);
}

template <typename Real>
void all_gradients(const Unit<Real>& unit, const Lists<Real>& lists, const Real* query, int64_t samples,
                   const Real* grad_out, Real* grad_values, Real* grad_query, Real* grad_p) {
    const int64_t grain = 1 + samples / BLOCKS, size = unit.shape.parameters(), chunks = (samples + grain - 1) / grain;
    const Memory<Real> grads = zeros<Real>((chunks + 1) * size);
    Desk<Layers<Real, true>, Unit<Real>> desk(unit);
    const bool worth = lists.products(samples, size) > SMALL;
    parallel_chunks(
        samples, grain,
        [&](int64_t from, int64_t to) {
            const Parameters<Real> mine(unit.shape, grads.get() + (from / grain + 1) * size);
            desk.with([&](Layers<Real, true>& layers) {
                attend_back(layers, unit.shape.dim, lists, query, grad_out, lists.first_from(from),
                            lists.first_from(to), grad_values, grad_query, mine);
            });
        },
        worth);
    for (int64_t c = 1; c <= chunks; ++c)
        for (int64_t i = 0; i < size; ++i) grads[i] += grads[c * size + i];
    Parameters<Real>(unit.shape, grads.get()).write_gradients(unit.shape, grad_p);
}

struct Pooler {
    const std::vector<int64_t> widths;
    const Unit<float> unit;
    Forward<float> desk;

    Pooler(int64_t dim, std::vector<int64_t> of_layers, const float* p)
        : widths(std::move(of_layers)), unit(dim, widths.data(), int64_t(widths.size()), p, false), desk(unit) {}
};

std::shared_ptr<Pooler> pooler(int64_t dim, std::vector<int64_t> widths, const float* p) {
    return std::make_shared<Pooler>(dim, std::move(widths), p);
}

void pool(Pooler& of, const float* values, const int64_t* offsets, const float* query, int64_t samples, bool once,
          float* out) {
    const int64_t all[] = {0, samples};
    attend<float>(of.desk, of.unit, {values, offsets, once ? all : nullptr, nullptr, once ? 1 : samples}, query,
                  samples, out);
}

}  // namespace livectr::attention

// A unit: vectors of `dim` numbers, `hidden` ≥ 1 layers of `widths`, and its numbers p: W_1 [4 K, H_1] …
// W_{L+1} [H_L, 1], b_1 … b_{L+1}, the slopes of H_1 … H_L.
//
// forward: values [nnz, K] and `lists` lists (see Lists), query [B, K] → out [B, K].
// backward: grad_out [B, K] → grad_values [nnz, K] of the vectors that are in lists of samples, grad_query [B, K],
// grad_p. A chunk has the lists that start in its samples.
// False: no memory.
#define LIVECTR_ATTENTION(Real, SUFFIX)                                                                                \
    extern "C" bool attention_forward_##SUFFIX(int64_t dim, const int64_t* widths, int64_t hidden, const Real* p,      \
                                               const Real* values, const int64_t* offsets, const int64_t* starts,      \
                                               const int64_t* order, int64_t lists, const Real* query,                 \
                                               int64_t samples, Real* out) try {                                       \
        const livectr::attention::Unit<Real> unit(dim, widths, hidden, p, false);                                      \
        livectr::attention::Forward<Real> desk(unit);                                                                  \
        livectr::attention::attend<Real>(desk, unit, {values, offsets, starts, order, lists}, query, samples, out);    \
        return true;                                                                                                   \
    } catch (const std::bad_alloc&) {                                                                                  \
        return false;                                                                                                  \
    }                                                                                                                  \
    extern "C" bool attention_backward_##SUFFIX(                                                                       \
        int64_t dim, const int64_t* widths, int64_t hidden, const Real* p, const Real* values, const int64_t* offsets, \
        const int64_t* starts, const int64_t* order, int64_t lists, const Real* query, int64_t samples,                \
        const Real* grad_out, Real* grad_values, Real* grad_query, Real* grad_p) try {                                 \
        const livectr::attention::Unit<Real> unit(dim, widths, hidden, p, true);                                       \
        livectr::attention::all_gradients<Real>(unit, {values, offsets, starts, order, lists}, query, samples,         \
                                                grad_out, grad_values, grad_query, grad_p);                            \
        return true;                                                                                                   \
    } catch (const std::bad_alloc&) {                                                                                  \
        return false;                                                                                                  \
    }

LIVECTR_ATTENTION(float, f32)
LIVECTR_ATTENTION(double, f64)
#undef LIVECTR_ATTENTION
