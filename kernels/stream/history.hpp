// Behavior histories as a sequential state machine (host only): per user the last n (item, ts), by ts.
//
// A query sees items that were appended before it in the sequence and whose time is not after its own: nothing of a
// user's future, in any order of the log.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/index.cuh"

namespace {

struct Behavior {
    int64_t item, ts;
};

class HistoryTable {
 public:
    explicit HistoryTable(int64_t n) : n_(size_t(n)) {}

    struct User {
        int64_t key;
        int64_t generation;           // that of the last append
        std::vector<Behavior> last;  // by (ts, arrival), at most n
    };

    // Query of a `recent(…)` of a pipeline, and its answers.
    struct Cut {
        int64_t limit, within_ms;
        std::vector<int32_t> offsets;
        std::vector<int64_t> items;
    };

    void push(int64_t m, const uint8_t* append, const int64_t* user, const int64_t* item, const int64_t* ts) {
        for (Cut& cut : cuts) {
            cut.offsets.assign(1, 0);
            cut.items.clear();
        }
        for (int64_t i = 0; i < m; ++i) {
            const uint32_t id = find_row(index_.view(), user[i]);
            if (append[i])
                add(users_[id == NO_ROW ? create(user[i]) : id], {item[i], ts[i]});
            else
                for (Cut& cut : cuts) query(id, ts[i], cut);
        }
    }

    // Replaces the history of a user.
    void assign(int64_t key, const Behavior* last, int64_t count) {
        const uint32_t id = find_row(index_.view(), key);
        User& user = users_[id == NO_ROW ? create(key) : id];
        user.last.assign(last, last + count);
        touch(user);
    }

    // Users with an append after generation `since` was closed, by key; all users for 0.
    std::vector<const User*> changed(int64_t since) const {
        std::vector<const User*> found;
        for (const User& user : users_)
            if (user.generation > since) found.push_back(&user);
        std::sort(found.begin(), found.end(), [](auto* a, auto* b) { return a->key < b->key; });
        return found;
    }

    int64_t mark() { return generation_++; }
    int64_t size() const { return int64_t(users_.size()); }

    std::vector<Cut> cuts;

 private:
    uint32_t create(int64_t key) {
        const uint32_t id = uint32_t(users_.size());
        users_.push_back({key, 0, {}});
        index_.find_or_insert(key, id);
        return id;
    }

    void touch(User& user) { user.generation = generation_; }

    void add(User& user, Behavior behavior) {
        auto& last = user.last;
        touch(user);
        if (last.size() == n_) {
            if (behavior.ts < last.front().ts) return;  // older than all stored items
            last.erase(last.begin());
        } else if (last.size() == last.capacity()) {
            last.reserve(std::min(n_, std::max<size_t>(4, last.size() * 2)));  // never above n
        }
        auto at = last.end();
        while (at != last.begin() && (at - 1)->ts > behavior.ts) --at;
        last.insert(at, behavior);
    }

    void query(uint32_t id, int64_t ts, Cut& cut) {
        if (id != NO_ROW) {
            const auto& last = users_[id].last;
            auto end = last.end();
            while (end != last.begin() && (end - 1)->ts > ts) --end;
            auto begin = end;
            while (begin != last.begin() && end - begin < cut.limit && ts - (begin - 1)->ts <= cut.within_ms) --begin;
            for (; begin != end; ++begin) cut.items.push_back(begin->item);
        }
        cut.offsets.push_back(int32_t(cut.items.size()));
    }

    const size_t n_;
    Index index_{0};
    std::vector<User> users_;
    int64_t generation_ = 1;
};

}  // namespace

// ── the calls of history.py ─────────────────────────────────────────────────────────────────────────────────

extern "C" {

void* history_new(int64_t n) { return new HistoryTable(n); }
void history_free(void* table) { delete static_cast<HistoryTable*>(table); }
int64_t history_size(void* table) { return static_cast<HistoryTable*>(table)->size(); }
int64_t history_mark(void* table) { return static_cast<HistoryTable*>(table)->mark(); }

// sizes int64[cuts]: number of items in the answers of each cut.
void history_push(void* table, int64_t m, const uint8_t* append, const int64_t* user, const int64_t* item,
                  const int64_t* ts, int64_t cuts, const int64_t* limit, const int64_t* within_ms,
                  int64_t* sizes) {
    auto* history = static_cast<HistoryTable*>(table);
    history->cuts.resize(size_t(cuts));
    for (int64_t c = 0; c < cuts; ++c) {
        history->cuts[c].limit = limit[c];
        history->cuts[c].within_ms = within_ms[c];
    }
    history->push(m, append, user, item, ts);
    for (int64_t c = 0; c < cuts; ++c) sizes[c] = int64_t(history->cuts[c].items.size());
}

void history_answers(void* table, int64_t cut, int32_t* offsets, int64_t* items) {
    const auto& got = static_cast<HistoryTable*>(table)->cuts[cut];
    std::copy(got.offsets.begin(), got.offsets.end(), offsets);
    std::copy(got.items.begin(), got.items.end(), items);
}

// Sizes of the export: users, behaviors.
void history_export_sizes(void* table, int64_t since, int64_t* sizes) {
    sizes[0] = sizes[1] = 0;
    for (const auto* user : static_cast<HistoryTable*>(table)->changed(since)) {
        ++sizes[0];
        sizes[1] += int64_t(user->last.size());
    }
}

void history_export(void* table, int64_t since, int64_t* users, int32_t* lengths, int64_t* items, int64_t* ts) {
    for (const auto* user : static_cast<HistoryTable*>(table)->changed(since)) {
        *users++ = user->key;
        *lengths++ = int32_t(user->last.size());
        for (const auto& behavior : user->last) {
            *items++ = behavior.item;
            *ts++ = behavior.ts;
        }
    }
}

void history_assign(void* table, int64_t m, const int64_t* users, const int32_t* lengths, const int64_t* items,
                    const int64_t* ts) {
    auto* history = static_cast<HistoryTable*>(table);
    std::vector<Behavior> last;
    for (int64_t i = 0; i < m; ++i) {
        last.clear();
        for (int32_t j = 0; j < lengths[i]; ++j) last.push_back({*items++, *ts++});
        history->assign(users[i], last.data(), lengths[i]);
    }
}

}  // extern "C"
