// Behavior histories as a sequential state machine (host only): per user the last n (item, ts), by ts.
//
// A query sees items that were appended before it in the sequence and whose time is not after its own: nothing of a
// user's future, in any order of the log.
//
// Two rules bound memory, and both are functions of the sequence alone. A behavior older than the horizon is seen by
// no query; a user whose newest behavior is that old leaves. Beyond max_bytes the users whose newest behavior is the
// oldest leave first.
#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "runtime/index.cuh"

namespace {

struct Behavior {
    int64_t item, ts;
};

class HistoryTable {
  public:
    // horizon_ms: a behavior leaves when event time has passed it by more; max_bytes: of `bytes`.
    HistoryTable(int64_t n, int64_t horizon_ms, int64_t max_bytes)
        : n_(size_t(n)), horizon_ms_(horizon_ms), max_bytes_(max_bytes) {}

    struct User {
        int64_t key;
        int64_t generation;          // that of the last append; GONE: a free place
        std::vector<Behavior> last;  // by (ts, arrival), at most n; never empty in a place that is taken
    };

    // Query of a `recent(…)` of a pipeline, and its answers.
    struct Cut {
        int64_t limit, within_ms;
        std::vector<int32_t> offsets;
        std::vector<int64_t> items;
    };

    // mark: event time of the sequence, which never falls.
    void push(int64_t m, const uint8_t* append, const int64_t* user, const int64_t* item, const int64_t* ts,
              const int64_t* mark) {
        for (Cut& cut : cuts) {
            cut.offsets.assign(1, 0);
            cut.items.clear();
        }
        for (int64_t i = 0; i < m; ++i) {
            const int64_t oldest = oldest_at(mark[i]);
            if (append[i]) expire(oldest);
            const uint32_t id = find_row(index_.view(), user[i]);
            if (append[i]) {
                if (ts[i] >= oldest) add(id, user[i], {item[i], ts[i]}, oldest);
                shrink();
            } else {
                for (Cut& cut : cuts) query(id, ts[i], oldest, cut);
            }
        }
        if (m) expire(oldest_at(mark[m - 1]));
    }

    // Replaces the history of a user.
    void assign(int64_t key, const Behavior* last, int64_t count) {
        const uint32_t known = find_row(index_.view(), key);
        if (known != NO_ROW) remove(known);
        if (!count) return;
        User& user = users_[create(key, last[count - 1].ts)];
        user.last.reserve(room(size_t(count)));
        user.last.assign(last, last + count);
        touch(user);
        bytes_ += cost(user);
    }

    // Users with an append after generation `since` was closed, by key; all users for 0.
    std::vector<const User*> changed(int64_t since) const {
        std::vector<const User*> found;
        for (const User& user : users_)
            if (user.generation > since) found.push_back(&user);
        std::sort(found.begin(), found.end(), [](auto* a, auto* b) { return a->key < b->key; });
        return found;
    }

    // Expired users: those that left after generation `since` was closed and are not back, by key. Listed if `tracks`.
    std::vector<int64_t> left(int64_t since) const {
        std::vector<int64_t> found;
        for (const auto& [generation, key] : left_)
            if (generation > since && find_row(index_.view(), key) == NO_ROW) found.push_back(key);
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }

    // Forgets the users that expired up to a generation: no version asks for them any more.
    void forget_left(int64_t until) {
        while (!left_.empty() && left_.front().first <= until) left_.pop_front();
    }

    int64_t listed() const { return int64_t(left_.size()); }

    int64_t mark() { return generation_++; }
    int64_t size() const { return int64_t(users_.size() - free_.size()); }
    // Depends on the histories alone, so that a restored table forgets the same users as an unbroken one.
    int64_t bytes() const { return bytes_; }

    std::vector<Cut> cuts;
    int64_t expired = 0, evicted = 0;  // users
    bool tracks = false;

  private:
    static constexpr int64_t GONE = -1;
    static constexpr int64_t USER_BYTES = 128;  // place, slots of the index, entry of the order, allocation

    int64_t oldest_at(int64_t mark) const {
        int64_t oldest;
        return __builtin_sub_overflow(mark, horizon_ms_, &oldest) ? INT64_MIN : oldest;
    }

    // Behaviors for which a history of `count` has memory: at least 4, the next power of two, at most n.
    size_t room(size_t count) const {
        return std::min(n_, count <= 4 ? 4 : size_t{1} << (64 - __builtin_clzll(count - 1)));
    }

    int64_t cost(const User& user) const { return USER_BYTES + int64_t(room(user.last.size()) * sizeof(Behavior)); }

    uint32_t create(int64_t key, int64_t newest) {
        uint32_t id = uint32_t(users_.size());
        if (free_.empty()) {
            users_.push_back({key, 0, {}});
        } else {
            id = free_.back();
            free_.pop_back();
            users_[id] = {key, 0, {}};
        }
        index_.find_or_insert(key, id);
        order_.push({newest, key});
        return id;
    }

    void remove(uint32_t id) {
        bytes_ -= cost(users_[id]);
        index_.erase(users_[id].key);
        users_[id] = {0, GONE, {}};
        free_.push_back(id);
    }

    void leave(uint32_t id) {
        if (tracks) left_.push_back({generation_, users_[id].key});
        remove(id);
    }

    void touch(User& user) { user.generation = generation_; }

