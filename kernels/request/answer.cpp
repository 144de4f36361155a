// Plain requests, answered without the interpreter: bytes in, reply out, or the word that Python must answer.
//
//     bytes ─► parse.cpp ─► shape of the request ─► prepared state of the served version ─► score.cpp ──► head + fields
//                               │ none is prepared                                     └─► select.cpp ─┘
//                               │                                                           │ something is not in memory
//                               └──────────────► Python answers, and prepares the shape ◄───┘
//
// The shape of a request is the part that each of its columns is in, and whether it has a single candidate: what is
// shared by all rows, and so the order of the fields, depends on nothing else. Whatever is no plain hit is Python's: a
// mistake, a pinned version that is not served, a side, an explanation, inline content, a row that must be read, and a
// sample whose features are counted.
#include "request/answer.hpp"
#include "request/parse.hpp"
#include "request/score.hpp"
#include "request/select.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <unordered_map>

namespace livectr::request {

// Native memory of the calls of a feature plan's engine, one call at a time each.
struct Slot {
    FeatureMemory* memory = nullptr;
    void* context = nullptr;
    std::vector<int64_t> counts;  // of the probabilities of a reply
};

}  // namespace livectr::request

// Idle slots of an engine.
struct AnswerSlots {
    using Slot = livectr::request::Slot;
    void* (*create)(const void*);
    void (*destroy)(void*);
    const void* words;

    Slot take() {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            if (!idle_.empty()) {
                Slot slot = std::move(idle_.back());
                idle_.pop_back();
                return slot;
            }
        }
        Slot slot;
        if (!(slot.memory = features_memory_new())) throw std::bad_alloc();
        if (!(slot.context = create(words))) {
            features_memory_delete(slot.memory);
            throw std::bad_alloc();
        }
        return slot;
    }

    void give_back(Slot&& slot) {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            if (idle_.size() < idle_.capacity()) return idle_.push_back(std::move(slot));
        }
        free(slot);
    }

    AnswerSlots(void* (*create)(const void*), void (*destroy)(void*), const void* words)
        : create(create), destroy(destroy), words(words) {
        idle_.reserve(MOST);
    }
    ~AnswerSlots() {
        for (Slot& slot : idle_) free(slot);
    }

  private:
    static constexpr size_t MOST = 16;
    std::mutex mutex_;
    std::vector<Slot> idle_;

    void free(Slot& slot) {
        destroy(slot.context);
        features_memory_delete(slot.memory);
    }
};

namespace livectr::request {

// State of a version for requests of a shape, all of 8 bytes; `_Prepared` of answer.py.
struct PreparedWords {
    int64_t number, version, created_ms;
    const Snapshot* snapshot;  // scores candidates; null: `selector` selects items
    const Selector* selector;
    Partials* partials;  // of items; null: none are kept
    AnswerSlots* slots;
    const FeatureCall* features;  // arguments besides those of a request and a slot
    int64_t live;                 // the features have look-up rows
    double ttl_s;                 // of look-up rows
    double ends_at;               // instant from which the partial results are too old
    int64_t most_pairs;
    const int64_t* reply_fields;
    int64_t needs_bids;  // a request without bids is not answered: they are those of its rows
    int64_t width;       // dense numbers of the selector's user
    int64_t most_items;  // that a request may name
    int64_t most_k;      // that it may want
    int64_t every;       // one request of so many is Python's, by `Head::sample`; 0: none
};

// Numbers of what may be gone, for Python to drop.
struct Gone {
    std::mutex mutex;
    std::vector<int64_t> numbers;
};

struct Prepared {
    PreparedWords words;
    FeatureCall features;
    std::string head;            // fields of every reply besides the request's id
    std::vector<int32_t> names;  // of the fields that are looked up, among those that are counted
    std::shared_ptr<Gone> gone;

    Prepared(const PreparedWords& words, std::string head, std::vector<int32_t> names, std::shared_ptr<Gone> gone)
        : words(words),
          features(*words.features),
          head(std::move(head)),
          names(std::move(names)),
          gone(std::move(gone)) {}
    Prepared(const Prepared&) = delete;

    const VersionTables& tables() const {
        return words.snapshot ? tables_of(*words.snapshot) : tables_of(*words.selector);
    }

    ~Prepared() {
        std::lock_guard<std::mutex> hold(gone->mutex);
        gone->numbers.push_back(words.number);
    }
};

struct Histogram {
    std::vector<double> bounds;
    std::vector<int64_t> counts;
    double sum = 0;

