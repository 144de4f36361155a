// Calls of kernels/request/lookup.py.
#include "request/lookup.hpp"

#include "request/memory.hpp"

using namespace livectr::request;

namespace {

enum Outcome : int64_t { DONE, NO_MEMORY = -1, BAD_ROWS = -2 };

template <typename Do>
int64_t outcome_of(Do work) {
    try {
        work();
        return DONE;
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (const livectr::BadArray&) {
        return BAD_ROWS;
    }
}

}  // namespace

extern "C" {

// columns[count, 2]: Element of each column, and 1 for lists. Returns null without memory.
LookupTable* lookup_new(const int64_t* columns, int64_t count) {
    try {
        auto made = std::make_unique<LookupTable>();
        for (int64_t i = 0; i < count; ++i)
            made->add_column(static_cast<Element>(columns[2 * i]), columns[2 * i + 1] != 0);
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void lookup_delete(LookupTable* table) { delete table; }

void lookup_find(LookupTable* table, const int64_t* keys, int64_t n, int32_t* slots, double* read_at) {
    double oldest = 0;
    table->find(keys, n, slots, read_at, oldest);
}
int64_t lookup_add(LookupTable* table, const int64_t* keys, int64_t n, const ArrowArray* rows, double now) {
    return outcome_of([&] { table->add(keys, n, *rows, now); });
}
void lookup_touch(LookupTable* table, const int32_t* slots, int64_t n, double now) { table->touch(slots, n, now); }
void lookup_expire(LookupTable* table, const int64_t* keys, int64_t n) { table->expire(keys, n); }
void lookup_sizes(LookupTable* table, int64_t* sizes) {
    const auto found = table->sizes();
    std::copy(found.begin(), found.end(), sizes);
}

// slots: room for `most` and one more. Returns null without memory.
LookupTable* lookup_moved(LookupTable* table, int32_t* slots, int64_t most) {
    try {
        return table->moved(slots, most).release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Hands over the values of a column at n slots.
int64_t lookup_take(LookupTable* table, int64_t column, const int32_t* slots, int64_t n, ArrowArray** out) {
    static const auto* const pool = new std::shared_ptr<ArenaPool>(std::make_shared<ArenaPool>());
    return outcome_of([&] {
        const LookupTable::View columns = table->view();
        if (uint64_t(column) >= columns->size()) throw livectr::BadArray();
        std::unique_ptr<Lent> lent = ArenaPool::lend(*pool);
        Arrays arrays{lent->arena, release, lent.get()};
        auto* const own = lent->arena.take<int32_t>(n);
        std::copy_n(slots, n, own);
        lent->kept.push_back(columns);
        *out = (*columns)[size_t(column)].take(own, n, arrays);
        hand_over(**out);
        drop(lent.release());
    });
}
}
