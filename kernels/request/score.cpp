// Enrich → extract → look up → score → reply: a request's columns and the state of a version in, a packed reply out.
//
//     columns ─► features.cpp ─┬─► keys ─► rows of the near-cache, pooled ─┐
//                              ├─► item keys ─► kept partial results ──────┼─► network ─► probabilities ─► order ─► bytes
//                              └─► lists of keys and content, pooled ──────┘
//
// A call does no I/O. Where an input of features, a row or a partial result is missing it says so; the caller reads or
// computes it, and calls again with what it found. Its arrays lie in the memory of its features.
#include "network/forward.hpp"
#include "network/reply.hpp"
#include "request/calibration.hpp"
#include "request/pooled.hpp"
#include "request/score.hpp"

#include <cmath>
#include <numeric>

namespace {

using livectr::forward::Network;

// Place of a field among the shared fields or the rows' own, and its number in the network.
struct Field {
    int32_t place, number;
};

// Inputs that a network reads of requests with the same shared fields.
struct Head {
    const Network* network;
    int64_t first;                         // value of a row at which a field's vector begins
    int32_t fields;                        // of the network: dense numbers have the numbers after them
    std::vector<Field> of_shared, of_own;  // fields that the network reads, without the items' own ones
    std::vector<Field> of_items;           // the items' fields among the rows' own
    std::vector<int32_t> dense;            // columns of the dense numbers, without the items'
    std::vector<int32_t> dense_of_items;

    // sizes: value at which a vector begins, fields, then the lengths of the lists that follow each other in `numbers`:
    // shared fields, own fields and the items' fields as pairs (place, number), columns of dense numbers, and the items'.
    Head(const Network* network, const int64_t* sizes, const int32_t* numbers)
        : network(network), first(sizes[0]), fields(int32_t(sizes[1])) {
        const auto pairs = [&](std::vector<Field>& list, int64_t count) {
            for (int64_t i = 0; i < count; ++i, numbers += 2) list.push_back({numbers[0], numbers[1]});
        };
        const auto columns = [&](std::vector<int32_t>& list, int64_t count) {
            list.assign(numbers, numbers + count);
            numbers += count;
        };
        pairs(of_shared, sizes[2]);
        pairs(of_own, sizes[3]);
        pairs(of_items, sizes[4]);
        columns(dense, sizes[5]);
        columns(dense_of_items, sizes[6]);
    }

    int64_t width() const { return int64_t(dense.size() + dense_of_items.size()); }
    int64_t sources() const { return int64_t(of_own.size() + of_shared.size() + of_items.size()) + 2; }
};

}  // namespace

// State of a version, as requests with the same shared fields read it. It refers to its parts, which outlive it.
struct livectr::request::Snapshot {
    VersionTables tables;
    Head head;
    bool items;  // some features are the items': their partial results are given, or computed from the rows' own
    Calibration calibration{};
    PooledReads pooled{};
    std::vector<Head> others{};         // besides the network, without features of items
    std::vector<double> log_weights{};  // of a mixture of all heads; empty: their logits are results
};

const livectr::request::VersionTables& livectr::request::tables_of(const Snapshot& snapshot) { return snapshot.tables; }