    void add(double value) {
        ++counts[size_t(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
        sum += value;
    }
};

// Histograms of requests; `HISTOGRAMS` of answer.py.
enum Observed : int64_t {
    WAIT,
    PARSE,
    ENRICH,
    EXTRACT,
    LOOK_UP,
    SCORE,
    RESPOND,
    REQUEST,
    LIVE_AGE,
    LIVE_SKEW,
    PCTR,
    HISTOGRAMS
};

// Counts of requests; `COUNTS` of answer.py.
enum Counted : int64_t { REQUESTS, ROWS, KEPT, UNIQUE, COUNTS };

struct Answers {
    static constexpr int64_t LOOKS = 61;  // one look-up of so many is counted, as of the near-cache's

    const RequestParser* parser;
    int64_t columns;
    std::shared_ptr<Gone> gone = std::make_shared<Gone>();
    std::mutex mutex;  // of `prepared`
    std::unordered_map<std::string, std::shared_ptr<const Prepared>> prepared;
    std::mutex totals;  // of what follows
    std::vector<Histogram> histograms;
    int64_t counts[COUNTS] = {};
    std::vector<int64_t> keys, fresh;  // by field
    std::atomic<int64_t> looks{0};

    std::shared_ptr<const Prepared> find(const std::string& shape) {
        std::lock_guard<std::mutex> hold(mutex);
        const auto found = prepared.find(shape);
        return found == prepared.end() ? nullptr : found->second;
    }
};

namespace {

struct DropRequest {
    void operator()(Lent* lent) const { drop(lent); }
};

// Reply that was given out.
struct Held {
    std::shared_ptr<const Prepared> prepared;
    Slot slot;

    ~Held() { prepared->words.slots->give_back(std::move(slot)); }
};

int64_t varint_bytes(uint64_t value) {
    int64_t bytes = 1;
    while (value >>= 7) ++bytes;
    return bytes;
}

uint8_t* write_varint(uint8_t* to, uint64_t value) {
    for (; value >= 128; value >>= 7) *to++ = uint8_t(value | 128);
    *to++ = uint8_t(value);
    return to;
}

// Shape of a request: the part of each column, and whether it has a single candidate.
std::string shape_of(const uint8_t* parts, int64_t columns, bool single) {
    std::string shape(reinterpret_cast<const char*>(parts), size_t(columns));
    shape.push_back(char(single));
    return shape;
}

class Answering {
  public:
    Answering(Answers& answers, const uint8_t* data, int64_t bytes, double deadline, double began, double placed)
        : answers_(answers), data_(data), bytes_(bytes), deadline_(deadline), began_(began), placed_(placed) {}

    bool run(Answered& out) {
        uint8_t parts[256];
        if (answers_.columns > int64_t(sizeof(parts))) return false;
        request_parse(answers_.parser, data_, bytes_, &head_, parts);
        const std::unique_ptr<Lent, DropRequest> lent(head_.memory);
        if (head_.code || head_.side_size || head_.explain || head_.contents) return false;
        auto prepared = answers_.find(shape_of(parts, answers_.columns, head_.size == 1));
        if (!prepared || (head_.version && head_.version != uint64_t(prepared->words.version))) return false;
        if (prepared->words.needs_bids && !head_.bids_size) return false;
        if (prepared->words.every && head_.sample % uint64_t(prepared->words.every) == 0) return false;
        parsed_at_ = SwapLock::seconds();
        if (parsed_at_ >= prepared->words.ends_at) return false;
        auto held = std::make_unique<Held>();
        held->slot = prepared->words.slots->take();
        held->prepared = std::move(prepared);
        enrich(*held);
        if (!(held->prepared->words.snapshot ? score(*held) : select(*held))) return false;
        out.data = reply(*held, out.bytes);
        const double end = SwapLock::seconds();
        if (end >= deadline_) return false;
        observe(*held, end);
        out.held = held.release();
        return true;
    }

  private:
    Answers& answers_;
    const uint8_t* const data_;
    const int64_t bytes_;
    const double deadline_, began_, placed_;
    Head head_;
    double parsed_at_ = 0;
    FeatureCall features_;
    // Results.
    const uint8_t* fields_ = nullptr;
    int64_t of_fields_ = 0, rows_ = 0;
    double looked_up_at_ = 0, scored_at_ = 0, total_ = 0;

    // Makes the arguments of the features' call.
    void enrich(const Held& held) {
        const Prepared& prepared = *held.prepared;
        features_ = prepared.features;
        features_.memory = held.slot.memory;
        features_.context_of_plan = held.slot.context;
        features_.context = head_.context_columns, features_.candidates = head_.candidate_columns;
        features_.rows = head_.size, features_.now_ms = head_.timed ? head_.time : now_ms();
        features_.since = parsed_at_ - prepared.words.ttl_s;
    }

    bool score(Held& held) {
        const PreparedWords& words = held.prepared->words;
        const Histogram& pctr = answers_.histograms[PCTR];
        held.slot.counts.resize(pctr.counts.size());
        Scoring call{};
        call.features = &features_;
        call.deadline = deadline_;
        call.partials = words.partials;
        call.most_pairs = words.most_pairs;
        call.bids = head_.bids;
        call.reply_fields = words.reply_fields;
        call.bounds = pctr.bounds.data(), call.bounds_count = int64_t(pctr.bounds.size());
        call.counts = held.slot.counts.data();
        if (snapshot_score(words.snapshot, &call) != DONE) return false;
        fields_ = call.out, of_fields_ = call.bytes, rows_ = head_.size;
        looked_up_at_ = call.looked_up_at, scored_at_ = call.scored_at, total_ = call.total;
        return true;
    }

    bool select(const Held& held) {
        const PreparedWords& words = held.prepared->words;
        const bool named = head_.items_kind != NONE;
        if (named && (head_.items_kind != INTS || head_.items_size < 1 || head_.items_size > words.most_items))
            return false;
        if (head_.top_k < 1 || head_.top_k > words.most_k) return false;
        // The memory of the features has the results, too.
        if (features_answer(&features_) != EXTRACTED) return false;
        const SelectorItems items = items_of(*words.selector);
        rows_ = named ? head_.items_size : items.count;
        const int64_t most = std::min(head_.top_k, rows_);
        Arena& arena = memory_of(features_);
        Selection call{};
        call.features = &features_;
        call.width = words.width;
        call.deadline = deadline_;
        call.k = head_.top_k;
        call.reply_fields = words.reply_fields;
        if (named) {
            call.candidates = buffer<int64_t>(*head_.items, 1) + head_.items->offset, call.asked = rows_;
            call.rows = arena.take<uint32_t>(rows_);
        }
        if (head_.bids_size) call.worths.bids = head_.bids;
        call.positions = arena.take<int64_t>(most), call.ids = arena.take<int64_t>(most);
        call.scores = arena.take<float>(most);
        if (items.valued || head_.bids_size) call.values = arena.take<float>(most);
        call.out = arena.take<uint8_t>(room_for(most));
        if (selector_select(words.selector, &call) != DONE) return false;
        fields_ = call.out, of_fields_ = call.bytes;
        looked_up_at_ = call.looked_up_at, scored_at_ = call.scored_at;
        return true;
    }

    const uint8_t* reply(const Held& held, int64_t& bytes) {
        const std::string& head = held.prepared->head;
        const int64_t id = head_.id_size, of_id = id ? 1 + varint_bytes(uint64_t(id)) + id : 0;
        bytes = of_id + int64_t(head.size()) + of_fields_;
        auto* const out = memory_of(features_).take<uint8_t>(bytes);
        uint8_t* to = out;
        if (id) {
            *to++ = 1 << 3 | protobuf::LENGTH;
            to = write_varint(to, uint64_t(id));
            to = std::copy_n(data_ + head_.id_at, id, to);
        }
        to = std::copy_n(reinterpret_cast<const uint8_t*>(head.data()), head.size(), to);
        std::copy_n(fields_, of_fields_, to);
        return out;
    }

    void observe(const Held& held, double end) {
        const Prepared& prepared = *held.prepared;
        const double ends[] = {placed_,    parsed_at_, features_.enriched_at, features_.extracted_at, looked_up_at_,
                               scored_at_, end};
        const int64_t fields = int64_t(prepared.names.size());
        int64_t unique = -1, *keys = nullptr, *fresh = nullptr;
        if (answers_.looks++ % Answers::LOOKS == 0) {
            keys = memory_of(features_).take<int64_t>(fields);
            fresh = memory_of(features_).take<int64_t>(fields);
            unique = prepared.tables().census(features_, keys, fresh);
        }
        std::lock_guard<std::mutex> hold(answers_.totals);
        auto& histograms = answers_.histograms;
        double since = began_;
        for (int64_t stage = WAIT; stage <= RESPOND; ++stage) {
            histograms[stage].add(ends[stage] - since);
            since = ends[stage];
        }
        histograms[REQUEST].add(end - began_);
        if (prepared.words.live) {
            const double age_s = end - std::min(features_.oldest, parsed_at_);
            histograms[LIVE_AGE].add(age_s);
            histograms[LIVE_SKEW].add(
                std::max(0.0, double(now_ms()) / 1000 - age_s - prepared.words.created_ms / 1000.0));
        }
        if (prepared.words.snapshot) {
            Histogram& pctr = histograms[PCTR];
            for (size_t i = 0; i < pctr.counts.size(); ++i) pctr.counts[i] += held.slot.counts[i];
            pctr.sum += total_;
        }
        ++answers_.counts[REQUESTS];
        answers_.counts[ROWS] += rows_;
        if (prepared.words.partials) answers_.counts[KEPT] += rows_;
        if (unique >= 0) {
            answers_.counts[UNIQUE] += unique;
            for (int64_t f = 0; f < fields; ++f) {
                answers_.keys[size_t(prepared.names[size_t(f)])] += keys[f];
                answers_.fresh[size_t(prepared.names[size_t(f)])] += fresh[f];
            }
        }
    }

    static int64_t now_ms() {
        using namespace std::chrono;
        return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
    }
};

}  // namespace
}  // namespace livectr::request

using livectr::request::Answers;
using livectr::request::Prepared;

extern "C" {

AnswerSlots* answers_slots_new(void* (*create)(const void*), void (*destroy)(void*), const void* words) {
    return new (std::nothrow) AnswerSlots(create, destroy, words);
}
void answers_slots_delete(AnswerSlots* slots) { delete slots; }

// sizes: columns of the parser, fields that are counted, then the bounds of each histogram, which follow each other.
Answers* answers_new(const RequestParser* parser, const int64_t* sizes, const double* bounds) {
    using namespace livectr::request;
    try {
        auto made = std::make_unique<Answers>();
        made->parser = parser, made->columns = sizes[0];
        made->keys.resize(size_t(sizes[1])), made->fresh.resize(size_t(sizes[1]));
        for (int64_t h = 0; h < HISTOGRAMS; ++h) {
            const size_t count = size_t(sizes[2 + h]);
            made->histograms.push_back({{bounds, bounds + count}, std::vector<int64_t>(count + 1)});
            bounds += count;
        }
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void answers_delete(Answers* answers) { delete answers; }

// Prepares a shape of requests; names: of the fields that are looked up. Returns false without memory.
bool answers_prepare(Answers* answers, const uint8_t* parts, bool single, const livectr::request::PreparedWords* words,
                     const uint8_t* head, int64_t head_bytes, const int32_t* names, int64_t fields) {
    try {
        auto made =
            std::make_shared<Prepared>(*words, std::string(reinterpret_cast<const char*>(head), size_t(head_bytes)),
                                       std::vector<int32_t>(names, names + fields), answers->gone);
        const std::string shape = livectr::request::shape_of(parts, answers->columns, single);
        std::shared_ptr<const Prepared> before;  // goes without the lock
        std::lock_guard<std::mutex> hold(answers->mutex);
        before = std::exchange(answers->prepared[shape], std::move(made));
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Forgets all shapes. Those that answer a request end with it.
void answers_clear(Answers* answers) {
    decltype(answers->prepared) before;
    std::lock_guard<std::mutex> hold(answers->mutex);
    before.swap(answers->prepared);
}

// Numbers of prepared shapes that nothing uses any more, at most `most` of them. Returns how many.
int64_t answers_gone(Answers* answers, int64_t* out, int64_t most) {
    auto& gone = *answers->gone;
    std::lock_guard<std::mutex> hold(gone.mutex);
    const int64_t count = std::min(most, int64_t(gone.numbers.size()));
    std::copy_n(gone.numbers.end() - count, count, out);
    gone.numbers.resize(gone.numbers.size() - size_t(count));
    return count;
}

// Takes what was counted since the last call. words: COUNTS, keys and fresh by field, counts of each histogram; sums: of
// each histogram.
void answers_take(Answers* answers, int64_t* words, double* sums) {
    std::lock_guard<std::mutex> hold(answers->totals);
    const auto take = [&](int64_t* values, size_t count) {
        words = std::copy_n(values, count, words);
        std::fill_n(values, count, 0);
    };
    take(answers->counts, std::size(answers->counts));
    take(answers->keys.data(), answers->keys.size());
    take(answers->fresh.data(), answers->fresh.size());
    for (auto& histogram : answers->histograms) {
        take(histogram.counts.data(), histogram.counts.size());
        *sums++ = std::exchange(histogram.sum, 0);
    }
}

bool answers_answer(Answers* answers, const uint8_t* data, int64_t bytes, double deadline, double began, double placed,
                    livectr::request::Answered* out) {
    try {
        return livectr::request::Answering(*answers, data, bytes, deadline, began, placed).run(*out);
    } catch (const std::bad_alloc&) {
        return false;
    }
}
void answers_release(livectr::request::Answered* answered) {
    delete static_cast<livectr::request::Held*>(answered->held);
}
}
