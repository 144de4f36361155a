// Enrich → extract: columns of a request in, its features out.
//
//     columns of the request ─────────────┐
//     keys ─► slots in the look-up tables ─┼─► columns of the plan's roots ─► the compiled feature plan ─► features
//     histories of the user ──────────────┘    1 row that all rows share, and the rows' own
//
// A call does no I/O. Where a look-up row is too old, or histories were not read, it says so; the caller reads them,
// and calls again with what it found. Columns that all candidates share have 1 row.
#include "request/features.hpp"
#include "extract/extract.hpp"
#include "request/lookup.hpp"
#include "request/swap_lock.hpp"
#include "runtime/hash.cuh"

using namespace livectr::request;

namespace {

enum Source : int64_t { COLUMN, LOOKUP, HISTORY };

// Root of the plan: number of a column of the stream, of a look-up and a column of its table, or of a history.
struct Root {
    int64_t source, number, column;
};

// The last `most` items that are at most `within_ms` old.
struct History {
    int64_t most, within_ms;
};

}  // namespace

namespace livectr::request {

struct FeaturePlan {
    std::vector<Spec> columns;                  // of the stream
    std::vector<Root> roots;                    // in the order of the compiled plan
    std::vector<std::vector<int64_t>> lookups;  // columns whose values make the keys
    std::vector<History> histories;
    int64_t user, item;  // columns; -1: none
    std::vector<int32_t> order;
};

// Memory of a call at a time. What it points to lives as long as the call's arguments, or is kept here.
struct FeatureMemory {
    Arena arena;
    std::vector<LookupTable::View> views;
    ArrowArray shared, own;
    livectr::Sharing sharing;
};

Arena& memory_of(const FeatureCall& call) { return call.memory->arena; }

}  // namespace livectr::request

namespace {

class Enriching {
  public:
    explicit Enriching(FeatureCall& call)
        : plan_(*call.plan), memory_(*call.memory), call_(call), arrays_{memory_.arena, nullptr, nullptr} {}

    FeatureOutcome run() {
        Arena& arena = memory_.arena;
        const int64_t columns = int64_t(plan_.columns.size()), lookups = int64_t(plan_.lookups.size());
        found_ = arena.take<const ArrowArray*>(columns);
        own_ = arena.take<uint8_t>(columns);
        for (int64_t c = 0; c < columns; ++c) find_column(c);
        auto* const keys = arena.take<const int64_t*>(lookups);
        auto* const counts = arena.take<int64_t>(lookups);
        auto* const slots = arena.take<const int32_t*>(lookups);
        call_.oldest = HUGE_VAL;
        for (int64_t l = 0; l < lookups; ++l) {
            const int64_t n = counts[l] = rows_of(l);
            keys[l] = lookup_keys(l, n);
            if (call_.slots) {
                slots[l] = call_.slots[l];
            } else {
                auto* const to = arena.take<int32_t>(n);
                table(l).find(keys[l], n, to, nullptr, call_.oldest);
                slots[l] = to;
            }
            memory_.views.push_back(table(l).view());
        }
        call_.keys = keys, call_.key_counts = counts;
        call_.has_user = plan_.user >= 0 && given(call_.context, plan_.user);
        call_.user = plan_.user >= 0 ? keys_of(plan_.user)[0] : 0;
        call_.items = plan_.item >= 0 && given(call_.candidates, plan_.item) ? keys_of(plan_.item) : nullptr;
        if ((!call_.slots && call_.oldest < call_.since) || (!plan_.histories.empty() && !call_.values))
            return MISSING_INPUTS;
        return assemble(slots);
    }

  private:
    const FeaturePlan& plan_;
    FeatureMemory& memory_;
    FeatureCall& call_;
    Arrays arrays_;
    const ArrowArray** found_ = nullptr;  // by column
    uint8_t* own_ = nullptr;              // by column: each row has its own value

    LookupTable& table(int64_t lookup) const { return *static_cast<LookupTable*>(call_.tables[lookup]); }

    const ArrowArray* given(const ArrowArray* const* part, int64_t column) const {
        const int64_t place = call_.places[column];
        return place < 0 ? nullptr : part[place];
    }

    // A time that a request leaves out is the request's time. Another column is the stream's fill, as in training, else
    // null.
    void find_column(int64_t column) {
        const ArrowArray* array = given(call_.candidates, column);
        own_[column] = array || call_.rows == 1;
        if (!array) array = given(call_.context, column);
        if (array && array->length != (own_[column] ? call_.rows : 1)) throw livectr::BadArray();
        found_[column] = array ? array : absent(plan_.columns[size_t(column)]);
    }

