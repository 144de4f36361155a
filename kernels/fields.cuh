// The embedding front of a rank: F fields over T tables. Keys are field-major and ragged:
// offsets[F * B + 1], keys[nnz]; results are sum-pooled: out[B, F, D].
#pragma once
#include "batch.cuh"
#ifdef LIVECTR_HOST

namespace {

class Fields {
  public:
    Fields(Table* const* tables, int64_t count, const int32_t* table_of, int64_t fields)
        : tables_(tables, tables + count), table_of_(table_of, table_of + fields), batches_(count) {}

    // Rows missing from the tables are inserted. Remembers the batch for `backward`.
    void forward(const int32_t* offsets, const int64_t* keys, int64_t rows, float* out) {
        found_.resize(offsets[fields() * rows]);
        livectr::parallel_for(fields() * blocks(rows), [&](int64_t task) {
            const auto [first, last] = range(task / blocks(rows), task % blocks(rows), rows);
            const int32_t begin = offsets[first], end = offsets[last];
            find_rows(table(task / blocks(rows)).index(), keys + begin, end - begin, found_.data() + begin);
        });
        livectr::parallel_for(tables_.size(), [&](int64_t t) { group(t, offsets, keys, rows); });
        livectr::parallel_for(blocks(rows), [&](int64_t block) {
            for (int64_t f = 0; f < fields(); ++f) {
                const auto [first, last] = range(f, block, rows);
                pool(table(f), keys, found_.data(), offsets, first, last, f, rows, false, out);
            }
        });
    }

    // Optimiser step of the rows of the last forward; grad[B, F, D]. Returns how many rows.
    int64_t backward(const float* grad) {
        std::vector<std::pair<int64_t, int64_t>> tasks;
        int64_t unique = 0;
        for (size_t t = 0; t < tables_.size(); ++t) {
            batches_[t].prepare();
            unique += batches_[t].size();
            for (int64_t c = 0; c < batches_[t].chunks(); ++c) tasks.emplace_back(t, c);
        }
        livectr::parallel_for(tasks.size(), [&](int64_t i) {
            const auto [t, chunk] = tasks[i];
            batches_[t].apply(*tables_[t], grad, chunk);
        });
        for (size_t t = 0; t < tables_.size(); ++t) batches_[t].finish(*tables_[t]);
        return unique;
    }

    // As forward, but inserts nothing: a missing row counts as zeros or as its initial values.
    void infer(const int32_t* offsets, const int64_t* keys, int64_t rows, bool zeros, float* out) const {
        livectr::parallel_for(blocks(rows), [&](int64_t block) {
            std::vector<uint32_t> found;
            for (int64_t f = 0; f < fields(); ++f) {
                const auto [first, last] = range(f, block, rows);
                const int32_t begin = offsets[first], end = offsets[last];
                found.resize(end - begin);
                find_rows(table(f).index(), keys + begin, end - begin, found.data());
                pool(table(f), keys, found.data() - begin, offsets, first, last, f, rows, zeros, out);
            }
        });
    }

    bool valid(const int32_t* offsets, int64_t rows, int64_t nnz) const {
        const int64_t cells = fields() * rows;
        bool ordered = offsets[0] == 0 && offsets[cells] == nnz;
        for (int64_t i = 0; i < cells; ++i) ordered &= offsets[i] <= offsets[i + 1];
        return ordered;
    }

  private:
    static constexpr int64_t BLOCK = 128;  // rows of a task: their results fit the L2 cache
    static constexpr int64_t AHEAD = 12;
    std::vector<Table*> tables_;
    std::vector<int32_t> table_of_;
    std::vector<Batch> batches_;    // by table
    std::vector<uint32_t> found_;   // row of every key of the batch

    int64_t fields() const { return table_of_.size(); }
    Table& table(int64_t f) const { return *tables_[table_of_[f]]; }
    static int64_t blocks(int64_t rows) { return (rows + BLOCK - 1) / BLOCK; }

    // First and last offset of a block of rows of field f.
    static std::pair<int64_t, int64_t> range(int64_t f, int64_t block, int64_t rows) {
        return {f * rows + block * BLOCK, f * rows + std::min(rows, (block + 1) * BLOCK)};
    }

    // Inserts the missing keys of all fields of table t, then lists its unique rows.
    void group(int64_t t, const int32_t* offsets, const int64_t* keys, int64_t rows) {
        int64_t total = 0;
        for (int64_t f = 0; f < fields(); ++f) {
            if (table_of_[f] != t) continue;
            const int32_t begin = offsets[f * rows], end = offsets[(f + 1) * rows];
            tables_[t]->insert_missing(keys + begin, found_.data() + begin, end - begin);
            total += end - begin;
        }
        Batch& batch = batches_[t];
        batch.start(total);
        const RowsView view = tables_[t]->rows();
        for (int64_t f = 0; f < fields(); ++f) {
            if (table_of_[f] != t) continue;
            const int32_t end = offsets[(f + 1) * rows];
            for (int64_t b = 0; b < rows; ++b) {
                for (int32_t i = offsets[f * rows + b]; i < offsets[f * rows + b + 1]; ++i) {
                    if (i + AHEAD < end) __builtin_prefetch(row_header(view, found_[i + AHEAD]), 1);
                    batch.add(view, found_[i], b * fields() + f);
                }
            }
        }
    }

    // out[b, f] = sum of the values of its keys, for the cells [first, last) of field f.
    void pool(const Table& table, const int64_t* keys, const uint32_t* found, const int32_t* offsets,
              int64_t first, int64_t last, int64_t f, int64_t rows, bool zeros, float* out) const {
        const RowsView view = table.rows();
        const int32_t end = offsets[last];
        for (int64_t cell = first; cell < last; ++cell) {
            float* const target = out + ((cell - f * rows) * fields() + f) * Layout::D;
            const int32_t begin = offsets[cell];
            if (begin == offsets[cell + 1]) std::fill_n(target, Layout::D, 0.0f);
            for (int32_t i = begin; i < offsets[cell + 1]; ++i) {
                if (i + AHEAD < end && found[i + AHEAD] != NO_ROW) {
                    prefetch_row(view, found[i + AHEAD], sizeof(RowHeader) + 4 * Layout::D);
                }
                float buffer[Layout::D];
                const float* const values = table.values(keys[i], found[i], zeros, buffer);
                if (i == begin) {
                    memcpy(target, values, 4 * Layout::D);
                } else {
                    for (int d = 0; d < Layout::D; ++d) target[d] += values[d];
                }
            }
        }
    }
};

}  // namespace

#endif
