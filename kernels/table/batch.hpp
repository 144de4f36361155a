// The unique keys of a batch and, for each, its row and the cells of its occurrences in the order of the batch: a key
// is looked up and read once, the gradients of a row are summed in that order and its optimiser runs once, whatever
// the threads do.
#pragma once
#include "table/table.hpp"
#ifdef LIVECTR_HOST
#include "keys/unique_scratch.hpp"

namespace {

// Values of keys whose rows are known. They are in place if IN_PLACE, or made in a buffer. Rows ahead are prefetched.
template <bool IN_PLACE>
class StoredValues {
  public:
    StoredValues(const Table& table, bool zeros, const int64_t* keys, const uint32_t* rows, int64_t end)
        : table_(&table), view_(table.rows()), keys_(keys), rows_(rows), end_(end), zeros_(zeros) {}

    // Values float[dim] of key i < end; a missing key has zeros or its initial values.
    template <typename N>
    __forceinline__ const float* operator()(N dim, int64_t i, float* buffer) const {
        if (i + AHEAD < end_) {
            const int bytes = IN_PLACE ? int{sizeof(float)} * dim : static_cast<int>(table_->layout().value_bytes());
            prefetch_row(view_, rows_[i + AHEAD], int{sizeof(RowHeader)} + bytes);
        }
        if (__builtin_expect(rows_[i] == NO_ROW, 0)) return table_->absent(keys_[i], zeros_, buffer), buffer;
        const char* const stored = stored_row(view_, rows_[i]);
        if constexpr (IN_PLACE) return reinterpret_cast<const float*>(stored);
        return table_->layout().read(stored, buffer);
    }

  private:
    static constexpr int64_t AHEAD = 12;
    const Table* table_;
    RowsView view_;
    const int64_t* keys_;
    const uint32_t* rows_;
    int64_t end_;
    bool zeros_;
};

// Calls call(dim, values) with the StoredValues of a table, and its D.
template <typename Call>
void with_values(const Table& table, bool zeros, const int64_t* keys, const uint32_t* rows, int64_t end, Call&& call) {
    with_row_width(table.layout().dim(), [&](auto dim) {
        if (table.layout().in_place()) {
            call(dim, StoredValues<true>(table, zeros, keys, rows, end));
        } else {
            call(dim, StoredValues<false>(table, zeros, keys, rows, end));
        }
    });
}

template <typename N, typename Values>
SEPARATE void copy_values(N dim, Values values, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        float* const to = out + i * dim;
        const float* const from = values(dim, i, to);
        if (from != to) memcpy(to, from, sizeof(float) * dim);
    }
}

// out[n, D]: values of keys whose rows are known.
inline void copy_values(const Table& table, const int64_t* keys, const uint32_t* rows, int64_t n, bool zeros,
                        float* out) {
    with_values(table, zeros, keys, rows, n, [&](auto dim, auto values) { copy_values(dim, values, n, out); });
}

// Optimiser steps of rows of any layout, eight rows at a time. A step takes a stored row and its gradient float[D],
// which may be in `sum`; `finish` follows the last.
template <typename N>
class BlockStep {
  public:
    BlockStep(N dim, const Table& table)
        : dim_(dim), table_(&table), sums_(RowBlock::SIZE * dim), scratch_(table.layout().scratch()) {}

    float* sum() { return sums_.data() + block_.size * dim_; }
    __forceinline__ void operator()(char* stored, const float* gradient) {
        block_.stored[block_.size] = stored;
        block_.gradients[block_.size] = gradient;
        if (++block_.size == RowBlock::SIZE) finish();
    }
    void finish() {
        const RowLayout& layout = table_->layout();
        if (!layout.in_place()) {
            for (int r = 0; r < block_.size; ++r) {
                block_.streams[r] = initial_stream(table_->seed(), header_of(block_.stored[r])->key);
            }
        }
        layout.update(block_, table_->hyper(), scratch_.data());
        block_.size = 0;
    }

  private:
    N dim_;
    const Table* table_;
    RowBlock block_;
    Scratch sums_, scratch_;
};

// Of rows of the usual layout (RowLayout::is_weight_and_vector). Each row at once: its divisions and roots run while
// the rows and gradients after it come from memory.
template <typename N>
class WeightAndVectorStep {
  public:
    explicit WeightAndVectorStep(const Table& table) : h_(table.hyper()) {}

