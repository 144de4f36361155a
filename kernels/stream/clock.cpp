// Event-time clock of a topic partition, by a quorum of its users (host only).
//
// A record's time is a device's claim. So the mark, which orders records and closes label windows, follows only times
// that several users agree on. `front` is the time that QUORUM of the users seen last have reached (half of them while
// they are fewer). A time up to `max_ahead` beyond it is believed at once. A later time waits for the records that
// follow it, with a vote per user: true when they continue from there (a gap in the log), false when they continue
// without it. The result depends on the sequence of (time, user) alone, not on how it is cut into calls.
#include <algorithm>
#include <cstdint>
#include <functional>

namespace {

constexpr int USERS = 32;        // remembered users
constexpr int QUORUM = 9;        // users that must agree: eight wrong users in a row move nothing
constexpr int64_t VOICES = 256;  // maximum of records after a doubtful record that vote on it
constexpr int64_t SLACK = 6;     // a sixth of max_ahead is usual disorder
constexpr int64_t FIRST = INT64_MIN;
constexpr int64_t EARLIEST_MS = -62135596800000, LATEST_MS = 253402300799999;  // the years 1 to 9999

enum Verdict : uint8_t { kTaken = 0, kLate = 1, kDoubted = 2, kAhead = 3, kNoTime = 4 };

static inline int64_t plus(int64_t time, int64_t by) {
    int64_t sum;
    return __builtin_add_overflow(time, by, &sum) ? INT64_MAX : sum;
}

// Hash filter of the remembered users: nearly every record is of another user, which a single look-up tells. Rebuilt
// for each call.
class Remembered {
  public:
    void add(int64_t user) { ++count_[place(user)]; }
    void remove(int64_t user) { --count_[place(user)]; }
    bool maybe(int64_t user) const { return count_[place(user)]; }

  private:
    static uint64_t place(int64_t user) { return (uint64_t(user) * 0x9E3779B97F4A7C15u) >> 55; }

    uint8_t count_[512] = {};
};

struct Clock {
    int64_t mark;   // greatest believed time
    int64_t front;  // greatest agreed time; computed again when a record lies beyond its reach
    int64_t count;  // users noted so far; the last USERS of them are stored, each once
    int64_t users[USERS], times[USERS];

    int kept() const { return int(std::min<int64_t>(count, USERS)); }

    Remembered remembered() const {
        Remembered some;
        for (int i = 0; i < kept(); ++i) some.add(users[i]);
        return some;
    }

    void note(Remembered& some, int64_t user, int64_t time) {
        mark = std::max(mark, time);
        if (some.maybe(user)) {
            int place = USERS;
            for (int i = USERS - 1; i >= 0; --i) place = users[i] == user ? i : place;
            if (place < kept()) {
                times[place] = std::max(times[place], time);
                return;
            }
        }
        const uint64_t place = uint64_t(count) % USERS;
        if (count >= USERS) some.remove(users[place]);
        some.add(user);
        users[place] = user;
        times[place] = time;
        ++count;
    }

    int64_t agreed() const {
        const int size = kept();
        if (!size) return front;
        int64_t sorted[USERS];
        std::copy(times, times + size, sorted);
        const int place = std::min(QUORUM, size / 2 + 1) - 1;
        std::nth_element(sorted, sorted + place, sorted + size, std::greater<int64_t>());
        return std::max(front, sorted[place]);
    }

    int64_t behind(int64_t by) const { return mark == FIRST ? FIRST : mark - by; }
};

struct Votes {
    int64_t agree = 0, disagree = 0, own = 0;
    int64_t least = LATEST_MS;  // of the times that disagree, also of users that have voted already
    bool whole = false;         // no later record can change it

