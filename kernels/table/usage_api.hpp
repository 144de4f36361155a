// The C functions behind kernels/table/usage.py: see table/table_api.hpp for results and threads. Lists are written to arrays
// that have room for what the call without them (nullptr) returned.
#pragma once
#include "table/fields.hpp"
#ifdef LIVECTR_HOST

namespace {

int64_t give_keys(const Table& table, const std::vector<uint32_t>& rows, int64_t* keys) {
    const RowsView view = table.rows();
    for (size_t i = 0; i < rows.size(); ++i) {
        if (i + Batch::AHEAD < rows.size()) prefetch(row_header(view, rows[i + Batch::AHEAD]));
        keys[i] = row_header(view, rows[i])->key;
    }
    return rows.size();
}

template <int DIGITS, typename Score>
int64_t lowest_keys(const Table& table, int64_t count, int64_t* keys, Score&& score) {
    const RowsView view = table.rows();
    const auto key_of = [&](uint32_t row) { return row_header(view, row)->key; };
    const int64_t most = std::min(count, table.size());
    return give_keys(table, table.usage().lowest<DIGITS>(most, table.row_numbers(), score, key_of), keys);
}

}  // namespace

extern "C" {

int64_t table_row_bytes(const Table* table) { return table->row_bytes(); }

void table_track(Table* table, uint32_t half_life) { table->usage().start(half_life); }
void table_now(Table* table, uint32_t stamp) { table->usage().move_to(stamp); }

// keys[min(count, size)]
int64_t table_oldest(const Table* table, int64_t count, int64_t* keys) {
    const Usage& usage = table->usage();
    return guarded([&] { return lowest_keys<2>(*table, count, keys, [&](uint32_t row) { return usage.age(row); }); });
}

int64_t table_rarest(const Table* table, int64_t count, int64_t* keys) {
    const Usage& usage = table->usage();
    return guarded(
        [&] { return lowest_keys<4>(*table, count, keys, [&](uint32_t row) { return usage.rarity(row); }); });
}

int64_t table_older_than(const Table* table, uint32_t stamp, int64_t* keys) {
    return guarded([&] {
        const std::vector<uint32_t> rows = table->usage().older_than(stamp, table->row_numbers());
        return keys ? give_keys(*table, rows, keys) : static_cast<int64_t>(rows.size());
    });
}

// stamps[n], counts[n]; of a missing key 0
int64_t table_usage(const Table* table, const int64_t* keys, int64_t n, uint32_t* stamps, uint32_t* counts) {
    return guarded([&] {
        std::vector<uint32_t> rows(n);
        find_rows(table->index(), keys, n, rows.data());
        for (int64_t i = 0; i < n; ++i) {
            stamps[i] = rows[i] == NO_ROW ? 0 : table->usage().stamp(rows[i]);
            counts[i] = rows[i] == NO_ROW ? 0 : table->usage().count(rows[i]);
        }
        return n;
    });
}

// Sets the usage of existing rows; missing keys are skipped. Returns the number of rows set.
int64_t table_set_usage(Table* table, const int64_t* keys, int64_t n, const uint32_t* stamps, const uint32_t* counts) {
    return guarded([&] {
        std::vector<uint32_t> rows(n);
        find_rows(table->index(), keys, n, rows.data());
        for (int64_t i = 0; i < n; ++i) {
            if (rows[i] != NO_ROW) table->usage().set(rows[i], stamps[i], counts[i]);
        }
        return n - std::count(rows.begin(), rows.end(), NO_ROW);
    });
}

int64_t table_admit(Table* table, uint32_t after, int64_t width) {
    return guarded([&] { return table->admission().start(after, width, mix64(table->seed() ^ 2)), 0; });
}

// numbers[3]: sightings since the last halving; keys that entered; sightings of keys that did not
void table_admission(Table* table, int64_t* numbers) {
    const Admission& admission = table->admission();
    numbers[0] = admission.seen;
    numbers[1] = admission.admitted;
    numbers[2] = admission.refused;
}

// cells[4, width], read from or written to the sketch; `seen` belongs to them
void table_sketch(Table* table, uint8_t* cells) {
    memcpy(cells, table->admission().cells(), table->admission().bytes());
}
void table_set_sketch(Table* table, const uint8_t* cells, int64_t seen) {
    memcpy(table->admission().cells(), cells, table->admission().bytes());
    table->admission().seen = seen;
}

// Keys erased after mark `since` that do not exist now, each once, in rising order; without `keys` an upper bound.
int64_t table_erased(const Table* table, uint32_t since, int64_t* keys) {
    return guarded([&]() -> int64_t {
        if (!keys) return table->most_erased(since);
        const std::vector<int64_t> gone = table->erased(since);
        std::copy(gone.begin(), gone.end(), keys);
        return gone.size();
    });
}

}  // extern "C"

#endif