    float* sum() { return sum_; }
    __forceinline__ void operator()(char* stored, const float* gradient) const {
        float* const row = reinterpret_cast<float*>(stored);
        AdaGrad::update(1, row, row + DIM, gradient, h_ + 1);
        AdaGrad::update(DIM - 1, row + 1, row + DIM + 1, gradient + 1, h_ + RowLayout::HYPERS + 1);
    }
    void finish() {}

  private:
    static constexpr int DIM = N();
    const float* h_;
    float sum_[DIM];
};

class Batch {
  public:
    // Call order: `begin`; `add` the keys of every field, n in all; `group`; `put` the cell of every key; `open`, or
    // `find`, `insert` and `use`. Between `begin` and `group` the thread has no other batch.
    void begin(int64_t n) {
        unique_scratch().begin(n);
        if (static_cast<int64_t>(keys_.size()) < n) keys_.resize(n);
        ends_.clear();
    }

    // number[n]: of each key among the unique keys.
    void add(const int64_t* keys, int64_t n, uint32_t* number) {
        ends_.resize(unique_scratch().add(keys, n, keys_.data(), number));
        for (int64_t i = 0; i < n; ++i) ++ends_[number[i]];
    }

    // A counting sort puts the cells of each unique key side by side, in the order they come: a key's `end` moves from
    // its count over its first place to its end.
    void group(int64_t n) {
        uint32_t first = 0;
        for (uint32_t& end : ends_) first += std::exchange(end, first);
        cells_.resize(n);
        rows_.resize(ends_.size());
    }
    void put(uint32_t unique, uint32_t cell) { cells_[ends_[unique]++] = cell; }

    // Finds the rows of all unique keys, and reads the values, which `values` then returns. A missing key gets a row if the
    // table admits it. shared: threads share the search; else one thread finds and inserts in one pass, in parts.
    void open(Table& table, bool shared) {
        const size_t floats = rows_.size() * table.layout().dim();
        if (values_.size() < floats) values_.resize(floats);
        if (shared || table.admission().on()) {
            find(table);
            table.admission().on() ? admit(table) : insert(table);
            read(table, 0, size());
        } else {
            std::fill(rows_.begin(), rows_.end(), NO_ROW);
            for (int64_t begin = 0; begin < size(); begin += PART) {
                const int64_t end = std::min(size(), begin + PART);
                table.insert_missing(keys_.data() + begin, rows_.data() + begin, end - begin);
                read(table, begin, end);
            }
        }
        use(table);
    }
    const float* values() const { return values_.data(); }  // [size(), D]

    void find(const Table& table) {
        livectr::parallel_chunks(size(), GRAIN, [&](int64_t begin, int64_t end) {
            find_rows(table.index(), keys_.data() + begin, end - begin, rows_.data() + begin);
        });
    }

    // Missing keys get rows.
    void insert(Table& table) { table.insert_missing(keys_.data(), rows_.data(), size()); }

    // Missing keys that pass the table's admission get rows; the others stay NO_ROW.
    void admit(Table& table) {
        std::vector<int64_t> missing;
        for (int64_t u = 0; u < size(); ++u) {
            if (rows_[u] == NO_ROW) missing.push_back(keys_[u]);
        }
        table.admission().sift(missing);
        std::vector<uint32_t> rows(missing.size(), NO_ROW);
        table.insert_missing(missing.data(), rows.data(), missing.size());
        for (int64_t u = 0; u < size(); ++u) {
            if (rows_[u] == NO_ROW) rows_[u] = find_row(table.index(), keys_[u]);
        }
    }

    // Notes the use of each unique row, if the table keeps track of it. A use is a change: it must reach a checkpoint.
    void use(Table& table) const {
        if (!table.usage().on()) return;
        const RowsView view = table.rows();
        const uint32_t generation = table.generation();
        for (const uint32_t row : rows_) {
            if (row == NO_ROW) continue;
            table.usage().touch(row);
            if (Table::touch(row_header(view, row), generation)) table.changed(&row, 1);
        }
    }

    int64_t size() const { return rows_.size(); }
    uint32_t row(int64_t u) const { return rows_[u]; }  // of unique key u, or NO_ROW
    int64_t stored() const { return size() - std::count(rows_.begin(), rows_.end(), NO_ROW); }
    int64_t chunks() const { return (size() + GRAIN - 1) / GRAIN; }

    // Prepares for `apply` on the chunks, in parallel or not; `finish` follows the last.
    void prepare() {
        touched_.resize(size());
        touched_counts_.assign(chunks(), 0);
    }

