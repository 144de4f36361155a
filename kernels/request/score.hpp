// Scores of candidates, for other units of the library; score.cpp says how.
#pragma once
#include "request/look_up.hpp"
#include "request/partials.hpp"

namespace livectr::request {

struct Snapshot;

const VersionTables& tables_of(const Snapshot& snapshot);

// Arguments and results, all of 8 bytes; score.py's `_Words`.
struct Scoring {
    FeatureCall* features;
    double deadline;              // instant of the steady clock in seconds
    const float* own_vectors;     // [rows, own, dim]; null: they are looked up
    const float* shared_vectors;  // [shared, dim]
    Partials* partials;           // of items; null: none are kept
    const float** kept;           // [rows], addresses of the items' partial results
    int64_t kept_is_given;        // else they are a result, null where there is none
    const float* const* lists;    // of the network's pooling, vectors that were read for the call; null: they are found
    int64_t most_pairs;           // of vectors of a list that all rows share, and rows
    const double* bids;           // [rows]; null: no reply is packed
    const int64_t* reply_fields;  // [3]
    const double* bounds;         // of a histogram of the probabilities, rising
    int64_t bounds_count;
    int64_t* counts;  // [bounds_count + 1], result if there are bids
    // Results, in the features' memory.
    const float* logits;  // [rows]
    const float* lines;   // [2, rows], scale and shift of the logits' calibration; null: they are not calibrated
    const uint8_t* out;   // [bytes], reply if there are bids
    int64_t bytes;
    int64_t list, listed;  // that has too many pairs, and its vectors
    double total;          // of the probabilities
    double looked_up_at, scored_at;
    const float* others;  // [heads, rows], logits of the heads that are not mixed; null: there are none
};

}  // namespace livectr::request

extern "C" int64_t snapshot_score(const livectr::request::Snapshot* snapshot, livectr::request::Scoring* call);