    // Takes the first entry of the order. Returns its user if that user has no newer behavior, else NO_ROW.
    uint32_t pop() {
        const auto [ts, key] = order_.top();
        order_.pop();
        const uint32_t id = find_row(index_.view(), key);
        if (id == NO_ROW) return NO_ROW;
        const int64_t newest = users_[id].last.back().ts;
        if (newest > ts) order_.push({newest, key});
        return newest == ts ? id : NO_ROW;
    }

    // Users without a behavior of time `oldest` or later leave.
    void expire(int64_t oldest) {
        while (!order_.empty() && order_.top().first < oldest) {
            const uint32_t id = pop();
            if (id == NO_ROW) continue;
            leave(id);
            ++expired;
        }
    }

    // Users whose newest behavior is the oldest leave until the rest fits; of equal times the least key.
    void shrink() {
        while (bytes_ > max_bytes_ && size() > 1) {
            const uint32_t id = pop();
            if (id == NO_ROW) continue;
            leave(id);
            ++evicted;
        }
    }

    void add(uint32_t id, int64_t key, Behavior behavior, int64_t oldest) {
        if (id == NO_ROW) id = create(key, behavior.ts);
        else bytes_ -= cost(users_[id]);
        User& user = users_[id];
        insert(user.last, behavior, oldest);
        touch(user);
        bytes_ += cost(user);
    }

    void insert(std::vector<Behavior>& last, Behavior behavior, int64_t oldest) {
        auto begin = last.begin();
        while (begin != last.end() && begin->ts < oldest) ++begin;
        if (size_t(last.end() - begin) == n_) {
            if (behavior.ts < begin->ts) return;  // older than all stored items
            ++begin;
        }
        if (begin != last.begin()) last.erase(last.begin(), begin);
        const size_t wanted = room(last.size() + 1);
        if (last.capacity() != wanted) {  // `cost` counts what is held
            std::vector<Behavior> fitting;
            fitting.reserve(wanted);
            fitting.assign(last.begin(), last.end());
            last.swap(fitting);
        }
        auto at = last.end();
        while (at != last.begin() && (at - 1)->ts > behavior.ts) --at;
        last.insert(at, behavior);
    }

    void query(uint32_t id, int64_t ts, int64_t oldest, Cut& cut) {
        if (id != NO_ROW) {
            const auto& last = users_[id].last;
            auto end = last.end();
            while (end != last.begin() && (end - 1)->ts > ts) --end;
            auto begin = end;
            while (begin != last.begin() && end - begin < cut.limit && ts - (begin - 1)->ts <= cut.within_ms &&
                   (begin - 1)->ts >= oldest)
                --begin;
            for (; begin != end; ++begin) cut.items.push_back(begin->item);
        }
        cut.offsets.push_back(int32_t(cut.items.size()));
    }

    using Entry = std::pair<int64_t, int64_t>;  // (time, user): at most the time of the user's newest behavior

    const size_t n_;
    const int64_t horizon_ms_, max_bytes_;
    Index index_{0};
    std::vector<User> users_;
    std::vector<uint32_t> free_;
    std::deque<std::pair<int64_t, int64_t>> left_;  // (generation, user)
    // Users by newest behavior. A user has one entry, which is put right when it comes first.
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> order_;
    int64_t generation_ = 1, bytes_ = 0;
};

}  // namespace

// ── the calls of history.py ─────────────────────────────────────────────────────────────────────────────────

extern "C" {

void* history_new(int64_t n, int64_t horizon_ms, int64_t max_bytes) {
    return new HistoryTable(n, horizon_ms, max_bytes);
}
void history_free(void* table) { delete static_cast<HistoryTable*>(table); }
int64_t history_size(void* table) { return static_cast<HistoryTable*>(table)->size(); }
// counts int64[3]: bytes, users that expired by age, users evicted for lack of room.
void history_counts(void* table, int64_t* counts) {
    const auto* history = static_cast<HistoryTable*>(table);
    counts[0] = history->bytes();
    counts[1] = history->expired;
    counts[2] = history->evicted;
}
void history_track(void* table) { static_cast<HistoryTable*>(table)->tracks = true; }
int64_t history_left_size(void* table, int64_t since) {
    return int64_t(static_cast<HistoryTable*>(table)->left(since).size());
}
void history_left(void* table, int64_t since, int64_t* users) {
    const auto found = static_cast<HistoryTable*>(table)->left(since);
    std::copy(found.begin(), found.end(), users);
}
void history_forget_left(void* table, int64_t until) { static_cast<HistoryTable*>(table)->forget_left(until); }
int64_t history_listed(void* table) { return static_cast<HistoryTable*>(table)->listed(); }
int64_t history_mark(void* table) { return static_cast<HistoryTable*>(table)->mark(); }

// sizes int64[cuts]: number of items in the answers of each cut.
void history_push(void* table, int64_t m, const uint8_t* append, const int64_t* user, const int64_t* item,
                  const int64_t* ts, const int64_t* mark, int64_t cuts, const int64_t* limit, const int64_t* within_ms,
                  int64_t* sizes) {
    auto* history = static_cast<HistoryTable*>(table);
    history->cuts.resize(size_t(cuts));
    for (int64_t c = 0; c < cuts; ++c) {
        history->cuts[c].limit = limit[c];
        history->cuts[c].within_ms = within_ms[c];
    }
    history->push(m, append, user, item, ts, mark);
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
