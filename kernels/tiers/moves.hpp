// Moves of rows between tables and a store below them, for all tables of a rank in a call. Segment s of a list is
// [bounds[s], bounds[s + 1]) and belongs to tables[s]; the tables are distinct and of one layout, and threads share them.
// A packed row: float[STRIDE], then stamp and count, uint32 each: STRIDE + 2 = PACKED words.
#pragma once
#include "table/table.hpp"
#ifdef LIVECTR_HOST

namespace {

constexpr int64_t ROWS_AHEAD = 8;

// Calls move(table, begin, end) for each segment.
template <typename Move>
int64_t each_segment(Table* const* tables, int64_t count, const int64_t* bounds, Move&& move) {
    return guarded([&] {
        livectr::parallel_for(count, [&](int64_t s) {
            if (bounds[s] < bounds[s + 1]) move(*tables[s], bounds[s], bounds[s + 1]);
        });
        return bounds[count];
    });
}

// Calls visit(table, row, stamp) for each row in use of all tables, in order.
template <typename Visit>
void each_stamp(Table* const* tables, int64_t count, Visit&& visit) {
    for (int64_t t = 0; t < count; ++t) {
        const Usage& usage = tables[t]->usage();
        const uint32_t rows = tables[t]->end();
        for (uint32_t row = 0; row < rows; ++row) {
            const uint32_t stamp = usage.stamp(row);
            if (stamp != Usage::GONE) visit(t, row, stamp);
        }
    }
}

}  // namespace

extern "C" {

// rows[n]; missing keys: NO_ROW
int64_t moves_find(Table* const* tables, int64_t count, const int64_t* bounds, const int64_t* keys, uint32_t* rows) {
    return each_segment(tables, count, bounds, [&](const Table& table, int64_t begin, int64_t end) {
        find_rows(table.index(), keys + begin, end - begin, rows + begin);
    });
}

// Puts packed[n, PACKED] rows of missing keys into the tables, not as changes.
int64_t moves_promote(Table* const* tables, int64_t count, const int64_t* bounds, const int64_t* keys,
                      const uint32_t* packed) {
    return each_segment(tables, count, bounds, [&](Table& table, int64_t begin, int64_t end) {
        const int64_t stride = table.layout().stride();
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t* const row = packed + i * (stride + 2);
            table.restore(keys + i, 1, reinterpret_cast<const float*>(row));
            table.usage().set(find_row(table.index(), keys[i]), row[stride], row[stride + 1]);
        }
    });
}

// Hides rows[n] from `moves_coldest` until `moves_show` puts the stamps back; NO_ROW is skipped.
int64_t moves_hide(Table* const* tables, int64_t count, const int64_t* bounds, const uint32_t* rows, uint32_t* stamps) {
    return each_segment(tables, count, bounds, [&](Table& table, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (rows[i] >= table.end()) continue;
            stamps[i] = table.usage().stamp(rows[i]);
            table.usage().set(rows[i], Usage::GONE, table.usage().count(rows[i]));
        }
    });
}
int64_t moves_show(Table* const* tables, int64_t count, const int64_t* bounds, const uint32_t* rows,
                   const uint32_t* stamps) {
    return each_segment(tables, count, bounds, [&](Table& table, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (rows[i] < table.end()) table.usage().set(rows[i], stamps[i], table.usage().count(rows[i]));
        }
    });
}

// rows[wanted] and bounds[count + 1]: the least recently used rows of all tables, table by table, in the order of their
// numbers. Equal stamps: the first. Returns their number. Two passes find the last stamp, 16 bits each; a third collects.
int64_t moves_coldest(Table* const* tables, int64_t count, int64_t wanted, int64_t* bounds, uint32_t* rows) {
    return guarded([&] {
        int64_t left = wanted;
        uint64_t last = 0;  // leading bits of the last chosen stamp
        for (int shift = 16; shift >= 0; shift -= 16) {
            std::vector<int64_t> histogram(1 << 16);
            each_stamp(tables, count, [&](int64_t, uint32_t, uint32_t stamp) {
                if (shift == 16 || stamp >> 16 == last) ++histogram[stamp >> shift & 0xFFFF];
            });
            uint64_t digit = 0;
            for (; digit < 0xFFFF && left > histogram[digit]; ++digit) left -= histogram[digit];
            last = last << 16 | digit;
        }
        int64_t chosen = 0;
        std::fill_n(bounds, count + 1, 0);
        each_stamp(tables, count, [&](int64_t t, uint32_t row, uint32_t stamp) {
            if (stamp > last || (stamp == last && left-- <= 0)) return;
            if (chosen == wanted) return;
            rows[chosen++] = row;
            ++bounds[t + 1];
        });
        for (int64_t t = 0; t < count; ++t) bounds[t + 1] += bounds[t];
        return chosen;
    });
}

// Takes rows[n] out of the tables, not as changes: keys[n], generations[n] of their last changes (0: none since they
// were promoted) and packed[n, PACKED].
int64_t moves_evict(Table* const* tables, int64_t count, const int64_t* bounds, const uint32_t* rows, int64_t* keys,
                    uint32_t* generations, uint32_t* packed) {
    return each_segment(tables, count, bounds, [&](Table& table, int64_t begin, int64_t end) {
        const RowsView view = table.rows();
        const int64_t stride = table.layout().stride();
        const Prefetch prefetch = table.prefetch_rows();
        for (int64_t i = begin; i < end; ++i) {
            if (i + ROWS_AHEAD < end) prefetch(rows[i + ROWS_AHEAD]);
            keys[i] = row_header(view, rows[i])->key;
            generations[i] = table.changed_in(rows[i]);
            uint32_t* const row = packed + i * (stride + 2);
            table.layout().copy(stored_row(view, rows[i]), reinterpret_cast<float*>(row), true);
            row[stride] = table.usage().stamp(rows[i]);
            row[stride + 1] = table.usage().count(rows[i]);
            table.erase(keys[i], false);
        }
    });
}

// member[n]: asked[i] is one of given[m].
int64_t moves_is_one_of(const int64_t* given, int64_t m, const int64_t* asked, int64_t n, uint8_t* member) {
    return guarded([&] {
        int bits = 4;
        while (int64_t{1} << bits < 2 * m) ++bits;
        const uint64_t mask = (uint64_t{1} << bits) - 1;
        std::vector<int64_t> places(mask + 1);
        std::vector<bool> used(mask + 1);
        const auto place_of = [&](int64_t key) {
            uint64_t at = mix64(key) & mask;
            while (used[at] && places[at] != key) at = (at + 1) & mask;
            return at;
        };
        for (int64_t i = 0; i < m; ++i) {
            const uint64_t at = place_of(given[i]);
            places[at] = given[i];
            used[at] = true;
        }
        for (int64_t i = 0; i < n; ++i) member[i] = used[place_of(asked[i])];
        return n;
    });
}

}  // extern "C"

#endif