    const ArrowArray* absent(const Spec& spec) {
        Validity valid(memory_.arena, 1);
        if (!spec.time && !spec.filled) valid.set_null(0);
        ArrowArray* const array = arrays_.make(1, &valid, 2, spec.listed);
        auto* const words = memory_.arena.take<int64_t>(2);
        words[0] = spec.time ? call_.now_ms : spec.filled ? int64_t(spec.fill) : 0;
        words[1] = 0;
        array->buffers[1] = words;
        if (spec.listed) {
            array->children[0] = arrays_.make(0, nullptr, 3);
            array->children[0]->buffers[1] = array->children[0]->buffers[2] = words;
        } else if (is_text(kind_of(spec.element))) {
            ArrowArray* const text = arrays_.make(1, &valid, 3);
            auto* const ends = memory_.arena.take<int32_t>(2);
            ends[0] = 0, ends[1] = spec.filled ? int32_t(spec.fill_text.size()) : 0;
            text->buffers[1] = ends, text->buffers[2] = spec.fill_text.data();
            return text;
        }
        return array;
    }

    // Keys of a column: integers themselves, bools 0 or 1, hashes of texts; a null counts as 0, false or "".
    const int64_t* keys_of(int64_t column) {
        const ArrowArray& array = *found_[column];
        const Element element = plan_.columns[size_t(column)].element;
        const int64_t n = array.length, first = array.offset;
        const bool nulls = array.null_count != 0 && array.buffers[0];
        if (element == INT64 && !nulls) return livectr::buffer<int64_t>(array, 1) + first;
        auto* const keys = memory_.arena.take<int64_t>(n);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t row = first + i;
            const bool null = nulls && !bit_at(livectr::buffer<uint8_t>(array, 0), row);
            switch (element) {
                case INT64: keys[i] = null ? 0 : livectr::buffer<int64_t>(array, 1)[row]; break;
                case INT32: keys[i] = null ? 0 : livectr::buffer<int32_t>(array, 1)[row]; break;
                case BOOL: keys[i] = !null && bit_at(livectr::buffer<uint8_t>(array, 1), row); break;
                case STRING:
                case BINARY: {
                    const int32_t* const ends = livectr::buffer<int32_t>(array, 1);
                    const int64_t size = null ? 0 : ends[row + 1] - ends[row];
                    keys[i] = int64_t(hash_bytes(livectr::buffer<uint8_t>(array, 2) + ends[row], size));
                    break;
                }
                default: throw livectr::BadArray();
            }
        }
        return keys;
    }

    // Rows of a look-up: 1 if all columns of its keys are shared.
    int64_t rows_of(int64_t lookup) const { return has_own(lookup) ? call_.rows : 1; }

    bool has_own(int64_t lookup) const {
        const auto& columns = plan_.lookups[size_t(lookup)];
        return std::any_of(columns.begin(), columns.end(), [&](int64_t column) { return own_[column] != 0; });
    }

    // Keys of a look-up; those of several columns are combined in their order, as `combine_keys` does.
    const int64_t* lookup_keys(int64_t lookup, int64_t n) {
        const auto& columns = plan_.lookups[size_t(lookup)];
        const int64_t* const first = keys_of(columns[0]);
        if (columns.size() == 1) return first;
        auto* const keys = memory_.arena.take<int64_t>(n);
        for (int64_t i = 0; i < n; ++i) keys[i] = first[own_[columns[0]] ? i : 0];
        for (size_t c = 1; c < columns.size(); ++c) {
            const int64_t* const more = keys_of(columns[c]);
            const bool own = own_[columns[c]] != 0;
            for (int64_t i = 0; i < n; ++i)
                keys[i] = int64_t(hash_combine(uint64_t(keys[i]), uint64_t(more[own ? i : 0])));
        }
        return keys;
    }

    FeatureOutcome assemble(const int32_t* const* slots) {
        const int64_t roots = int64_t(plan_.roots.size());
        auto** const own = memory_.arena.take<ArrowArray*>(roots);
        auto** const shared = memory_.arena.take<ArrowArray*>(roots);
        for (int64_t r = 0; r < roots; ++r) {
            const Root& root = plan_.roots[size_t(r)];
            const ArrowArray* array = nullptr;
            bool is_own = call_.rows == 1;
            if (root.source == COLUMN) {
                array = found_[root.number];
                is_own = own_[root.number];
            } else if (root.source == LOOKUP) {
                const LookupTable::Columns& columns = *memory_.views[size_t(root.number)];
                array = columns[size_t(root.column)].take(slots[root.number], rows_of(root.number), arrays_);
                is_own = has_own(root.number);
            } else if (!(array = recent(root.number))) {
                return BAD_HISTORY;
            }
            own[r] = is_own ? const_cast<ArrowArray*>(array) : nullptr;
            shared[r] = is_own ? nullptr : const_cast<ArrowArray*>(array);
        }
        memory_.own = {call_.rows, 0, 0, 1, roots, nullptr, own, nullptr, nullptr, nullptr};
        memory_.shared = {1, 0, 0, 1, roots, nullptr, shared, nullptr, nullptr, nullptr};
        return EXTRACTED;
    }