namespace {

// Vectors of the rows' own fields and of the shared fields.
struct Vectors {
    const float *own, *shared;
};

// Sources of some fields.
Source* add_fields(const Head& of, const VersionTables& tables, const std::vector<Field>& fields, const float* vectors,
                   int64_t count, Source* to) {
    for (const Field field : fields)
        *to++ = {vectors + field.place * tables.dim + of.first, count * tables.dim, field.number};
    return to;
}

// Source of some columns of the dense numbers, which are copied.
Source* add_dense(const FeatureCall& features, const std::vector<int32_t>& columns, int32_t number, Source* to) {
    const int64_t count = columns.size();
    if (!count) return to;
    auto* const numbers = memory_of(features).take<float>(features.rows * count);
    for (int64_t row = 0; row < features.rows; ++row)
        for (int64_t i = 0; i < count; ++i)
            numbers[row * count + i] = features.dense[row * features.width + columns[i]];
    *to++ = {numbers, count, number};
    return to;
}

// Counts numbers by the first of `n` rising bounds that is not below them; NaN is above all.
void count_values(const double* values, int64_t rows, const double* bounds, int64_t n, int64_t* counts) {
    std::fill_n(counts, n + 1, 0);
    for (int64_t row = 0; row < rows; ++row) {
        const double* first = bounds;
        int64_t left = n;
        for (; left > 1; left -= left / 2) first += first[left / 2 - 1] >= values[row] ? 0 : left / 2;  // no branch
        ++counts[first - bounds + (left && !(*first >= values[row]))];
    }
}

// Logits of a network without features of items.
bool run_head(const Head& of, const FeatureCall& features, const VersionTables& tables, const Vectors& vectors,
              float* logits) {
    Arena& arena = memory_of(features);
    auto* const own = arena.take<Source>(of.sources());
    auto* const shared = arena.take<Source>(of.sources());
    const Source* const end =
        add_dense(features, of.dense, of.fields, add_fields(of, tables, of.of_own, vectors.own, tables.own, own));
    const Source* const end_of_shared = add_fields(of, tables, of.of_shared, vectors.shared, tables.shared, shared);
    return forward_run(of.network, own, end - own, shared, end_of_shared - shared, nullptr, features.rows, logits);
}

// log(e^a + e^b)
double log_sum(double a, double b) {
    const double most = std::max(a, b), least = std::min(a, b);
    return least == -HUGE_VAL ? most : most + std::log1p(std::exp(least - most));
}

// Logits of sum_h weight_h sigma(z_h), into those of the first head. others[heads - 1, rows]: z of the others.
void mix(const std::vector<double>& log_weights, const float* others, int64_t rows, float* logits) {
    for (int64_t row = 0; row < rows; ++row) {
        double yes = -HUGE_VAL, no = -HUGE_VAL;
        for (size_t h = 0; h < log_weights.size(); ++h) {
            const double z = h ? others[int64_t(h - 1) * rows + row] : logits[row];
            yes = log_sum(yes, log_weights[h] - log_sum(0, -z));
            no = log_sum(no, log_weights[h] - log_sum(0, z));
        }
        logits[row] = float(yes - no);
    }
}

Outcome score(const Snapshot& of, Scoring& call) {
    const Head& head = of.head;
    if (features_answer(call.features) != EXTRACTED) return NO_FEATURES;
    const FeatureCall& features = *call.features;
    const VersionTables& tables = of.tables;
    if (features.own < tables.own || features.shared < tables.shared || features.width != head.width())
        return BAD_FEATURES;
    Arena& arena = memory_of(features);
    const int64_t rows = features.rows, size = forward_partial_size(head.network);
    const int64_t channels = of.pooled.channels();
    const int64_t most = head.sources() + channels;

    PooledRequest pooled(of.pooled, features, call.lists, call.most_pairs);
    if (const Outcome outcome = pooled.find_keys(call.list, call.listed)) return outcome;
    Vectors vectors{call.own_vectors, call.shared_vectors};
    const float* sequences = nullptr;
    if (!vectors.own) {
        int64_t listed;
        const FieldKeys* const of_sequences = pooled.sequences(tables, listed);
        auto* const out = arena.take<float>((tables.own * rows + tables.shared + listed) * tables.dim);
        if (const Outcome outcome = tables.look_up(features, call.deadline, of_sequences, out)) return outcome;
        vectors = {out, out + rows * tables.own * tables.dim};
        sequences = vectors.shared + tables.shared * tables.dim;
    }
    auto* const own = arena.take<Source>(most);
    if (of.items && !call.kept_is_given) {
        call.kept = arena.take<const float*>(rows);
        if (call.partials) {
            if (!features.items) return BAD_FEATURES;
            if (call.partials->find(features.items, rows, call.kept)) return MISSING_ITEMS;
        } else {
            auto* const partials = arena.take<float>(rows * size);
            Source* end = add_fields(head, tables, head.of_items, vectors.own, tables.own, own);
            end = add_dense(features, head.dense_of_items, head.fields + 1, end);
            if (!forward_partials(head.network, own, end - own, rows, partials)) return NO_MEMORY;
            for (int64_t row = 0; row < rows; ++row) call.kept[row] = partials + row * size;
        }
    }
    if (channels)
        if (const Outcome outcome = pooled.read(tables, sequences, head.first)) return outcome;
    call.looked_up_at = livectr::SwapLock::seconds();

    Source* end = add_fields(head, tables, head.of_own, vectors.own, tables.own, own);
    end = add_dense(features, head.dense, head.fields, end);
    auto* const shared = arena.take<Source>(most);
    Source* end_of_shared = add_fields(head, tables, head.of_shared, vectors.shared, tables.shared, shared);
    if (channels)
        if (const Outcome outcome = pooled.pool(tables, vectors.own, vectors.shared, head.first, call.deadline,
                                                head.fields + 2, end, end_of_shared))
            return outcome;
    auto* const logits = arena.take<float>(rows);
    const float* const* kept = of.items ? call.kept : nullptr;
    if (!forward_run(head.network, own, end - own, shared, end_of_shared - shared, kept, rows, logits))
        return NO_MEMORY;
    auto* const others = of.others.empty() ? nullptr : arena.take<float>(int64_t(of.others.size()) * rows);
    for (size_t h = 0; h < of.others.size(); ++h)
        if (!run_head(of.others[h], features, tables, vectors, others + int64_t(h) * rows)) return NO_MEMORY;
    if (!of.log_weights.empty()) mix(of.log_weights, others, rows, logits);
    call.logits = logits;
    call.others = of.log_weights.empty() ? others : nullptr;
    call.scored_at = livectr::SwapLock::seconds();

    float* const lines = of.calibration ? arena.take<float>(2 * rows) : nullptr;
    if (lines) of.calibration.lines(features, lines, lines + rows);
    call.lines = lines;

    if (call.bids) {
        auto* const pctr = arena.take<double>(rows);
        livectr::reply::probabilities(logits, lines, lines ? lines + rows : nullptr, rows, pctr);
        call.total = std::accumulate(pctr, pctr + rows, 0.0);
        count_values(pctr, rows, call.bounds, call.bounds_count, call.counts);
        auto* const out = arena.take<uint8_t>(livectr::reply::most_bytes(rows));
        auto* const order = arena.take<livectr::reply::Candidate>(2 * rows);
        call.bytes = livectr::reply::pack(pctr, call.bids, nullptr, rows, call.reply_fields, order, out);
        call.out = out;
    }
    return DONE;
}

}  // namespace

