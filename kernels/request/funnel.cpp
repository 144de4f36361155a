// Best items of a user, then their scores: the keys of the items are the ranking's column of candidates.
//
//     select.cpp ─► ids of the best ─► column of the items ─► score.cpp ─► logits
//
// Either part says what it misses; the call is made again with it, and does not repeat a part that is done.
#include "extract/arrow.hpp"
#include "request/score.hpp"
#include "request/select.hpp"

namespace {

using namespace livectr::request;

// Arguments and results, all of 8 bytes; funnel.py's `_Words`.
struct Funnel {
    const Selector* selector;
    Selection* selection;
    const Snapshot* snapshot;
    Scoring* scoring;
    ArrowArray* column;    // of the items, memory for it,
    const void** buffers;  // [2], for its buffers,
    int32_t* narrow;       // [k], and for its values; null: they are the ids
    int64_t selected;      // the first part is done
    int64_t part;          // result: 0 or 1, the part that has the outcome
};

void make_column(const Funnel& funnel) {
    const Selection& selection = *funnel.selection;
    const void* values = selection.ids;
    if (funnel.narrow) {
        for (int64_t i = 0; i < selection.found; ++i) funnel.narrow[i] = int32_t(selection.ids[i]);
        values = funnel.narrow;
    }
    funnel.buffers[0] = nullptr, funnel.buffers[1] = values;
    *funnel.column = {selection.found, 0, 0, 2, 0, funnel.buffers, nullptr, nullptr, nullptr, nullptr};
}

}  // namespace

extern "C" int64_t funnel_answer(Funnel* funnel) {
    funnel->part = 0;
    if (!funnel->selected) {
        if (const int64_t outcome = selector_select(funnel->selector, funnel->selection)) return outcome;
        FeatureCall& features = *funnel->scoring->features;
        const int64_t found = funnel->selection->found;
        if (!found || (found == 1) != (features.rows == 1)) return BAD_FEATURES;  // a single row shares no field
        features.rows = found;
        make_column(*funnel);
        funnel->selected = 1;
    }
    funnel->part = 1;
    return snapshot_score(funnel->snapshot, funnel->scoring);
}
