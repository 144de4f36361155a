// Inputs of a first layer that are pooled from lists of vectors e_1 … e_n of width W:
//
//     MEAN, SUM, MAX     1/n Σ e_i; Σ e_i; elementwise maximum
//     NEWEST             [e_n, e_{n-1} …] of some length, zeros behind the first
//     ATTENTION          Σ a(e_i, q) e_i by an activation unit; MEAN_ATTENTION: 1/n of it
//
// An empty list gives zeros. A query q is a list's mean, or a field's vector, or this by a matrix. Sums run over a list
// in order, whatever rows are beside it: equal rows have equal bits.
#include "network/pooling.hpp"

#include <algorithm>

namespace livectr::pooling {

namespace {

// Result of a list of n vectors, out[of.width].
void reduce(const Channel& of, const float* values, int64_t n, int64_t width, float* out) {
    std::fill_n(out, of.width, 0.0f);
    if (of.kind == NEWEST) {
        for (int64_t i = 0; i < std::min(n, of.length); ++i)
            std::copy_n(values + (n - 1 - i) * width, width, out + i * width);
        return;
    }
    if (n) std::copy_n(values, width, out);
    for (int64_t i = 1; i < n; ++i)
        for (int64_t k = 0; k < width; ++k) {
            const float value = values[i * width + k];
            out[k] = of.kind == MAX ? std::max(out[k], value) : out[k] + value;
        }
    if (of.kind == MEAN && n > 1)
        for (int64_t k = 0; k < width; ++k) out[k] /= float(n);
}

void reduce_rows(const Channel& of, const List& list, int64_t first, int64_t rows, int64_t width, float* out) {
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t* const ends = list.ends(first + row);
        reduce(of, list.values + ends[0] * width, ends[1] - ends[0], width, out + row * of.width);
    }
}

// Queries [rows, width] of an attention.
void make_queries(const Pooling& of, const Channel& channel, const List* lists, const Query* fields, int64_t first,
                  int64_t rows, float* out) {
    const int64_t width = of.widths[size_t(channel.list)];
    if (channel.query_list >= 0)
        return reduce_rows({MEAN, channel.query_list, width}, lists[channel.query_list], first, rows, width, out);
    const Query& query = fields[channel.query_field];
    for (int64_t row = first; row < first + rows; ++row, out += width) {
        const float* const from = query.data + row * query.stride;
        if (!channel.depth) {
            std::copy_n(from, width, out);
            continue;
        }
        std::fill_n(out, width, 0.0f);
        for (int64_t i = 0; i < channel.depth; ++i)
            for (int64_t k = 0; k < width; ++k) out[k] += from[i] * channel.project[size_t(i * width + k)];
    }
}

}  // namespace

bool is_shared(const Channel& channel, const List* lists, const Query* fields) {
    const bool query = channel.query_list >= 0    ? lists[channel.query_list].shared
                       : channel.query_field >= 0 ? fields[channel.query_field].shared
                                                  : true;
    return lists[channel.list].shared && query;
}

int64_t scratch(const Pooling& of, const Channel& channel, int64_t rows) {
    return channel.unit ? rows * of.widths[size_t(channel.list)] : 0;
}

void pool(const Pooling& of, const Channel& channel, const List* lists, const Query* fields, int64_t first,
          int64_t rows, float* scratch, float* out) {
    const List& list = lists[channel.list];
    if (!channel.unit) return reduce_rows(channel, list, first, rows, of.widths[size_t(channel.list)], out);
    make_queries(of, channel, lists, fields, first, rows, scratch);
    attention::pool(*channel.unit, list.values, list.ends(first), scratch, rows, list.shared, out);
    if (channel.kind == ATTENTION) return;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t* const ends = list.ends(first + row);
        const int64_t n = ends[1] - ends[0];
        for (int64_t k = 0; n > 1 && k < channel.width; ++k) out[row * channel.width + k] /= float(n);
    }
}

}  // namespace livectr::pooling

using namespace livectr::pooling;

extern "C" {

// sizes: lists and queries' fields, then the widths of the lists' vectors. Returns null without memory.
Pooling* pooling_new(const int64_t* sizes) {
    try {
        auto made = std::make_unique<Pooling>();
        made->fields = sizes[1];
        made->widths.assign(sizes + 2, sizes + 2 + sizes[0]);
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void pooling_delete(Pooling* pooling) { delete pooling; }

// Adds a channel. numbers: kind, list, width, length, list and field of the query (-1: none), depth of the matrix (0:
// none), then the widths of the unit's `layers` hidden layers (0: no unit). project, unit: parameters. Returns false
// without memory.
bool pooling_add(Pooling* pooling, const int64_t* numbers, int64_t layers, const float* project, const float* unit) {
    try {
        Channel made{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], {}, nullptr};
        const int64_t width = pooling->widths[size_t(made.list)];
        made.project.assign(project, project + made.depth * width);
        if (layers) made.unit = livectr::attention::pooler(width, {numbers + 7, numbers + 7 + layers}, unit);
        pooling->channels.push_back(std::move(made));
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
}
