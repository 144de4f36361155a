// Enrich → extract → look up → user vector → best items → reply: a user's columns and the state of a version in, a packed
// reply out.
//
//     columns ─► features.cpp ─► keys ─► rows of the near-cache, pooled ─► user tower ─► products with item vectors
//                                                                                           └─► best k ─► bytes
//
// A call does no I/O. Where an input of features, a row or an item's vector is missing it says so; the caller reads or
// computes it, and calls again with what it found.
#include "network/retrieval.hpp"
#include "network/symlog.hpp"
#include "network/tower.hpp"
#include "protobuf/packed.hpp"
#include "request/pooled.hpp"
#include "request/select.hpp"

#include <cmath>

namespace {

using namespace livectr::request;
using livectr::Tower;

}  // namespace

// State of a version, as requests with the same shared fields read it. It refers to its parts, which outlive it.
struct livectr::request::Selector {
    VersionTables tables;
    const Tower* tower;
    int64_t first, dim;           // value of a row at which a field's vector begins, and its numbers
    std::vector<int32_t> places;  // of the tower's fields: among the shared fields, or behind them the rows' own
    float bias;                   // of every score
    const void* numbers;          // item → row
    const int64_t* items;         // [count], ids of the rows
    const float* matrix;          // [count, out]
    int64_t count;
    const float* worths;   // [count], of the items; null: they have none
    PooledReads pooled{};  // the tower's last inputs
};

const VersionTables& livectr::request::tables_of(const Selector& selector) { return selector.tables; }

livectr::request::SelectorItems livectr::request::items_of(const Selector& selector) {
    return {selector.count, selector.worths != nullptr};
}

namespace {

// Packs the selection; `room_for` bounds the result.
int64_t pack(const Selection& of) {
    using namespace livectr::protobuf;
    const int64_t *const fields = of.reply_fields, n = of.found;
    uint8_t* at = of.out;
    if (of.candidates) at = put_varints(at, fields[0], of.positions, n, varints_bytes(of.positions, n));
    if (fields[1]) {
        const uint64_t bytes = varints_bytes(of.ids, n);
        at = put_head(at, fields[1], bytes + varint_bytes(uint64_t(fields[2] << 3 | 2)) + varint_bytes(bytes));
        at = put_varints(at, fields[2], of.ids, n, bytes);
    }
    at = put_numbers(at, fields[3], of.scores, n);
    if (of.values) at = put_numbers(at, fields[4], of.values, n);
    return at - of.out;
}

// Inputs of the tower: its fields' vectors, symlog of dense numbers, and pooled lists, sources[channels].
void gather(const Selector& of, const Selection& call, const float* shared, const float* own, const Source* sources,
            float* to) {
    const int64_t dim = of.tables.dim;
    for (const int32_t place : of.places) {
        const float* const row =
            place < of.tables.shared ? shared + place * dim : own + (place - of.tables.shared) * dim;
        to = std::copy_n(row + of.first, of.dim, to);
    }
    symlog(call.features->dense, call.width, to);
    to += call.width;
    for (int64_t c = 0; c < of.pooled.channels(); ++c) to = std::copy_n(sources[c].data, sources[c].stride, to);
}

Outcome select(const Selector& of, Selection& call) {
    if (features_answer(call.features) != EXTRACTED) return NO_FEATURES;
    const FeatureCall& features = *call.features;
    const VersionTables& tables = of.tables;
    const bool fits = features.rows == 1 && features.width == call.width;
    if (!fits || features.own < tables.own || features.shared < tables.shared) return BAD_FEATURES;
    Arena& arena = memory_of(features);
    const int64_t widest = of.tower->widest(), out = of.tower->outputs();

    PooledRequest pooled(of.pooled, features, call.lists, INT64_MAX);
    int64_t ignored;
    if (const Outcome outcome = pooled.find_keys(ignored, ignored)) return outcome;
    const float *own = call.own_vectors, *shared = call.shared_vectors;
    if (!own) {
        auto* const to = arena.take<float>((tables.own + tables.shared) * tables.dim);
        if (const Outcome outcome = tables.look_up(features, call.deadline, nullptr, to)) return outcome;
        own = to, shared = to + tables.own * tables.dim;
    }
    auto* const sources = arena.take<Source>(of.pooled.channels());
    if (of.pooled.pooling) {
        if (const Outcome outcome = pooled.read(tables, nullptr, of.first)) return outcome;
        Source* end = sources;
        if (const Outcome outcome = pooled.pool(tables, own, shared, of.first, call.deadline, 0, end, end))
            return outcome;
    }
    call.looked_up_at = livectr::SwapLock::seconds();

    float *const inputs = arena.take<float>(widest), *const next = arena.take<float>(widest);
    gather(of, call, shared, own, sources, inputs);
    const float* const user = of.tower->vector(inputs, next);
    call.worths.rows = of.worths;
    if (call.candidates) {
        float* const scores = arena.take<float>(call.asked);
        call.unknown =
            retrieval_find(of.numbers, call.candidates, call.asked, of.matrix, call.cold, out, user, of.bias,
                           &call.worths, call.k, call.rows, scores, call.positions, call.scores, call.values);
        if (call.unknown < 0) return NO_MEMORY;
        if (call.unknown && !call.cold) return MISSING_ITEMS;
        call.found = std::min(call.k, call.asked);
    } else {
        call.found = retrieval_scan(of.matrix, of.count, out, user, of.bias, call.excluded, call.unwanted, of.worths,
                                    call.k, call.positions, call.scores, call.values);
        if (call.found < 0) return NO_MEMORY;
    }
    const int64_t* const ids = call.candidates ? call.candidates : of.items;
    for (int64_t i = 0; i < call.found; ++i) call.ids[i] = ids[call.positions[i]];
    call.scored_at = livectr::SwapLock::seconds();
    if (call.reply_fields) call.bytes = pack(call);
    return DONE;
}

}  // namespace

extern "C" {

// sizes[layers + 1], numbers: as those of livectr::Tower. Returns null without memory.
Tower* tower_new(const int64_t* sizes, int64_t layers, float gamma, float soft, const float* numbers) {
    try {
        return new Tower(sizes, layers, gamma, soft, numbers);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void tower_delete(Tower* tower) { delete tower; }

// sizes: shared fields, own fields, values of a row, value at which a vector begins, numbers of a vector, places,
// items. Returns null without memory.
Selector* selector_new(livectr::SwapLock* lock, int64_t version, const void* tables, const Tower* tower,
                       const int64_t* sizes, const int32_t* places, float bias, const void* numbers,
                       const int64_t* items, const float* matrix, const float* worths) {
    try {
        return new Selector{{lock, version, tables, sizes[0], sizes[1], sizes[2]},
                            tower,
                            sizes[3],
                            sizes[4],
                            {places, places + sizes[5]},
                            bias,
                            numbers,
                            items,
                            matrix,
                            sizes[6],
                            worths};
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Adds the pooling of the user tower; numbers as those of `PooledReads::read`. Returns false without memory.
bool selector_pool(Selector* to, const livectr::pooling::Pooling* pooling, const int64_t* numbers) {
    try {
        to->pooled.read(pooling, numbers, to->tables);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
void selector_delete(Selector* selector) { delete selector; }

// Bytes for the reply of a call for `most` items.
int64_t selector_room(int64_t most) { return room_for(most); }

int64_t selector_select(const Selector* selector, Selection* call) {
    return outcome_of([&] { return select(*selector, *call); });
}
}
