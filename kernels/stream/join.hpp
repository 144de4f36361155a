// Windowed label join as a sequential state machine (host only).
//
// It sees a partition's events in event-time order, each with the watermark m at its place in that order. An
// impression waits until the watermark passes its deadline, max(ts + window, m); then it is released with its label.
// The result depends on the sequence of (kind, key, ts, m) alone, not on how it is cut into calls: `push`
// advances the state to each event's own watermark before it looks up the event's key.
//
//   (unknown) ─click─► WAITING ─impression─► PENDING ─deadline < m─► RELEASED ─deadline + dedup < m─► (unknown)
//       └──────────────impression───────────────┘
//
// With a wait shorter than the window, an impression leaves at its first deadline, max(ts + wait, m), as it is
// labelled by then. A click inside the window that comes later releases it once more, at the click's watermark:
//
//   PENDING ─first deadline < m─► PROVISIONAL ─deadline < m─► RELEASED
//
// With finals, it is released once more when its window ends, with its final label.
//
// The clock of a click may be behind that of its impression: a click of at most `slack` before it is in the window. As
// such a click comes first in the order of event time, each impression is told up to which time it may see other clicks: not to
// its own.
//
// With amounts, a click carries a number, such as the amount of an order. An impression is released with that of the click that
// labels it: the first in event time of those that wait for it, else the first that comes.
//
// Each state has its share of `max_bytes`; PENDING and PROVISIONAL share one. A click or impression for which there is no room is refused; so clicks
// without impressions never take the room of impressions. The oldest released keys are forgotten before their time.
#pragma once
#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "runtime/index.cuh"
#include "stream/agenda.hpp"

namespace {

enum Kind : uint8_t { kImpression = 0, kClick = 1 };
enum Status : uint8_t {
    kAccepted = 0,
    kDuplicate = 1,
    kLate = 2,
    kUnmatched = 3,
    kOutside = 4,
    kFull = 5,
    kDelayed = 6
};
enum State : uint8_t { kWaiting = 0, kPending = 1, kReleased = 2, kProvisional = 3 };
enum Clicked : uint8_t { kNo = 0, kInWindow = 1, kTooLate = 2, kAfterWait = 3 };
enum Label : uint8_t {
    kNegative = 0,
    kPositive = 1,
    kLatePositive = 2,
    kFinalNegative = 3,
    kFinalPositive = 4,
    kFinalLate = 5
};

constexpr int64_t ENTRY_BYTES = 192;  // an entry, its place in the index at the least load, and its agendas
constexpr int64_t CLICK_BYTES = 32;
constexpr size_t KEPT_AHEAD = 4096;
constexpr double NO_AMOUNT = std::numeric_limits<double>::quiet_NaN();

class JoinIndex {
  public:
    struct Entry {
        int64_t key, ts, deadline, slot, click_ts;  // PENDING: the first deadline; else the end of the window
        int64_t serial;                             // of the entry's last change of state; -1: free
        uint32_t clicks;  // WAITING: first of its clicks; else bytes of its impression's columns
        State state;
        Clicked clicked;
    };
    struct Released {
        int64_t slot, click_ts, deadline;
        double amount;  // of the click; NaN without a click
        uint8_t label;
    };

    JoinIndex(int64_t window_ms, int64_t wait_ms, int64_t dedup_ms, int64_t slack_ms, int64_t max_bytes, bool finals,
              bool amounts)
        : window_(window_ms),
          wait_(wait_ms),
          dedup_(dedup_ms),
          slack_(slack_ms),
          room_{max_bytes / 4, max_bytes / 2, max_bytes / 4},
          finals_(finals),
          with_amounts_(amounts) {}

