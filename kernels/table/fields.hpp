// The embedding front of a rank: F fields over T tables. Keys are field-major and ragged: field f has as many
// rows as its block, whose keys are keys[offsets[i] : offsets[i + 1]] for its cells i; they are sum-pooled. The
// results of a block's fields are out[rows, fields of the block, D]; the blocks' results follow each other.
#pragma once
#include "table/batch.hpp"
#ifdef LIVECTR_HOST

namespace {

// Memory layout of a batch's fields.
class Shape {
  public:
    struct Place {
        int64_t rows, first;   // its cells of `offsets`: first ... first + rows
        int64_t base, stride;  // result, in units of D floats: base + row * stride
    };

    // block_of[F] names each field's block, rows[blocks] the rows of a block.
    Shape(int64_t fields, const int32_t* block_of, int64_t blocks, const int64_t* rows) : places_(fields) {
        std::vector<int64_t> width(blocks), base(blocks + 1), column(blocks);
        for (int64_t f = 0; f < fields; ++f) ++width[block_of[f]];
        for (int64_t k = 0; k < blocks; ++k) {
            base[k + 1] = base[k] + rows[k] * width[k];
            if (width[k]) most_ = std::max(most_, rows[k]);
        }
        int64_t cells = 0;
        for (int64_t f = 0; f < fields; ++f) {
            const int32_t k = block_of[f];
            places_[f] = {rows[k], cells, base[k] + column[k]++, width[k]};
            cells += rows[k];
        }
    }

    const Place& operator[](int64_t f) const { return places_[f]; }
    int64_t size() const { return places_.size(); }
    int64_t most() const { return most_; }  // rows of the longest field
    int64_t cells() const { return size() ? places_.back().first + places_.back().rows : 0; }

    bool valid(const int32_t* offsets, int64_t nnz) const {
        bool ordered = offsets[0] == 0 && offsets[cells()] == nnz;
        for (int64_t i = 0; i < cells(); ++i) ordered &= offsets[i] <= offsets[i + 1];
        return ordered;
    }

  private:
    std::vector<Place> places_;
    int64_t most_ = 0;
};

// Values of the keys of a batch: those of its unique keys, which it has read.
struct BatchValues {
    const float* values;     // [unique keys, D]
    const uint32_t* unique;  // number of each key among them

    template <typename N>
    __forceinline__ const float* operator()(N dim, int64_t i, float*) const {
        return values + int64_t{unique[i]} * dim;
    }
};

class Fields {
  public:
    Fields(Table* const* tables, int64_t count, const int32_t* table_of, int64_t fields)
        : tables_(tables, tables + count), table_of_(table_of, table_of + fields), fields_of_(count), batches_(count) {
        for (int64_t f = 0; f < fields; ++f) fields_of_[table_of[f]].push_back(f);
    }

    int64_t fields() const { return table_of_.size(); }
    int64_t tables() const { return tables_.size(); }
    const RowLayout& layout() const { return tables_[0]->layout(); }

    // Of the last forward: the number of key i among its table's unique keys, and the unique keys of table t.
    uint32_t unique_of(int64_t i) const { return unique_[i]; }
    int64_t table_of(int64_t f) const { return table_of_[f]; }
    int64_t unique_keys(int64_t t) const { return batches_[t].size(); }
    // The stored row of unique key u of table t; null: it has none.
    char* stored(int64_t t, int64_t u) const {
        const uint32_t row = batches_[t].row(u);
        return row == NO_ROW ? nullptr : stored_row(tables_[t]->rows(), row);
    }

    // Rows missing from the tables are inserted, if they are admitted. Remembers the batch for `backward`. Each key of
    // a table is looked up and read once: its other occurrences read a small array in cache.
    //
    // A thread takes a table through all steps, so that what a step has read is in its core's cache at the next. Threads
    // share only a table with more than a thread's share of the keys.
    void forward(const Shape& shape, const int32_t* offsets, const int64_t* keys, float* out) {
        const int64_t total = offsets[shape.cells()], threads = livectr::pool().size;
        unique_.resize(total);
        std::vector<std::pair<int64_t, int64_t>> sizes;  // the largest first: then threads end together
        for (size_t t = 0; t < tables_.size(); ++t) sizes.emplace_back(-occurrences(shape, t, offsets), t);
        std::sort(sizes.begin(), sizes.end());
        each(total, sizes.size(), [&](int64_t i) {
            const auto [size, t] = sizes[i];
            group(shape, t, offsets, keys);
            batches_[t].open(*tables_[t], -size * threads > total);
        });
        each(total, fields() * blocks(shape.most(), WIDE), [&](int64_t task) {
            const int64_t f = task % fields();
            const auto [first, last] = range(shape[f], task / fields(), WIDE);
            const Batch& batch = batches_[table_of_[f]];
            const BatchValues values{batch.values(), unique_.data()};
            with_row_width(layout().dim(), [&, first = first, last = last](auto dim) {
                pool(dim, offsets, first, last, shape[f], out, values, nullptr);
            });
        });
    }

