// Selection of a user's best items, for other units of the library; select.cpp says how.
#pragma once
#include "network/retrieval.hpp"
#include "request/look_up.hpp"

namespace livectr::request {

struct Selector;

const VersionTables& tables_of(const Selector& selector);

// Items that have vectors, and whether they have worths.
struct SelectorItems {
    int64_t count;
    bool valued;
};

SelectorItems items_of(const Selector& selector);

// Arguments and results; select.py's `_Words`.
struct Selection {
    FeatureCall* features;
    const float* const* lists;    // of the tower's pooling, vectors that were read for the call; null: they are found
    int64_t width;                // of the dense numbers
    RetrievalWorths worths;       // of the candidates; `rows` are set by the call
    double deadline;              // instant of the steady clock in seconds
    const float* own_vectors;     // [own, dim]; null: they are looked up
    const float* shared_vectors;  // [shared, dim]
    const int64_t* candidates;    // [asked], ids of items; null: all items
    int64_t asked;
    const float* cold;         // vectors of the candidates that have none, in turn; null: they are not known
    const uint32_t* excluded;  // [unwanted], ascending rows of all items
    int64_t unwanted, k;
    // index, ids (0: none are packed), the ids' values, score, value; null: no reply is packed
    const int64_t* reply_fields;
    uint32_t* rows;      // [asked], results: rows of the candidates
    int64_t* positions;  // [k], results: places of the best in the candidates, or their rows,
    int64_t* ids;        // [k], their ids,
    float* scores;       // [k], and scores,
    float* values;       // [k], and values by which they are ordered, if there are worths
    uint8_t* out;        // result if there are reply_fields
    int64_t found, unknown, bytes;
    double looked_up_at, scored_at;
};

// Bytes that a packed reply of `most` items has at most: five heads of a tag and two lengths; place, id, score, value.
constexpr int64_t room_for(int64_t most) { return 5 * 2 * 10 + (5 + 10 + 4 + 4) * most; }

}  // namespace livectr::request

extern "C" {

int64_t selector_select(const livectr::request::Selector* selector, livectr::request::Selection* call);
int64_t selector_room(int64_t most);
}