    // Optimiser step of chunk c; grads: float[cells, D].
    void apply(Table& table, const float* grads, int64_t c) {
        with_row_width(table.layout().dim(), [&](auto dim) {
            using N = decltype(dim);
            if constexpr (is_fixed<N>) {
                if (table.layout().is_weight_and_vector()) {
                    return apply(dim, table, grads, c, WeightAndVectorStep<N>(table));
                }
            }
            apply(dim, table, grads, c, BlockStep<N>(dim, table));
        });
    }

    // Copies to each unique row the last of its occurrences; source: float[cells, STRIDE].
    void assign(Table& table, const float* source, int64_t c) {
        const RowsView view = table.rows();
        const Prefetch prefetch_row = table.prefetch_rows();
        const uint32_t generation = table.generation();
        const auto [begin, end] = chunk(c);
        for (int64_t u = begin; u < end; ++u) {
            if (u + AHEAD < end) prefetch_row(rows_[u + AHEAD]);
            const uint32_t row = rows_[u];
            const int64_t cell = cells_[ends_[u] - 1];
            table.layout().write(stored_row(view, row), source + cell * table.layout().stride());
            if (Table::touch(row_header(view, row), generation)) touched_[begin + touched_counts_[c]++] = row;
        }
    }

    void finish(Table& table) {
        for (int64_t c = 0; c < chunks(); ++c) table.changed(touched_.data() + c * GRAIN, touched_counts_[c]);
    }

    static constexpr int64_t AHEAD = 8;

  private:
    static constexpr int64_t PART = 8 * GRAIN;  // keys whose slots and rows stay in a core's cache
    std::vector<int64_t> keys_;                 // the unique keys first
    std::vector<uint32_t> rows_, ends_;  // of each unique key; its cells: from the end of the one before to its end
    std::vector<uint32_t> cells_;
    std::vector<float> values_;                       // of each unique key, D
    std::vector<uint32_t> touched_, touched_counts_;  // by chunk: rows that changed first in this generation

    // Values of the unique keys [from, to).
    void read(const Table& table, int64_t from, int64_t to) {
        livectr::parallel_chunks(to - from, GRAIN, [&](int64_t begin, int64_t end) {
            copy_values(table, keys_.data() + from + begin, rows_.data() + from + begin, end - begin, false,
                        values_.data() + (from + begin) * table.layout().dim());
        });
    }

    std::pair<int64_t, int64_t> chunk(int64_t c) const { return {c * GRAIN, std::min(size(), (c + 1) * GRAIN)}; }
    uint32_t first_of(int64_t u) const { return u ? ends_[u - 1] : 0; }

    template <typename N, typename Step>
    SEPARATE void apply(N dim, Table& table, const float* grads, int64_t c, Step step) {
        const RowsView view = table.rows();
        const Prefetch prefetch_row = table.prefetch_rows();
        const uint32_t generation = table.generation();
        const auto [begin, end] = chunk(c);
        const auto grad_of = [&](uint32_t cell) { return grads + int64_t{cell} * dim; };
        const auto prefetch_grad = [&](uint32_t cell) {
            for (int d = 0; d < dim; d += 16) prefetch(grad_of(cell) + d);
        };
        const uint32_t *const rows = rows_.data(), *const ends = ends_.data(), *const cells = cells_.data();
        uint32_t* const touched = touched_.data() + begin;
        uint32_t count = 0;  // of touched rows
        uint32_t last = first_of(begin);
        for (int64_t u = begin; u < end; ++u) {
            if (u + AHEAD < end) {
                prefetch_row(rows[u + AHEAD]);
                prefetch_grad(cells[ends[u + AHEAD - 1]]);
            }
            const uint32_t row = rows[u], first = std::exchange(last, ends[u]);
            if (row == NO_ROW) continue;  // not admitted
            char* const stored = stored_row(view, row);
            if (Table::touch(header_of(stored), generation)) touched[count++] = row;
            const float* grad = grad_of(cells[first]);
            if (last - first > 1) {
                float* const sum = step.sum();
                add_vectors(dim, sum, first, last, [&](uint32_t at) INLINED {
                    if (at + AHEAD < last) prefetch_grad(cells[at + AHEAD]);
                    return grad_of(cells[at]);
                });
                grad = sum;
            }
            step(stored, grad);
        }
        step.finish();
        touched_counts_[c] = count;
    }
};

}  // namespace

#endif