    // List of the items of a history, pairs of an item and its time in ms, newest last. Null: it has a piece of a pair.
    const ArrowArray* recent(int64_t number) {
        const History history = plan_.histories[size_t(number)];
        const uint8_t* const value = call_.values[number];
        const int64_t bytes = value ? call_.value_bytes[number] : 0, pairs = bytes / 16;
        if (bytes % 16) return nullptr;
        auto* const items = memory_.arena.take<int64_t>(std::min(pairs, history.most));
        int64_t count = 0;
        for (int64_t i = pairs - 1; i >= 0 && count < history.most; --i) {
            int64_t pair[2];
            std::memcpy(pair, value + 16 * i, 16);
            if (pair[1] <= call_.now_ms && call_.now_ms - pair[1] <= history.within_ms) items[count++] = pair[0];
        }
        std::reverse(items, items + count);
        ArrowArray* const array = arrays_.make(1, nullptr, 2, 1);
        auto* const ends = memory_.arena.take<int32_t>(2);
        ends[0] = 0, ends[1] = int32_t(count);
        array->buffers[1] = ends;
        array->children[0] = arrays_.make(count, nullptr, 2);
        array->children[0]->buffers[1] = items;
        return array;
    }
};

// Extracts the features of what was enriched in the call's memory. Rows without features of their own are alike.
int64_t extract(FeatureCall& call) {
    FeatureMemory& memory = *call.memory;
    Arena& arena = memory.arena;
    const int32_t* const order = call.plan->order.data();
    const int64_t rows = call.own || call.width ? call.rows : 1;
    auto* const dense = arena.take<float>(rows * call.width);
    auto* const failed = arena.take<uint8_t>(rows);
    std::fill_n(failed, rows, uint8_t(0));
    livectr::Sharing& sharing = memory.sharing;
    sharing = {&memory.shared,   order,           call.shares,    call.fields, rows,
               call.most_values, call.most_bytes, call.most_read, 0,           0};
    const int64_t keys =
        call.extract(call.context_of_plan, &memory.own, order, call.states, dense, nullptr, failed, &sharing);
    if (keys < 0) return keys;
    call.dense = dense, call.failed = failed, call.shared_failed = sharing.failed;
    if (sharing.failed || std::count(failed, failed + rows, 0) < rows) return FAILED_ROWS;
    auto* const own_offsets = arena.take<int32_t>(call.own * rows + 1);
    auto* const shared_offsets = arena.take<int32_t>(call.shared + 1);
    auto* const own_keys = arena.take<int64_t>(keys);
    auto* const shared_keys = arena.take<int64_t>(sharing.keys);
    int64_t counters[2];
    call.gather(call.context_of_plan, own_offsets, own_keys, counters, &sharing);
    call.gather_shared(call.context_of_plan, shared_offsets, shared_keys, &sharing);
    call.own_offsets = own_offsets, call.own_keys = own_keys, call.own_count = keys;
    call.shared_offsets = shared_offsets, call.shared_keys = shared_keys, call.shared_count = sharing.keys;
    return EXTRACTED;
}

int64_t answer(FeatureCall& call) {
    call.memory->arena.clear();
    call.memory->views.clear();
    if (const FeatureOutcome outcome = Enriching(call).run()) return outcome;
    call.enriched_at = livectr::SwapLock::seconds();
    const int64_t outcome = extract(call);
    call.memory->views.clear();  // a table that was left is kept by nobody
    call.extracted = outcome == EXTRACTED;
    call.extracted_at = livectr::SwapLock::seconds();
    return outcome;
}

}  // namespace

extern "C" {

// numbers: user and item column, then roots of 3, look-ups (number of columns, columns), histories of 2; sizes: their
// counts.
FeaturePlan* features_new(const int64_t* sizes, const int64_t* numbers) {
    try {
        auto made = std::make_unique<FeaturePlan>();
        made->user = *numbers++, made->item = *numbers++;
        for (int64_t i = 0; i < sizes[0]; ++i, numbers += 3) {
            made->roots.push_back({numbers[0], numbers[1], numbers[2]});
            made->order.push_back(int32_t(i));
        }
        for (int64_t i = 0; i < sizes[1]; ++i) {
            const int64_t count = *numbers++;
            made->lookups.emplace_back(numbers, numbers + count);
            numbers += count;
        }
        for (int64_t i = 0; i < sizes[2]; ++i, numbers += 2) made->histories.push_back({numbers[0], numbers[1]});
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void features_delete(FeaturePlan* plan) { delete plan; }

// Adds a column of the stream.
void features_column(FeaturePlan* plan, const ColumnOptions* options, const char* fill) {
    plan->columns.push_back(Spec::of(*options, fill));
}

FeatureMemory* features_memory_new() { return new (std::nothrow) FeatureMemory; }
void features_memory_delete(FeatureMemory* memory) { delete memory; }

// Takes back the memory of results.
void features_memory_clear(FeatureMemory* memory) { memory->arena.clear(); }

int64_t features_answer(FeatureCall* call) {
    if (call->extracted) return EXTRACTED;
    try {
        call->outcome = answer(*call);
    } catch (const std::bad_alloc&) {
        call->outcome = FULL_MEMORY;
    } catch (const livectr::BadArray&) {
        call->outcome = BAD_COLUMN;
    }
    return call->outcome;
}
}