    // amount: of each click; null without amounts.
    void push(int64_t n, const uint8_t* kind, const int64_t* key, const int64_t* ts, const int64_t* wm,
              const int64_t* size, const double* amount, uint8_t* status, int64_t* slot, int64_t* seen) {
        for (int64_t i = 0; i < n; ++i) {
            advance(wm[i]);
            slot[i] = -1;
            seen[i] = ts[i];
            status[i] = kind[i] == kImpression ? impression(key[i], ts[i], wm[i], *size++, slot + i, seen + i)
                                               : click(key[i], ts[i], wm[i], amount ? *amount++ : NO_AMOUNT);
        }
    }

    // Releases impressions due before `wm`, then forgets entries that no event may meet any more.
    void advance(int64_t wm) {
        while (pending_.due(wm)) {
            const Agenda::Item item = pending_.pop();
            // Finals keep their place by deadline; at equal deadlines impressions leave first.
            if (finals_) end_windows(item.time);
            Entry& e = entries_[item.entry];
            const bool label = e.clicked == kInWindow;
            out.push_back({e.slot, label ? e.click_ts : -1, e.deadline, label ? amount_of(item.entry) : NO_AMOUNT,
                           uint8_t(label ? kPositive : kNegative)});
            if (wait_ < window_) {
                e.state = kProvisional;
                e.deadline = std::max(e.deadline, later(e.ts, window_));
                provisional_.add({e.deadline, item.serial, item.entry});
            } else {
                close(item);
            }
        }
        end_windows(wm);
        while (!released_.empty() && (released_.front().time < wm || bytes[kReleased] > room_[kReleased])) {
            forgotten += released_.front().time >= wm;
            forget(released_.front().entry);
            released_.pop_front();
            ++first_released;
        }
        while (waiting_.due(wm)) {
            const Agenda::Item item = waiting_.pop();
            Entry& e = entries_[item.entry];
            if (e.serial != item.serial) continue;  // it met its impression
            ++unmatched;
            --waiting;
            forget(item.entry);
            drop_clicks(e);
        }
    }

