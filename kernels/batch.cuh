// The unique rows of a batch and, for each, the chain of its occurrences in the order of the batch: the
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
        const uint32_t at = occurrences_.size();
        occurrences_.push_back({cell, NONE});
        uint32_t& mark = row_header(view, row)->mark;
        if (mark < unique_.size() && unique_[mark].row == row) {
            occurrences_[std::exchange(unique_[mark].last, at)].next = at;
        } else {
            mark = unique_.size();
            unique_.push_back({row, at, at});
        }
    }

    // Adds n occurrences with cells first, first + 1, ...
    void add_all(const RowsView& view, const uint32_t* rows, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            if (i + AHEAD < n) prefetch(row_header(view, rows[i + AHEAD]));
            add(view, rows[i], i);
        }
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
                const float* const ahead = grad_of(grads, unique_[u + AHEAD].first);
                for (int d = 0; d < Layout::D; d += 16) prefetch(ahead + d);
            }
            const uint32_t row = unique_[u].row;
            const float* grad = grad_of(grads, unique_[u].first);
            float sum[Layout::D];
            if (unique_[u].first != unique_[u].last) {
                std::copy_n(grad, Layout::D, sum);
                for (uint32_t at = unique_[u].first; (at = occurrences_[at].next) != NONE;) {
                    const float* const more = grad_of(grads, at);
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
            const int64_t cell = occurrences_[unique_[u].last].cell;
            write_row(view, row, source + cell * Layout::STRIDE);
            if (Table::touch(row_header(view, row), generation)) touched_[begin + touched_counts_[c]++] = row;
        }
    }

    void finish(Table& table) {
        for (int64_t c = 0; c < chunks(); ++c) table.changed(touched_.data() + c * GRAIN, touched_counts_[c]);
    }

    static constexpr int64_t AHEAD = 8;

  private:
    static constexpr uint32_t NONE = 0xFFFFFFFFu;
    struct Unique {
        uint32_t row, first, last;
    };
    struct Occurrence {
        uint32_t cell, next;
    };
    std::vector<Unique> unique_;
    std::vector<Occurrence> occurrences_;
    std::vector<uint32_t> touched_, touched_counts_;  // by chunk: rows that changed first in this generation

    const float* grad_of(const float* grads, uint32_t at) const {
        return grads + int64_t{occurrences_[at].cell} * Layout::D;
    }
};

}  // namespace

#endif