extern "C" {

// sizes: shared fields, own fields, values of a row, whether there are features of items; of the calibration the place
// of its field (-1: none) and whether that is shared, and its segments (-1: nothing is calibrated), with keys[segments],
// scale[segments + 1] and shift[segments + 1]; then, and numbers: those of `Head`. Returns null without memory.
Snapshot* snapshot_new(livectr::SwapLock* lock, int64_t version, const void* tables, const Network* network,
                       const int64_t* sizes, const int32_t* numbers, const int64_t* keys, const float* scale,
                       const float* shift) {
    try {
        std::unique_ptr<Snapshot> made(new Snapshot{
            {lock, version, tables, sizes[0], sizes[1], sizes[2]}, {network, sizes + 7, numbers}, sizes[3] != 0});
        if (const int64_t segments = sizes[6]; segments >= 0) {
            Calibration& to = made->calibration;
            to.place = sizes[4];
            to.shared = sizes[5];
            to.keys.assign(keys, keys + segments);
            to.scale.assign(scale, scale + segments + 1);
            to.shift.assign(shift, shift + segments + 1);
        }
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Adds a head beside the network; sizes and numbers as those of `Head`. Returns false without memory.
bool snapshot_head(Snapshot* to, const Network* network, const int64_t* sizes, const int32_t* numbers) {
    try {
        to->others.emplace_back(network, sizes, numbers);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Mixes the heads by weights[count], the first head's first. Returns false without memory.
bool snapshot_mix(Snapshot* to, const double* weights, int64_t count) {
    try {
        for (int64_t h = 0; h < count; ++h) to->log_weights.push_back(std::log(weights[h]));
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Adds a network's pooling; numbers as those of `PooledReads::read`. Returns false without memory.
bool snapshot_pool(Snapshot* to, const livectr::pooling::Pooling* pooling, const int64_t* numbers) {
    try {
        to->pooled.read(pooling, numbers, to->tables);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
void snapshot_delete(Snapshot* snapshot) { delete snapshot; }

int64_t snapshot_score(const Snapshot* snapshot, Scoring* call) {
    return outcome_of([&] { return score(*snapshot, *call); });
}
}
