// The C functions that kernels/table/table.py calls. Results: a count, or one of the negative codes.
// Functions that change a table must not run beside any other call on it; the others may.
#pragma once
#include "table/usage_api.hpp"
#ifdef LIVECTR_HOST

namespace {

void find_all(const Table& table, const int64_t* keys, int64_t n, uint32_t* rows) {
    livectr::parallel_chunks(n, 16 * GRAIN, [&](int64_t begin, int64_t end) {
        find_rows(table.index(), keys + begin, end - begin, rows + begin);
    });
}

// Rows of n keys, inserted where missing, as a batch with cells 0 ... n - 1.
Batch batch_of(Table& table, const int64_t* keys, int64_t n) {
    std::vector<uint32_t> number(n);
    Batch batch;
    batch.begin(n);
    batch.add(keys, n, number.data());
    batch.group(n);
    for (int64_t i = 0; i < n; ++i) batch.put(number[i], i);
    batch.find(table);
    batch.insert(table);
    batch.prepare();
    return batch;
}

}  // namespace

extern "C" {

// description: see RowLayout; hyper[segments, HYPERS]
Table* table_new(const int64_t* description, int64_t segments, uint64_t seed, const float* hyper) {
    try {
        return new Table(RowLayout(description, segments), seed, hyper, segments * RowLayout::HYPERS);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void table_delete(Table* table) { delete table; }
int64_t table_size(const Table* table) { return table->size(); }
int64_t table_bytes(const Table* table) { return table->bytes(); }
int64_t table_listed(const Table* table) { return table->listed(); }
void table_hyper(Table* table, const float* hyper) { table->hyper(hyper); }  // of table_new's length
int64_t table_mark(Table* table) {
    return guarded([&] { return table->mark(); });
}
void table_forget(Table* table, uint32_t mark) { table->forget(mark); }
int64_t table_compact(Table* table) {
    return guarded([&] { return table->compact(), 0; });
}
int64_t table_clear(Table* table) {
    return guarded([&] { return table->clear(), 0; });
}

// rows[n]; missing keys: NO_ROW
int64_t table_find(const Table* table, const int64_t* keys, int64_t n, uint32_t* rows) {
    return guarded([&] { return find_all(*table, keys, n, rows), n; });
}

// rows[n]; missing keys are inserted
int64_t table_insert(Table* table, const int64_t* keys, int64_t n, uint32_t* rows) {
    return guarded([&] {
        find_all(*table, keys, n, rows);
        table->insert_missing(keys, rows, n);
        if (table->usage().on()) batch_of(*table, keys, n).use(*table);
        return n;
    });
}

// out[n, D]
int64_t table_lookup(const Table* table, const int64_t* keys, int64_t n, int32_t zeros, float* out) {
    constexpr int64_t PART = GRAIN;
    return guarded([&] {
        livectr::parallel_chunks(n, 8 * PART, [&](int64_t begin, int64_t end) {
            uint32_t rows[PART];
            for (int64_t at = begin; at < end; at += PART) {
                const int64_t size = std::min(PART, end - at);
                find_rows(table->index(), keys + at, size, rows);
                copy_values(*table, keys + at, rows, size, zeros, out + at * table->layout().dim());
            }
        });
        return n;
    });
}

// grads[n, D]; returns the number of unique keys
int64_t table_update(Table* table, const int64_t* keys, int64_t n, const float* grads) {
    return guarded([&] {
        Batch batch = batch_of(*table, keys, n);
        batch.use(*table);
        livectr::parallel_for(batch.chunks(), [&](int64_t c) { batch.apply(*table, grads, c); });
        batch.finish(*table);
        return batch.size();
    });
}

// source[n, STRIDE]; of equal keys the last counts
int64_t table_assign(Table* table, const int64_t* keys, int64_t n, const float* source) {
    return guarded([&] {
        Batch batch = batch_of(*table, keys, n);
        livectr::parallel_for(batch.chunks(), [&](int64_t c) { batch.assign(*table, source, c); });
        batch.finish(*table);
        return batch.size();
    });
}

// source[n, STRIDE]; a key that exists keeps its row
int64_t table_restore(Table* table, const int64_t* keys, int64_t n, const float* source) {
    return guarded([&] { return table->restore(keys, n, source), n; });
}

// returns the number of keys that existed
int64_t table_erase(Table* table, const int64_t* keys, int64_t n, int32_t announce) {
    return guarded([&] {
        int64_t erased = 0;
        for (int64_t i = 0; i < n; ++i) erased += table->erase(keys[i], announce);
        return erased;
    });
}

// A bound of the number of rows changed after mark `since`, or FORGOTTEN.
int64_t table_most_changed(const Table* table, uint32_t since) { return table->most_changed(since); }

// Rows changed after mark `since`, and their keys: into out[table_most_changed()].
int64_t table_changed(const Table* table, uint32_t since, uint32_t* out) {
    return guarded([&] { return table->each_changed(since, out, [](const RowsView&, uint32_t row) { return row; }); });
}
int64_t table_changed_keys(const Table* table, uint32_t since, int64_t* out) {
    const auto key = [](const RowsView& view, uint32_t row) { return row_header(view, row)->key; };
    return guarded([&] { return table->each_changed(since, out, key); });
}

uint32_t table_end(const Table* table) { return table->end(); }

// Rows in use with numbers in [begin, end), at most end - begin.
int64_t table_in_use(const Table* table, uint32_t begin, uint32_t end, uint32_t* rows) {
    int64_t count = 0;
    table->each_in_use(begin, end, [&](uint32_t row) { rows[count++] = row; });
    return count;
}

// generations[n]: of the last change of each row; 0: none since it was restored
int64_t table_generations(const Table* table, const uint32_t* rows, int64_t n, uint32_t* generations) {
    for (int64_t i = 0; i < n; ++i) generations[i] = table->changed_in(rows[i]);
    return n;
}

// keys[n] and the first `width` floats of each row, D or STRIDE: out[n, width]
int64_t table_read(const Table* table, const uint32_t* rows, int64_t n, int64_t width, int64_t* keys, float* out) {
    return guarded([&] {
        const RowsView view = table->rows();
        const RowLayout& layout = table->layout();
        const Prefetch prefetch = table->prefetch_rows();
        livectr::parallel_chunks(n, 4 * GRAIN, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (i + Batch::AHEAD < end) prefetch(rows[i + Batch::AHEAD]);
                keys[i] = row_header(view, rows[i])->key;
                layout.copy(stored_row(view, rows[i]), out + i * width, width > layout.dim());
            }
        });
        return n;
    });
}

Fields* fields_new(Table* const* tables, int64_t count, const int32_t* table_of, int64_t fields) {
    return new Fields(tables, count, table_of, fields);
}
void fields_delete(Fields* fields) { delete fields; }

// block_of[F], rows[blocks]: see Shape. out: the blocks' results, one after the other
int64_t fields_forward(Fields* fields, const int32_t* offsets, const int64_t* keys, int64_t nnz,
                       const int32_t* block_of, int64_t blocks, const int64_t* rows, float* out) {
    const Shape shape(fields->fields(), block_of, blocks, rows);
    if (!shape.valid(offsets, nnz)) return BAD_OFFSETS;
    return guarded([&] { return fields->forward(shape, offsets, keys, out), nnz; });
}

int64_t fields_backward(Fields* fields, const float* grad) {
    return guarded([&] { return fields->backward(grad); });
}

// See Fields::read_segment and write_segment.
void fields_read_segment(const Fields* fields, const int64_t* bounds, const int64_t* keys, int64_t at, int64_t dim,
                         int64_t state, int64_t floats, uint32_t* rows, float* out) {
    fields->read_segment(bounds, keys, at, dim, state, floats, rows, out);
}
void fields_write_segment(Fields* fields, const int64_t* bounds, const uint32_t* rows, int64_t at, int64_t dim,
                          int64_t state, int64_t floats, const float* given) {
    fields->write_segment(bounds, rows, at, dim, state, floats, given);
}

int64_t fields_infer(const Fields* fields, const int32_t* offsets, const int64_t* keys, int64_t nnz,
                     const int32_t* block_of, int64_t blocks, const int64_t* rows, int32_t zeros, float* out) {
    const Shape shape(fields->fields(), block_of, blocks, rows);
    if (!shape.valid(offsets, nnz)) return BAD_OFFSETS;
    return guarded([&] { return fields->infer(shape, offsets, keys, zeros, out); });
}

// See Fields::census.
int64_t fields_census(const Fields* fields, const int64_t* ends, int64_t count, const int64_t* keys, int64_t* fresh) {
    return guarded([&] { return fields->census(ends, count, keys, fresh); });
}

}  // extern "C"

#endif