    bool refused() const { return agree || disagree ? disagree >= agree : own < 0; }
};

// Votes of the records after the first of n: the log continues from its time, or without it. They may be out of order
// by `slack`.
static Votes ask(int64_t n, const int64_t* ts, const int64_t* user, int64_t mark, int64_t max_ahead, int64_t slack) {
    Votes votes;
    int64_t heard[2 * QUORUM];
    int64_t* end = heard;
    const int64_t reached = ts[0] - slack, present = mark == FIRST ? FIRST : mark - max_ahead;
    for (int64_t i = 1; i < std::min(n, VOICES + 1); ++i) {
        if (ts[i] < std::max(present, EARLIEST_MS) || ts[i] > LATEST_MS) continue;  // late: no vote
        const bool agrees = ts[i] >= reached;
        if (!agrees) votes.least = std::min(votes.least, ts[i]);
        if (user[i] == user[0]) {
            votes.own += agrees ? 1 : -1;
            continue;
        }
        if (std::find(heard, end, user[i]) != end) continue;
        *end++ = user[i];
        ++(agrees ? votes.agree : votes.disagree);
        if (votes.agree == QUORUM || votes.disagree == QUORUM) {
            votes.whole = true;
            return votes;
        }
    }
    votes.whole = n > VOICES;
    return votes;
}

// See `clock_judge`. The clock is a local copy, so that writes to other arrays never force a reload.
static int64_t judge(Clock& clock, int64_t n, const int64_t* ts, const int64_t* user, int64_t max_ahead,
                     int64_t disorder, int64_t floor, int64_t limit, uint8_t ended, int64_t* mark, uint8_t* verdict) {
    Remembered some = clock.remembered();
    const int64_t slack = std::min(max_ahead, std::max(disorder, max_ahead / SLACK));
    for (int64_t i = 0; i < n; ++i) {
        const int64_t time = ts[i];
        mark[i] = clock.mark;
        if (time < EARLIEST_MS || time > LATEST_MS) {
            verdict[i] = kNoTime;
            continue;
        }
        if (time > plus(clock.front, max_ahead)) {
            const int64_t front = clock.agreed();
            if (time > plus(std::max(front, floor), max_ahead)) {
                const Votes votes = ask(n - i, ts + i, user + i, clock.mark, max_ahead, slack);
                if (!votes.whole && !ended) return i;
                const bool refused = votes.refused();
                if (refused && (votes.whole || time > limit)) {
                    verdict[i] = kAhead;
                    if (clock.mark == FIRST) mark[i] = votes.least;
                    continue;
                }
                if (!votes.whole && time > limit) return i;
                if (refused || votes.least < LATEST_MS) {  // it has its place before all that disagree
                    verdict[i] = kDoubted;
                    mark[i] = clock.mark = std::max(clock.mark, votes.least);
                    continue;
                }
            }
            clock.front = front;
        }
        verdict[i] = time < clock.behind(plus(disorder, max_ahead)) ? kLate : kTaken;
        clock.note(some, user[i], time);
        mark[i] = std::max(time, clock.behind(disorder));
    }
    return n;
}

}  // namespace

extern "C" {

int64_t clock_size() { return sizeof(Clock) / sizeof(int64_t); }

// Judges n records; returns the number judged: the next record waits for more records. mark int64[n]: the place of
// each in event time; verdict uint8[n].
//
// disorder: lag of marks, so that a record that is late by as much has its own time as its mark.
// floor: a time that the log is known to have reached. ended: nothing follows for now, so decide by the records at hand;
// limit: with `ended`, no later time is believed.
int64_t clock_judge(int64_t* state, int64_t n, const int64_t* ts, const int64_t* user, int64_t max_ahead,
                    int64_t disorder, int64_t floor, int64_t limit, uint8_t ended, int64_t* mark, uint8_t* verdict) {
    Clock clock = *reinterpret_cast<const Clock*>(state);
    const int64_t judged = judge(clock, n, ts, user, max_ahead, disorder, floor, limit, ended, mark, verdict);
    *reinterpret_cast<Clock*>(state) = clock;
    return judged;
}

// Replays n records with their marks and verdicts.
void clock_follow(int64_t* state, int64_t n, const int64_t* ts, const int64_t* user, int64_t max_ahead,
                  const int64_t* mark, const uint8_t* verdict) {
    Clock& clock = *reinterpret_cast<Clock*>(state);
    Remembered some = clock.remembered();
    for (int64_t i = 0; i < n; ++i) {
        if (verdict[i] == kDoubted) clock.mark = std::max(clock.mark, mark[i]);
        if (verdict[i] >= kDoubted) continue;
        if (ts[i] > plus(clock.front, max_ahead)) clock.front = clock.agreed();
        clock.note(some, user[i], ts[i]);
    }
}

}  // extern "C"