    // Entries that are not released, in order of their last change, so that equal states export equal bytes.
    std::vector<Entry> open() const {
        std::vector<Entry> found;
        const auto add = [&](const Agenda::Item& item) {
            const Entry& e = entries_[item.entry];
            if (e.serial == item.serial) found.push_back(e);  // else it has met its impression
        };
        pending_.each(add);
        provisional_.each(add);
        waiting_.each(add);
        std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.serial < b.serial; });
        return found;
    }

    // Released entries from a place in their queue on, and those before it that changed from a touch on.
    std::vector<Entry> released(int64_t place, int64_t touch) const {
        std::vector<Entry> found;
        const int64_t skip = std::min<int64_t>(std::max<int64_t>(place - first_released, 0), released_.size());
        const auto from = released_.begin() + skip;
        const Agenda::Item last{INT64_MAX, INT64_MAX, 0}, &next = from == released_.end() ? last : *from;
        for (const Touch& t : touches_) {
            const Entry& e = entries_[t.entry];
            if (t.number >= touch && e.serial == t.serial &&
                next > Agenda::Item{later(e.deadline, dedup_), t.serial, t.entry})
                found.push_back(e);
        }
        for (auto item = from; item != released_.end(); ++item) found.push_back(entries_[item->entry]);
        return found;
    }

    // Place behind the last released entry, counted from the first of this process.
    int64_t end_released() const { return first_released + int64_t(released_.size()); }

    // The released entry that is forgotten next; null without one.
    const Entry* oldest() const { return released_.empty() ? nullptr : &entries_[released_.front().entry]; }

    std::vector<int64_t> waiting_clicks(const Entry& e) const {
        std::vector<int64_t> ts;
        if (e.state != kWaiting) return ts;
        for (uint32_t c = e.clicks; c != NO_ROW; c = clicks_[c].next) ts.push_back(clicks_[c].ts);
        std::reverse(ts.begin(), ts.end());
        return ts;
    }

    // Amount of a known key, and those of its clicks that wait for an impression.
    double amount_of(const Entry& e) const { return amount_of(find_row(index_.view(), e.key)); }
    std::vector<double> waiting_amounts(const Entry& e) const {
        std::vector<double> found;
        if (e.state != kWaiting) return found;
        for (uint32_t c = e.clicks; c != NO_ROW; c = clicks_[c].next) found.push_back(click_amounts_[c]);
        std::reverse(found.begin(), found.end());
        return found;
    }

    // Restores the amounts of a key that was restored: its own, and those of its clicks that wait.
    void restore_amounts(int64_t key, double amount, const double* clicks, int64_t count) {
        const uint32_t id = find_row(index_.view(), key);
        set_amount(id, amount);
        uint32_t c = count ? entries_[id].clicks : NO_ROW;
        for (int64_t i = count - 1; i >= 0; --i, c = clicks_[c].next) click_amounts_[c] = clicks[i];
    }

    // Restores entries into an empty index.
    void restore(const std::vector<Entry>& live, const std::vector<std::vector<int64_t>>& clicks) {
        std::vector<Agenda::Item> items[4];
        for (size_t i = 0; i < live.size(); ++i) {
            const uint32_t id = create(live[i].key);
            Entry& e = entries_[id];
            e = live[i];
            if (e.state == kWaiting) e.clicks = NO_ROW;
            for (int64_t ts : clicks[i]) add_click(e, ts, NO_AMOUNT);
            bytes[share(e.state)] += size_of(e);
            const bool waits = share(e.state) == kPending;
            items[e.state].push_back({waits ? e.deadline : later(e.deadline, dedup_), e.serial, id});
        }
        for (auto& list : items) std::sort(list.begin(), list.end(), [](auto& a, auto& b) { return b > a; });
        for (const auto& item : items[kWaiting]) waiting_.add(item);
        for (const auto& item : items[kPending]) pending_.add(item);
        for (const auto& item : items[kProvisional]) provisional_.add(item);
        for (const auto& item : items[kReleased]) released_.push_back(item);
        pending = int64_t(items[kPending].size() + items[kProvisional].size());
        waiting = int64_t(items[kWaiting].size());
    }

    std::vector<Released> out;    // by deadline; its reader clears it
    std::vector<Entry> selected;  // for an export
    int64_t first_released = 0;   // place of the oldest released entry
    int64_t next_touch = 0;
    int64_t next_slot = 0, next_serial = 0;
    int64_t unmatched = 0;         // clicks that can no longer meet an impression
    int64_t waiting = 0;           // clicks that have met no impression yet, without repeats
    int64_t matched = 0;           // clicks that label an impression
    int64_t behind = 0;            // clicks among them that label an impression with a time before it
    int64_t pending = 0;           // impressions whose window has not passed
    int64_t forgotten = 0;         // released keys that made room for others
    int64_t bytes[3] = {0, 0, 0};  // by share
    std::vector<int64_t>
        ahead;  // ms by which clicks were before their impression and more than the slack: the last of them

  private:
    // State whose share of the room an entry takes.
    static State share(State state) { return state == kProvisional ? kPending : state; }

    // Ends the windows, before `wm`, of impressions that have left.
    void end_windows(int64_t wm) {
        while (provisional_.due(wm)) {
            const Agenda::Item item = provisional_.pop();
            const Entry& e = entries_[item.entry];
            if (finals_ && e.slot >= 0) {  // without a slot: from a state of a join without finals
                const Label label = e.clicked == kInWindow    ? kFinalPositive
                                    : e.clicked == kAfterWait ? kFinalLate
                                                              : kFinalNegative;
                const bool none = label == kFinalNegative;
                out.push_back({e.slot, none ? -1 : e.click_ts, e.deadline, none ? NO_AMOUNT : amount_of(item.entry),
                               uint8_t(label)});
            }
            close(item);
        }
    }

    // Ends the window of an impression that has left.
    void close(const Agenda::Item& item) {
        Entry& e = entries_[item.entry];
        bytes[kPending] -= size_of(e);
        e.clicks = 0;
        e.state = kReleased;
        bytes[kReleased] += size_of(e);
        released_.push_back({later(e.deadline, dedup_), item.serial, item.entry});
        --pending;
    }

    struct Click {
        int64_t ts;
        uint32_t next;
    };

    // Change of an entry that was released before.
    struct Touch {
        int64_t number, serial;
        uint32_t entry;
    };

    void touch(uint32_t id) {
        if (touches_.size() >= touches_room_) {
            const auto gone = [&](const Touch& t) { return entries_[t.entry].serial != t.serial; };
            touches_.erase(std::remove_if(touches_.begin(), touches_.end(), gone), touches_.end());
            touches_room_ = std::max<size_t>(1024, 2 * touches_.size());
        }
        touches_.push_back({next_touch++, entries_[id].serial, id});
    }

    int64_t size_of(const Entry& e) const {
        if (e.state != kWaiting) return ENTRY_BYTES + e.clicks;
        int64_t size = ENTRY_BYTES;
        for (uint32_t c = e.clicks; c != NO_ROW; c = clicks_[c].next) size += CLICK_BYTES;
        return size;
    }

    bool has_room(State state, int64_t size) const { return bytes[state] + size <= room_[state]; }

    // True for the time of a click that is inside the window of an impression.
    bool inside(int64_t at, int64_t ts) const { return later(at, slack_) >= ts && at <= later(ts, window_); }

    void keep_ahead(int64_t ms) {
        if (ahead.size() < KEPT_AHEAD) ahead.push_back(ms);
        else ahead[next_ahead_++ % KEPT_AHEAD] = ms;
    }

    // seen: the time up to which the impression may see clicks.
    Status impression(int64_t key, int64_t ts, int64_t wm, int64_t size, int64_t* slot, int64_t* seen) {
        if (!has_room(kPending, ENTRY_BYTES + size)) {
            const uint32_t known = find_row(index_.view(), key);
            return known != NO_ROW && entries_[known].state != kWaiting ? kDuplicate : kFull;
        }
        const uint32_t unused = free_.empty() ? uint32_t(entries_.size()) : free_.back();
        const uint32_t id = index_.find_or_insert(key, unused);
        const bool met = id != unused;
        if (met && entries_[id].state != kWaiting) return kDuplicate;
        if (!met) new_entry(key);
        Entry& e = entries_[id];
        if (met) {
            bytes[kWaiting] -= size_of(e);
            --waiting;
        }
        e.serial = next_serial++;
        e.ts = ts;
        e.slot = *slot = next_slot++;
        e.deadline = std::max(later(ts, wait_), wm);
        int64_t first = INT64_MAX;
        for (uint32_t c = e.clicks; c != NO_ROW; c = clicks_[c].next) {
            const int64_t at = clicks_[c].ts;
            first = std::min(first, at);
            if (!inside(at, ts)) continue;
            // The newest comes first: of equal times the one that came first counts.
            if (e.clicked == kNo || at <= e.click_ts) {
                e.click_ts = at;
                if (with_amounts_) set_amount(id, click_amounts_[c]);
            }
            e.clicked = kInWindow;
        }
        if (met && e.clicked == kNo) {
            ++unmatched;
            if (first < ts) keep_ahead(ts - first);
        }
        matched += e.clicked == kInWindow;
        if (e.clicked == kInWindow && e.click_ts < ts) {
            ++behind;
            *seen = e.click_ts - 1;
        }
        drop_clicks(e);
        e.clicks = uint32_t(std::min<int64_t>(size, UINT32_MAX));
        e.state = kPending;
        bytes[kPending] += size_of(e);
        pending_.add({e.deadline, e.serial, id});
        ++pending;
        return kAccepted;
    }

    Status click(int64_t key, int64_t ts, int64_t wm, double amount) {
        uint32_t id = find_row(index_.view(), key);
        if (id == NO_ROW || entries_[id].state == kWaiting) {
            const bool first = id == NO_ROW;
            if (!has_room(kWaiting, first ? ENTRY_BYTES + CLICK_BYTES : CLICK_BYTES)) return kFull;
            if (first) id = create(key);
            Entry& e = entries_[id];
            add_click(e, ts, amount);
            bytes[kWaiting] += first ? ENTRY_BYTES + CLICK_BYTES : CLICK_BYTES;
            if (!first) return kDuplicate;  // repeated clicks wait no longer than the first
            e.serial = next_serial++;
            e.deadline = std::max(later(ts, window_), wm);
            ++waiting;
            waiting_.add({later(e.deadline, dedup_), e.serial, id});
            return kUnmatched;
        }
        Entry& e = entries_[id];
        const bool in_window = share(e.state) == kPending && inside(ts, e.ts);
        if (e.clicked == kInWindow || e.clicked == kAfterWait || (e.clicked == kTooLate && !in_window))
            return kDuplicate;
        if (later(ts, slack_) < e.ts) {
            ++unmatched;
            keep_ahead(e.ts - ts);
            return kOutside;
        }
        matched += in_window;
        behind += in_window && ts < e.ts;
        e.click_ts = ts;
        set_amount(id, amount);
        e.clicked = in_window ? kInWindow : kTooLate;
        if (e.state == kReleased) touch(id);
        if (!in_window) return kLate;  // another click may still label it while its window is open
        if (e.state == kPending) return kAccepted;
        e.clicked = kAfterWait;
        out.push_back({e.slot, ts, wm, amount, kLatePositive});
        return kDelayed;
    }

    uint32_t create(int64_t key) {
        const uint32_t id = new_entry(key);
        index_.find_or_insert(key, id);
        return id;
    }

    // Entry that is not in the index: the last free entry, or a new entry.
    uint32_t new_entry(int64_t key) {
        uint32_t id = uint32_t(entries_.size());
        if (free_.empty()) {
            entries_.emplace_back();
        } else {
            id = free_.back();
            free_.pop_back();
        }
        entries_[id] = {key, 0, 0, -1, -1, 0, NO_ROW, kWaiting, kNo};
        set_amount(id, NO_AMOUNT);
        return id;
    }

    double amount_of(uint32_t id) const { return with_amounts_ ? amounts_[id] : NO_AMOUNT; }
    void set_amount(uint32_t id, double amount) {
        if (!with_amounts_) return;
        if (amounts_.size() <= id) amounts_.resize(id + 1, NO_AMOUNT);
        amounts_[id] = amount;
    }

    void forget(uint32_t id) {
        index_.erase(entries_[id].key);
        bytes[share(entries_[id].state)] -= size_of(entries_[id]);
        entries_[id].serial = -1;
        free_.push_back(id);
    }

    void add_click(Entry& e, int64_t ts, double amount) {
        uint32_t id = uint32_t(clicks_.size());
        if (free_clicks_.empty()) {
            clicks_.emplace_back();
        } else {
            id = free_clicks_.back();
            free_clicks_.pop_back();
        }
        clicks_[id] = {ts, e.clicks};
        if (with_amounts_) {
            if (click_amounts_.size() <= id) click_amounts_.resize(id + 1);
            click_amounts_[id] = amount;
        }
        e.clicks = id;
    }

    void drop_clicks(Entry& e) {
        for (uint32_t c = e.clicks; c != NO_ROW; c = clicks_[c].next) free_clicks_.push_back(c);
        e.clicks = NO_ROW;
    }

    const int64_t window_, wait_, dedup_, slack_;
    const int64_t room_[3];  // bytes, by share
    const bool finals_, with_amounts_;
    Index index_{0};
    std::vector<Entry> entries_;
    std::vector<Click> clicks_;
    std::vector<double> amounts_, click_amounts_;  // beside entries_ and clicks_
    std::vector<uint32_t> free_, free_clicks_;
    std::vector<Touch> touches_;
    size_t touches_room_ = 1024, next_ahead_ = 0;
    Agenda pending_, provisional_, waiting_;
    std::deque<Agenda::Item> released_;  // deadlines are released in order, so a queue holds them sorted
};

}  // namespace
