// Calls of join.py into the label join (host only).
#include <vector>

#include "stream/join.hpp"

extern "C" {

void* join_new(int64_t window_ms, int64_t wait_ms, int64_t dedup_ms, int64_t slack_ms, int64_t max_bytes,
               int64_t finals, int64_t amounts) {
    return new JoinIndex(window_ms, wait_ms, dedup_ms, slack_ms, max_bytes, finals != 0, amounts != 0);
}
void join_free(void* join) { delete static_cast<JoinIndex*>(join); }

void join_push(void* join, int64_t n, const uint8_t* kind, const int64_t* key, const int64_t* ts, const int64_t* wm,
               const int64_t* size, const double* amount, uint8_t* status, int64_t* slot, int64_t* seen) {
    static_cast<JoinIndex*>(join)->push(n, kind, key, ts, wm, size, amount, status, slot, seen);
}

// Number of rows that `join_drain` then writes.
int64_t join_advance(void* join, int64_t wm) {
    auto* index = static_cast<JoinIndex*>(join);
    index->advance(wm);
    return int64_t(index->out.size());
}

// amount: null without amounts.
void join_drain(void* join, int64_t* slot, uint8_t* label, int64_t* click_ts, int64_t* deadline, double* amount) {
    auto* index = static_cast<JoinIndex*>(join);
    for (const auto& r : index->out) {
        *slot++ = r.slot;
        *label++ = r.label;
        *click_ts++ = r.click_ts;
        *deadline++ = r.deadline;
        if (amount) *amount++ = r.amount;
    }
    index->out.clear();
}

// next_slot, next_serial, unmatched, pending, forgotten, bytes; deadline and serial of the oldest released entry; behind,
// waiting, matched
void join_counters(void* join, int64_t* counters) {
    const auto* index = static_cast<JoinIndex*>(join);
    const int64_t bytes = index->bytes[kWaiting] + index->bytes[kPending] + index->bytes[kReleased];
    const auto* oldest = index->oldest();
    const int64_t values[] = {index->next_slot,
                              index->next_serial,
                              index->unmatched,
                              index->pending,
                              index->forgotten,
                              bytes,
                              oldest ? oldest->deadline : INT64_MAX,
                              oldest ? oldest->serial : INT64_MAX,
                              index->behind,
                              index->waiting,
                              index->matched};
    std::copy(values, values + 11, counters);
}

// Milliseconds by which clicks were before their impression and more than the slack, at most KEPT_AHEAD. Returns their number.
int64_t join_ahead(void* join, int64_t* ms) {
    const auto& ahead = static_cast<JoinIndex*>(join)->ahead;
    std::copy(ahead.begin(), ahead.end(), ms);
    return int64_t(ahead.size());
}

// Place of the oldest released entry, place behind the newest, number of the next touch.
void join_places(void* join, int64_t* places) {
    const auto* index = static_cast<JoinIndex*>(join);
    const int64_t values[] = {index->first_released, index->end_released(), index->next_touch};
    std::copy(values, values + 3, places);
}

// Selects entries for `join_export`: the open ones, or those released from a place and a touch on. Sizes: entries, waiting clicks.
void join_select(void* join, int64_t open, int64_t place, int64_t touch, int64_t* sizes) {
    auto* index = static_cast<JoinIndex*>(join);
    index->selected = open ? index->open() : index->released(place, touch);
    sizes[0] = int64_t(index->selected.size());
    sizes[1] = 0;
    for (const auto& e : index->selected) sizes[1] += int64_t(index->waiting_clicks(e).size());
}

// fields int64[7, n]: key, ts, deadline, slot, click_ts, serial, bytes of the columns; flags uint8[2, n]: state, clicked; clicks
// int32[n]: how many of click_ts belong to each entry.
void join_export(void* join, int64_t n, int64_t* fields, uint8_t* flags, int32_t* clicks, int64_t* waiting) {
    auto* index = static_cast<JoinIndex*>(join);
    int64_t i = 0;
    for (const auto& e : index->selected) {
        const int64_t values[] = {
            e.key, e.ts, e.deadline, e.slot, e.click_ts, e.serial, e.state == kWaiting ? 0 : e.clicks};
        for (int f = 0; f < 7; ++f) fields[f * n + i] = values[f];
        flags[i] = e.state;
        flags[n + i] = e.clicked;
        const auto ts = index->waiting_clicks(e);
        clicks[i++] = int32_t(ts.size());
        waiting = std::copy(ts.begin(), ts.end(), waiting);
    }
    index->selected = {};
}

// Amounts of the selected entries, before `join_export`: f64[n], and those of the waiting clicks.
void join_amounts(void* join, double* amounts, double* waiting) {
    auto* index = static_cast<JoinIndex*>(join);
    for (const auto& e : index->selected) {
        *amounts++ = index->amount_of(e);
        const auto found = index->waiting_amounts(e);
        waiting = std::copy(found.begin(), found.end(), waiting);
    }
}

// After `join_restore`.
void join_restore_amounts(void* join, int64_t n, const int64_t* keys, const int32_t* clicks, const double* amounts,
                          const double* waiting) {
    for (int64_t i = 0; i < n; waiting += clicks[i++])
        static_cast<JoinIndex*>(join)->restore_amounts(keys[i], amounts[i], waiting, clicks[i]);
}

void join_restore(void* join, int64_t n, const int64_t* fields, const uint8_t* flags, const int32_t* clicks,
                  const int64_t* waiting, const int64_t* counters) {
    auto* index = static_cast<JoinIndex*>(join);
    std::vector<JoinIndex::Entry> live(n);
    std::vector<std::vector<int64_t>> ts(n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t* f = fields + i;
        live[i] = {f[0],
                   f[n],
                   f[2 * n],
                   f[3 * n],
                   f[4 * n],
                   f[5 * n],
                   uint32_t(f[6 * n]),
                   State(flags[i]),
                   Clicked(flags[n + i])};
        ts[i].assign(waiting, waiting + clicks[i]);
        waiting += clicks[i];
    }
    index->restore(live, ts);
    index->next_slot = counters[0];
    index->next_serial = counters[1];
    index->unmatched = counters[2];
    index->forgotten = counters[4];
    index->behind = counters[8];
    index->matched = counters[10];
}

}  // extern "C"
