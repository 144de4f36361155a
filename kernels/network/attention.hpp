// DIN's activation unit over lists of vectors, forward and backward, on the host (models/attention.py has the
// equations). Before this file: Real, K, HIDDEN (how many hidden layers, at least 1) and WIDTHS[HIDDEN] =
// {H_1 … H_L}, constants of the compiler, so that every loop over a layer has a fixed length.
//
// The first layer is split by samples: with its blocks W_v, W_q, W_d, W_p a sample's query makes
//     own = W_v + W_d + q W_p    [K, H_1]          base = b_1 + q (W_q - W_d)    [H_1]
// so that [v, q, v - q, v q] W_1 + b_1 = base + v own. A register holds one number of LANES vectors, and a tile of
// registers goes through all layers at once. A list is turned into tiles once for all samples that share it, as the
// examples of a user share the user's behaviors. The backward pass computes the forward's sums again: that takes
// less time than their memory.
#pragma once
#include "network/attention_unit.hpp"

namespace livectr::attention {

// Lists and their samples: list l is the vectors offsets[l] to offsets[l + 1], of the samples order[starts[l]] to
// order[starts[l + 1]]. Without starts, sample l has list l; without order, the samples are in the order of the lists.
struct Lists {
    const Real* values;
    const int64_t *offsets, *starts, *order;
    int64_t lists;

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
    void turn(int64_t l, std::vector<Turned>& tiles) const {
        const int64_t length = offsets[l + 1] - offsets[l], registers = (length + LANES - 1) / LANES;
        const int64_t count = (registers + REGISTERS - 1) / REGISTERS;
        tiles.resize(size_t(count));
        int64_t from = 0;
        for (int64_t t = 0; t < count; ++t) {
            tiles[t].registers = int(registers * (t + 1) / count - registers * t / count);
            tiles[t].count = int(std::min<int64_t>(length - from, tiles[t].registers * LANES));
            tiles[t].fill(values + (offsets[l] + from) * K);
            from += tiles[t].count;
        }
    }
};

inline void attend(const Real* p, const Lists& lists, const Real* query, int64_t samples, Real* out) {
    const Unit unit(p);
    std::vector<Turned> only;
    if (lists.lists == 1) lists.turn(0, only);
    parallel_chunks(samples, 1 + samples / BLOCKS, [&](int64_t from, int64_t to) {
        std::vector<Turned> turned;
        Layers layers;
        int64_t end = from, l = lists.list_at(from) - 1;
        for (int64_t place = from; place < to; ++place) {
            for (; place >= end; end = lists.start(l + 1)) ++l;
            if (lists.lists > 1 && (place == from || place == lists.start(l))) lists.turn(l, turned);
            const int64_t b = lists.sample(place);
            const Own own(unit, query + b * K);
            Vec pooled[K] = {};
            for (const Turned& tile : lists.lists > 1 ? turned : only) {
                layers.forward<false>(unit, own, tile);
                for (int r = 0; r < tile.registers; ++r)
                    for (int k = 0; k < K; ++k) pooled[k] += layers.a[r] * tile.number(k, r);
            }
            for (int k = 0; k < K; ++k) out[b * K + k] = total(pooled[k]);
        }
    });
}

// Gradients of the lists from `first` to `last`: of values and query they are written, of parameters added.
inline void attend_back(const Unit& unit, const Lists& lists, const Real* query, const Real* grad_out, int64_t first,
                        int64_t last, Real* grad_values, Real* grad_query, Parameters& grads) {
    std::vector<Turned> turned, of_values;
    Layers layers;
    Lanes lanes;
    for (int64_t l = first; l < last; ++l) {
        if (lists.start(l) == lists.start(l + 1)) continue;
        lists.turn(l, turned);
        of_values.assign(turned.size(), Turned{});
        for (int64_t place = lists.start(l); place < lists.start(l + 1); ++place) {
            const int64_t b = lists.sample(place);
            const Real* const q = query + b * K;
            const Own own(unit, q);
            OfOwn of_own;
            for (size_t t = 0; t < turned.size(); ++t) {
                layers.forward<true>(unit, own, turned[t]);
                layers.backward(unit, own, turned[t], grad_out + b * K, of_own, of_values[t], grads, lanes);
            }
            for (int k = 0; k < K; ++k) {
                Vec sums = {};
                for (int h = 0; h < FIRST; h += LANES) {
                    const int j = k * FIRST + h;
                    const Vec mine = load(of_own.w + j), base = load(of_own.base + h);
                    at(grads.of_vector + j) += mine;
                    at(grads.of_product + j) += q[k] * mine;
                    at(grads.grad_query + j) += q[k] * base;
                    sums += load(unit.of_product + j) * mine + load(unit.grad_query + j) * base;
                }
                grad_query[b * K + k] = total(sums);
            }
            for (int h = 0; h < FIRST; h += LANES) at(grads.biases + h) += load(of_own.base + h);
        }
        Real* to = grad_values + lists.offsets[l] * K;
        for (size_t t = 0; t < turned.size(); to += turned[t++].count * K)
            for (int r = 0; r < turned[t].count; ++r)
                for (int k = 0; k < K; ++k) to[r * K + k] = of_values[t].v[k * TILE + r];
    }
    lanes.add_to(grads);
}

}  // namespace livectr::attention

// Numbers of a unit: W_1 [4 K, H_1] … W_{L+1} [H_L, 1], b_1 … b_{L+1}, the slopes of H_1 … H_L.
extern "C" int64_t attention_parameters() {
    livectr::attention::Parameters any;
    return any.count();
}

// values [nnz, K] and `lists` lists (see Lists), query [B, K] → out [B, K]. False: no memory.
extern "C" bool attention_forward(const Real* p, const Real* values, const int64_t* offsets, const int64_t* starts,
                                  const int64_t* order, int64_t lists, const Real* query, int64_t samples,
                                  Real* out) try {
    livectr::attention::attend(p, {values, offsets, starts, order, lists}, query, samples, out);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

// grad_out [B, K] → grad_values [nnz, K] of the vectors that are in lists of samples, grad_query [B, K], grad_p.
// A chunk has the lists that start in its samples. False: no memory.
extern "C" bool attention_backward(const Real* p, const Real* values, const int64_t* offsets, const int64_t* starts,
                                   const int64_t* order, int64_t lists, const Real* query, int64_t samples,
                                   const Real* grad_out, Real* grad_values, Real* grad_query, Real* grad_p) try {
    using namespace livectr::attention;
    const Unit unit(p);
    const Lists all{values, offsets, starts, order, lists};
    const int64_t grain = 1 + samples / BLOCKS;
    std::vector<Parameters> grads(size_t((samples + grain - 1) / grain));
    livectr::parallel_chunks(samples, grain, [&](int64_t from, int64_t to) {
        attend_back(unit, all, query, grad_out, all.first_from(from), all.first_from(to), grad_values, grad_query,
                    grads[from / grain]);
    });
    Parameters sum = {};
    for (const Parameters& part : grads) sum.add(part);
    sum.write_gradients(grad_p);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}
