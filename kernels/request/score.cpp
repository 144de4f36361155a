// Look up → score → reply: features of a request's candidates and the state of a version in, a packed reply out.
//
//     keys ─► rows of the near-cache, pooled ─┐
//     item keys ─► kept partial results ──────┴─► network ─► probabilities ─► order ─► bytes of the reply
//
// A call does no I/O. Where a row or a partial result is missing it says so; the caller reads or computes it, and calls
// again with what it found. Its arrays are one block of memory, which ends with it.
#include "network/forward.hpp"
#include "network/reply.hpp"
#include "request/look_up.hpp"
#include "request/partials.hpp"

#include <numeric>

namespace {

using livectr::forward::Network;
using livectr::forward::Source;
using namespace livectr::request;

// Place of a field among the shared fields or the rows' own, and its number in the network.
struct Field {
    int32_t place, number;
};

// What requests with the same shared fields read at a version. It refers to its parts, which outlive it.
struct Snapshot {
    const VersionTables tables;
    const Network* network;
    int64_t first;                         // value of a row at which a field's vector begins
    std::vector<Field> of_shared, of_own;  // fields that the network reads, without the items' own ones
    std::vector<Field> of_items;           // the items' fields among the rows' own
    std::vector<int32_t> dense;            // columns of the dense numbers, without the items'
    std::vector<int32_t> dense_of_items;
    int32_t fields;  // of the network: dense numbers have the numbers after them
    bool items;      // some features are the items': their partial results are given, or computed from the rows' own
};

// Arguments and results; score.py's `_Call`.
struct Call {
    Keys keys;
    const float* dense;  // [rows, width]
    int64_t width;
    double deadline;              // instant of the steady clock in seconds
    const float* own_vectors;     // [rows, own, dim]; null: they are looked up
    const float* shared_vectors;  // [shared, dim]
    Partials* partials;           // of items; null: none are kept
    const int64_t* item_keys;     // [rows]
    const float** kept;           // [rows], addresses of the items' partial results
    bool kept_is_given;           // else it is a result, null where there is none
    const double* bids;           // [rows]; null: no reply is packed
    const int64_t* reply_fields;  // [3]
    float* logits;                // [rows], result
    double* pctr;                 // [rows], result if there are bids
    uint8_t* out;                 // result if there are bids
    const double* bounds;         // of a histogram of the probabilities, rising
    int64_t bounds_count;
    int64_t* counts;  // [bounds_count + 1], result if there are bids
    double total;     // of the probabilities
    int64_t bytes;    // of the reply
    double looked_up_at, scored_at;
};

// Vectors of the rows' own fields and of the shared fields.
struct Vectors {
    const float *own, *shared;
};

// Sources of some fields.
Source* add_fields(const Snapshot& of, const std::vector<Field>& fields, const float* vectors, int64_t count,
                   Source* to) {
    for (const Field field : fields)
        *to++ = {vectors + field.place * of.tables.dim + of.first, count * of.tables.dim, field.number};
    return to;
}

// Source of some columns of the dense numbers, which are copied into numbers[rows, columns].
Source* add_dense(const Call& call, const std::vector<int32_t>& columns, int32_t number, float* numbers, Source* to) {
    const int64_t count = columns.size();
    if (!count) return to;
    for (int64_t row = 0; row < call.keys.rows; ++row)
        for (int64_t i = 0; i < count; ++i) numbers[row * count + i] = call.dense[row * call.width + columns[i]];
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

Outcome score(const Snapshot& of, Call& call) {
    const int64_t rows = call.keys.rows, size = forward_partial_size(of.network), numbers = rows * call.width;
    const bool computes = of.items && !call.kept_is_given && !call.partials;
    const int64_t most = of.of_own.size() + of.of_shared.size() + of.of_items.size() + 2;
    const VersionTables& tables = of.tables;
    CallMemory memory(tables.memory(call.keys) + CallMemory::bytes<float>(2 * numbers) +
                      2 * CallMemory::bytes<Source>(most) + CallMemory::bytes<float>(computes ? rows * size : 0) +
                      CallMemory::bytes<livectr::reply::Candidate>(call.bids ? 2 * rows : 0));

    Vectors vectors{call.own_vectors, call.shared_vectors};
    if (!vectors.own) {
        float* const out = memory.take<float>(tables.cells(rows) * tables.dim);
        if (const Outcome outcome = tables.look_up(call.keys, call.deadline, memory, out)) return outcome;
        vectors = {out, out + rows * tables.own * tables.dim};
    }
    float* const dense = memory.take<float>(2 * numbers);
    Source* const own = memory.take<Source>(most);
    const float* const* kept = of.items ? call.kept : nullptr;
    if (computes) {
        float* const partials = memory.take<float>(rows * size);
        Source* end = add_fields(of, of.of_items, vectors.own, tables.own, own);
        end = add_dense(call, of.dense_of_items, of.fields + 1, dense + numbers, end);
        if (!forward_partials(of.network, own, end - own, rows, partials)) return NO_MEMORY;
        for (int64_t row = 0; row < rows; ++row) call.kept[row] = partials + row * size;
    } else if (of.items && !call.kept_is_given && call.partials->find(call.item_keys, rows, call.kept)) {
        return MISSING_ITEMS;
    }
    call.looked_up_at = livectr::SwapLock::seconds();

    Source* end = add_fields(of, of.of_own, vectors.own, tables.own, own);
    end = add_dense(call, of.dense, of.fields, dense, end);
    Source* const shared = memory.take<Source>(most);
    const Source* const end_of_shared = add_fields(of, of.of_shared, vectors.shared, tables.shared, shared);
    if (!forward_run(of.network, own, end - own, shared, end_of_shared - shared, kept, rows, call.logits))
        return NO_MEMORY;
    call.scored_at = livectr::SwapLock::seconds();

    if (call.bids) {
        livectr::reply::probabilities(call.logits, rows, call.pctr);
        call.total = std::accumulate(call.pctr, call.pctr + rows, 0.0);
        count_values(call.pctr, rows, call.bounds, call.bounds_count, call.counts);
        call.bytes = livectr::reply::pack(call.pctr, call.bids, rows, call.reply_fields,
                                          memory.take<livectr::reply::Candidate>(2 * rows), call.out);
    }
    return DONE;
}

}  // namespace

extern "C" {

// sizes: shared fields, own fields, values of a row, value at which a vector begins, fields of the network, then the
// lengths of the lists that follow each other in `numbers`: shared fields, own fields and the items' fields as pairs
// (place, number), columns of dense numbers, and the items'. Returns null without memory.
Snapshot* snapshot_new(livectr::SwapLock* lock, int64_t version, const void* tables, const Network* network,
                       const int64_t* sizes, const int32_t* numbers) {
    try {
        std::unique_ptr<Snapshot> made(
            new Snapshot{{lock, version, tables, sizes[0], sizes[1], sizes[2]}, network, sizes[3]});
        Snapshot& to = *made;
        to.fields = static_cast<int32_t>(sizes[4]);
        const auto pairs = [&](std::vector<Field>& list, int64_t count) {
            for (int64_t i = 0; i < count; ++i, numbers += 2) list.push_back({numbers[0], numbers[1]});
        };
        const auto columns = [&](std::vector<int32_t>& list, int64_t count) {
            list.assign(numbers, numbers + count);
            numbers += count;
        };
        pairs(to.of_shared, sizes[5]);
        pairs(to.of_own, sizes[6]);
        pairs(to.of_items, sizes[7]);
        columns(to.dense, sizes[8]);
        columns(to.dense_of_items, sizes[9]);
        to.items = sizes[10];
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void snapshot_delete(Snapshot* snapshot) { delete snapshot; }

int64_t snapshot_score(const Snapshot* snapshot, Call* call) {
    try {
        return score(*snapshot, *call);
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}
}