    // Brings the places where the index looks for keys[n] of field f into the cache: a later forward needs them.
    __forceinline__ void fetch_ahead(int64_t f, const int64_t* keys, int64_t n) const {
        const IndexView index = table(f).index();
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t hash = index_hash(index, keys[i]);
            prefetch(segment_of(index, hash)->slots + home_slot(hash));
        }
    }

    // Optimiser step of the rows of the last forward; grad has the layout of its results. Returns the number of rows.
    int64_t backward(const float* grad) {
        int64_t unique = 0;
        for (Batch& batch : batches_) {
            batch.prepare();
            unique += batch.stored();
        }
        each_chunk([&](Batch& batch, Table& table, int64_t c) { batch.apply(table, grad, c); });
        for (size_t t = 0; t < tables_.size(); ++t) batches_[t].finish(*tables_[t]);
        return unique;
    }

    // One value and a part of the state of keys, keys[bounds[t] : bounds[t + 1]] of table t: out[n, 1 + floats] has
    // value `at`, and the state's floats from `state` on. rows[n]: their rows; the value is NaN where there is none.
    void read_segment(const int64_t* bounds, const int64_t* keys, int64_t at, int64_t dim, int64_t state,
                      int64_t floats, uint32_t* rows, float* out) const {
        const RowLayout& layout = this->layout();
        Scratch buffer(layout.dim());
        for (size_t t = 0; t < tables_.size(); ++t) {
            const int64_t n = bounds[t + 1] - bounds[t];
            find_rows(tables_[t]->index(), keys + bounds[t], n, rows + bounds[t]);
            const RowsView view = tables_[t]->rows();
            for (int64_t u = bounds[t]; u < bounds[t + 1]; ++u, out += dim + floats) {
                if (rows[u] == NO_ROW) {
                    std::fill_n(out, dim + floats, NAN);
                    continue;
                }
                const char* const stored = stored_row(view, rows[u]);
                memcpy(out, layout.read(stored, buffer.data()) + at, 4 * dim);
                memcpy(out + dim, stored + layout.value_bytes() + 4 * state, 4 * floats);
            }
        }
    }

    // Writes that part of the state. It is no change of a row: `backward` follows.
    void write_segment(const int64_t* bounds, const uint32_t* rows, int64_t at, int64_t dim, int64_t state,
                       int64_t floats, const float* given) {
        for (size_t t = 0; t < tables_.size(); ++t) {
            const RowsView view = tables_[t]->rows();
            for (int64_t u = bounds[t]; u < bounds[t + 1]; ++u, given += dim + floats) {
                if (rows[u] == NO_ROW) continue;
                char* const stored = stored_row(view, rows[u]);
                layout().write_some(stored, at, dim, given);
                memcpy(stored + layout().value_bytes() + 4 * state, given + dim, 4 * floats);
            }
        }
    }

    // Forward without inserts: a missing row counts as zeros or as its initial values. Returns the number of missing
    // keys.
    int64_t infer(const Shape& shape, const int32_t* offsets, const int64_t* keys, bool zeros, float* out) const {
        std::atomic<int64_t> missing{0};
        livectr::parallel_for(blocks(shape.most(), BLOCK), [&](int64_t block) {
            std::vector<uint32_t> found;
            Scratch buffer(layout().dim());
            int64_t absent = 0;
            for (int64_t f = 0; f < fields(); ++f) {
                const auto [first, last] = range(shape[f], block, BLOCK);
                const int32_t begin = offsets[first], end = offsets[last];
                found.resize(end - begin);
                find_rows(table(f).index(), keys + begin, end - begin, found.data());
                absent += std::count(found.begin(), found.end(), NO_ROW);
                with_values(table(f), zeros, keys + begin, found.data(), end - begin,
                            [&, first = first, last = last](auto dim, auto values) {
                                const auto of_key = [values, begin](auto d, int32_t i, float* b)
                                                        INLINED { return values(d, i - begin, b); };
                                pool(dim, offsets, first, last, shape[f], out, of_key, buffer.data());
                            });
            }
            missing += absent;
        });
        return missing;
    }

