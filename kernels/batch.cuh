// The unique rows of a batch and, for each, the cells of its occurrences in the order of the batch: the
// gradients of a row are summed in that order and its optimiser runs once, whatever the threads do.
#pragma once
#include "table.cuh"
#ifdef LIVECTR_HOST

namespace {

class Batch {
  public:
    void start(int64_t occurrences) {
        unique_.clear();
        occurrences_.clear();
        unique_.reserve(occurrences);
        occurrences_.reserve(occurrences);
    }

    // One more occurrence: `row` was read for the gradient row `cell`.
    void add(const RowsView& view, uint32_t row, uint32_t cell) {
        uint32_t& mark = row_header(view, row)->mark;
        if (mark >= unique_.size() || unique_[mark].row != row) {
            mark = unique_.size();
            unique_.push_back({row, 0});
        }
        ++unique_[mark].end;
        occurrences_.push_back({mark, cell});
    }

    // Adds n occurrences with cells first, first + 1, ...
    void add_all(const RowsView& view, const uint32_t* rows, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            if (i + AHEAD < n) prefetch(row_header(view, rows[i + AHEAD]));
            add(view, rows[i], i);
        }
        group();
    }

    // After the last occurrence: puts the cells of each unique row side by side, in the order they came (a counting
    // sort, which moves each row's `end` from its count over its first place to its end).
    void group() {
        uint32_t first = 0;
        for (Unique& unique : unique_) first += std::exchange(unique.end, first);
        cells_.resize(occurrences_.size());
        for (const Occurrence& one : occurrences_) cells_[unique_[one.unique].end++] = one.cell;
    }

    // Notes the use of each unique row, if the table keeps track of it. A use is a change: it must reach a checkpoint.
    void use(Table& table) const {
        if (!table.usage().on()) return;
        const RowsView view = table.rows();
        const uint32_t generation = table.generation();
        for (const Unique& unique : unique_) {
            table.usage().touch(unique.row);
            if (Table::touch(row_header(view, unique.row), generation)) table.changed(&unique.row, 1);
        }
    }

    int64_t size() const { return unique_.size(); }
    int64_t chunks() const { return (size() + GRAIN - 1) / GRAIN; }

    // Before the chunks are applied, in parallel or not; `finish` follows the last.
    void prepare() {
        touched_.resize(size());
        touched_counts_.assign(chunks(), 0);
    }

    // Optimiser step of chunk c; grads: float[cells, D].
    void apply(Table& table, const float* grads, int64_t c) {
        const RowsView view = table.rows();
        const uint32_t generation = table.generation();
        const int64_t begin = c * GRAIN, end = std::min(size(), begin + GRAIN);
        for (int64_t u = begin; u < end; ++u) {
            if (u + AHEAD < end) {
                prefetch_row(view, unique_[u + AHEAD].row, ROW_BYTES);
                prefetch_grad(grads, cells_[first_of(u + AHEAD)]);
            }
            const uint32_t row = unique_[u].row, first = first_of(u), last = unique_[u].end;
            const float* grad = grad_of(grads, cells_[first]);
            float sum[Layout::D];
            if (last - first > 1) {
                std::copy_n(grad, Layout::D, sum);
                for (uint32_t at = first + 1; at < last; ++at) {
                    if (at + AHEAD < last) prefetch_grad(grads, cells_[at + AHEAD]);
                    const float* const more = grad_of(grads, cells_[at]);
                    for (int d = 0; d < Layout::D; ++d) sum[d] += more[d];
                }
                grad = sum;
            }
            update_row(view, row, grad, table.seed(), table.hyper());
            if (Table::touch(row_header(view, row), generation)) touched_[begin + touched_counts_[c]++] = row;
        }
    }

    // Copies to each unique row the last of its occurrences; source: float[cells, STRIDE].
    void assign(Table& table, const float* source, int64_t c) {
        const RowsView view = table.rows();
        const uint32_t generation = table.generation();
        const int64_t begin = c * GRAIN, end = std::min(size(), begin + GRAIN);
        for (int64_t u = begin; u < end; ++u) {
            if (u + AHEAD < end) prefetch_row(view, unique_[u + AHEAD].row, ROW_BYTES);
            const uint32_t row = unique_[u].row;
            const int64_t cell = cells_[unique_[u].end - 1];
            write_row(view, row, source + cell * Layout::STRIDE);
            if (Table::touch(row_header(view, row), generation)) touched_[begin + touched_counts_[c]++] = row;
        }
    }

    void finish(Table& table) {
        for (int64_t c = 0; c < chunks(); ++c) table.changed(touched_.data() + c * GRAIN, touched_counts_[c]);
    }

    static constexpr int64_t AHEAD = 8;

  private:
    struct Unique {
        uint32_t row, end;  // its cells: from the end of the one before to `end`
    };
    struct Occurrence {
        uint32_t unique, cell;
    };
    std::vector<Unique> unique_;
    std::vector<Occurrence> occurrences_;
    std::vector<uint32_t> cells_;
    std::vector<uint32_t> touched_, touched_counts_;  // by chunk: rows that changed first in this generation

    uint32_t first_of(int64_t u) const { return u ? unique_[u - 1].end : 0; }
    static const float* grad_of(const float* grads, uint32_t cell) { return grads + int64_t{cell} * Layout::D; }
    static void prefetch_grad(const float* grads, uint32_t cell) {
        for (int d = 0; d < Layout::D; d += 16) prefetch(grad_of(grads, cell) + d);
    }
};

}  // namespace

#endif