    // Counts the keys of a batch, keys[ends[f] : ends[f + 1]] of field f, for the first `count` fields: fresh[f] = those
    // whose row is missing or unchanged since it was restored. Returns the number of unique rows, missing ones apart.
    int64_t census(const int64_t* ends, int64_t count, const int64_t* keys, int64_t* fresh) const {
        int64_t unique = 0;
        std::vector<uint32_t> found, slots;
        for (size_t t = 0; t < tables_.size(); ++t) {
            found.clear();
            for (const int32_t f : fields_of_[t]) {
                if (f >= count) continue;
                const int64_t size = ends[f + 1] - ends[f], before = found.size();
                found.resize(before + size);
                find_rows(tables_[t]->index(), keys + ends[f], size, found.data() + before);
                fresh[f] = std::count_if(found.begin() + before, found.end(), [&](uint32_t row) {
                    return row == NO_ROW || tables_[t]->changed_in(row) == 0;
                });
            }
            size_t size = 16;
            while (size < 2 * found.size()) size *= 2;
            slots.assign(size, NO_ROW);
            for (const uint32_t row : found) {
                if (row == NO_ROW) continue;
                size_t slot = mix64(row) & (size - 1);
                while (slots[slot] != NO_ROW && slots[slot] != row) slot = (slot + 1) & (size - 1);
                unique += slots[slot] == NO_ROW;
                slots[slot] = row;
            }
        }
        return unique;
    }

  private:
    static constexpr int64_t BLOCK = 128;  // rows of a task of `infer`: small requests, split over threads
    static constexpr int64_t WIDE = 1024;  // and of `forward`: hot rows of a table are met often before the next table
    std::vector<Table*> tables_;
    std::vector<int32_t> table_of_;
    std::vector<std::vector<int32_t>> fields_of_;
    std::vector<Batch> batches_;    // by table
    std::vector<uint32_t> unique_;  // number of every key of the batch among its table's unique keys

    Table& table(int64_t f) const { return *tables_[table_of_[f]]; }
    static int64_t blocks(int64_t rows, int64_t size) { return (rows + size - 1) / size; }

    // livectr::parallel_for of a batch of n keys.
    template <typename Body>
    static void each(int64_t n, int64_t count, Body&& body) {
        livectr::parallel_if(n > GRAIN, count, body);
    }

    // First and last cell of a block of a field's rows.
    static std::pair<int64_t, int64_t> range(const Shape::Place& field, int64_t block, int64_t size) {
        return {field.first + std::min(field.rows, block * size),
                field.first + std::min(field.rows, (block + 1) * size)};
    }

    int64_t occurrences(const Shape& shape, int64_t t, const int32_t* offsets) const {
        int64_t total = 0;
        for (const int32_t f : fields_of_[t])
            total += offsets[shape[f].first + shape[f].rows] - offsets[shape[f].first];
        return total;
    }

    // Calls visit(batch, its table, chunk) for all chunks of all tables' unique keys.
    template <typename Visit>
    void each_chunk(Visit&& visit) {
        std::vector<std::pair<int64_t, int64_t>> tasks;
        for (size_t t = 0; t < tables_.size(); ++t) {
            for (int64_t c = 0; c < batches_[t].chunks(); ++c) tasks.emplace_back(t, c);
        }
        each(unique_.size(), tasks.size(), [&](int64_t i) {
            const auto [t, chunk] = tasks[i];
            visit(batches_[t], *tables_[t], chunk);
        });
    }

    // The unique keys of all fields of table t, and the cells of their occurrences.
    void group(const Shape& shape, int64_t t, const int32_t* offsets, const int64_t* keys) {
        const int64_t total = occurrences(shape, t, offsets);
        Batch& batch = batches_[t];
        batch.begin(total);
        for (const int32_t f : fields_of_[t]) {
            const int32_t begin = offsets[shape[f].first], end = offsets[shape[f].first + shape[f].rows];
            batch.add(keys + begin, end - begin, unique_.data() + begin);
        }
        batch.group(total);
        for (const int32_t f : fields_of_[t]) {
            const auto [rows, first, base, stride] = shape[f];
            for (int64_t b = 0; b < rows; ++b) {
                for (int32_t i = offsets[first + b]; i < offsets[first + b + 1]; ++i) {
                    batch.put(unique_[i], base + b * stride);
                }
            }
        }
    }

    // Each result = the sum of the values of its keys, for the cells [first, last) of a field. values(dim, i, buffer[D]):
    // those of key i, there or elsewhere.
    template <typename N, typename Values>
    SEPARATE static void pool(N dim, const int32_t* offsets, int64_t first, int64_t last, const Shape::Place& field,
                              float* out, Values values, float* buffer) {
        for (int64_t cell = first; cell < last; ++cell) {
            float* const target = out + (field.base + (cell - field.first) * field.stride) * dim;
            const int32_t begin = offsets[cell], end = offsets[cell + 1];
            if (begin == end) {
                std::fill_n(target, int{dim}, 0.0f);
            } else {
                add_vectors(dim, target, begin, end, [&](int32_t i) INLINED { return values(dim, i, buffer); });
            }
        }
    }
};

}  // namespace

#endif
