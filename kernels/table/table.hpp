// Dynamic table: key -> row of floats (values, then optimiser state), of a layout that is known when the table is made.
// Rows lie in slabs that never move; a row number is a slab and a place in it.
//
// Bytes per key: 16 (header) + 4 * STRIDE, rounded up to 8, + 18 to 37 (index) + 4 per listed change; values
// of 2 bytes take 2 * D less.
#pragma once
#include "runtime/index.cuh"
#include "row/layout.hpp"
#ifdef LIVECTR_HOST
#include <deque>
#include "runtime/threads.hpp"
#include "table/admission.hpp"
#include "table/usage.hpp"

namespace {

struct RowHeader {
    int64_t key;
    uint32_t generation;  // of the last change, and flags
};

constexpr uint32_t ERASED = 1u << 31;     // the row is free
constexpr uint32_t CLEAN = 1u << 30;      // restored unchanged; the generation only says whose list has the row
constexpr int64_t INDEX_BYTES = 37;       // of a key, at most (a slot at a load of 0.44)
constexpr int64_t SLAB_BYTES = 16 << 20;  // at most, unless a row has more

// Reader's view; valid until the next insert.
struct RowsView {
    char* const* slabs;
    int64_t row_bytes;
    int shift;  // a slab has 2^shift rows
};

inline RowHeader* row_header(const RowsView& view, uint32_t row) {
    const uint32_t place = row & ((1u << view.shift) - 1);
    return reinterpret_cast<RowHeader*>(view.slabs[row >> view.shift] + place * view.row_bytes);
}

// The stored row (row/row_values.cuh).
inline char* stored_row(const RowsView& view, uint32_t row) {
    return reinterpret_cast<char*>(row_header(view, row) + 1);
}
inline RowHeader* header_of(char* stored) { return reinterpret_cast<RowHeader*>(stored) - 1; }

constexpr int64_t OUT_OF_MEMORY = -1, FORGOTTEN = -2, BAD_OFFSETS = -3;

template <typename Call>
int64_t guarded(Call&& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}

constexpr int64_t GRAIN = 512;  // rows of a task: enough to hide a thread's wake-up

// Prefetches the first bytes of a row.
__forceinline__ void prefetch_row(const RowsView& view, uint32_t row, int bytes) {
    if (row == NO_ROW) return;
    const char* const start = reinterpret_cast<const char*>(row_header(view, row));
    for (int at = 0; at < bytes; at += 64) prefetch(start + at);
}

// Prefetches whole rows. It takes few instructions a row and no branch: a processor has only so many
// instructions in flight, and with them so many misses.
class Prefetch {
  public:
    explicit Prefetch(const RowsView& view)
        : view_(view),
          second_(std::min<int64_t>(view.row_bytes - 1, 64)),
          third_(std::min<int64_t>(view.row_bytes - 1, 128)) {}

    __forceinline__ void operator()(uint32_t row) const {
        if (row == NO_ROW) return;
        const char* const start = reinterpret_cast<const char*>(row_header(view_, row));
        prefetch(start);
        prefetch(start + second_);
        prefetch(start + third_);
        for (int64_t at = 192; at < view_.row_bytes; at += 64) prefetch(start + at);
    }

  private:
    RowsView view_;
    int64_t second_, third_;
};

class Table {
  public:
    Table(const RowLayout& layout, uint64_t seed, const float* hyper, int64_t hypers)
        : layout_(layout), seed_(seed), hyper_(hyper, hyper + hypers), index_(mix64(seed ^ 1)) {
        row_bytes_ = (sizeof(RowHeader) + layout.stored_bytes() + 7) / 8 * 8;
        while (row_bytes_ << (slab_shift_ + 1) <= SLAB_BYTES) ++slab_shift_;
    }

    const RowLayout& layout() const { return layout_; }
    IndexView index() const { return index_.view(); }
    RowsView rows() const { return {slab_data_.data(), row_bytes_, slab_shift_}; }
    const float* hyper() const { return hyper_.data(); }
    void hyper(const float* values) { hyper_.assign(values, values + hyper_.size()); }
    uint64_t seed() const { return seed_; }
    int64_t size() const { return next_row_ - static_cast<int64_t>(free_.size()); }
    uint32_t generation() const { return closed_ + static_cast<uint32_t>(changed_.size()); }

    Admission& admission() { return admission_; }
    Usage& usage() { return usage_; }
    const Usage& usage() const { return usage_; }
    // Maximum of bytes of a further row, without lists of changes.
    int64_t row_bytes() const { return row_bytes_ + INDEX_BYTES + usage_.row_bytes(); }
    int64_t row_numbers() const { return next_row_; }  // in use or free

    int64_t bytes() const {
        int64_t total =
            index_.bytes() + next_row_ * row_bytes_ + 4 * free_.capacity() + usage_.bytes() + admission_.bytes();
        for (const auto& list : changed_) total += 4 * list.size();
        for (const auto& list : erased_) total += 8 * list.size();
        return total;
    }

    // Entries of all lists of changes: a row is in that of each generation in which it changed.
    int64_t listed() const {
        int64_t total = 0;
        for (const auto& list : changed_) total += list.size();
        for (const auto& list : erased_) total += list.size();
        return total;
    }

    Prefetch prefetch_rows() const { return Prefetch(rows()); }

    // Writes zeros or the initial values of `key` to values[D].
    SEPARATE void absent(int64_t key, bool zeros, float* values) const {
        if (zeros) {
            std::fill_n(values, layout_.dim(), 0.0f);
        } else {
            layout_.values(values, initial_stream(seed_, key), hyper());
        }
    }

    // Fills the places of `rows` that are NO_ROW, in order, with the rows of their keys; a missing key gets a new row.
    void insert_missing(const int64_t* keys, uint32_t* rows, int64_t n) {
        if (std::find(rows, rows + n, NO_ROW) == rows + n) return;
        // in parts, so that what one thread finds a place for is still in the cache when all threads fill it
        for (int64_t at = 0; at < n; at += INSERT_PART) {
            insert_part(keys + at, rows + at, std::min(INSERT_PART, n - at));
        }
    }

    // Restores the rows of missing keys, not as a change; source: float[n, STRIDE].
    void restore(const int64_t* keys, int64_t n, const float* source) {
        for (int64_t i = 0; i < n; ++i) {
            const auto [row, fresh] = place(keys[i]);
            if (!fresh) continue;
            RowHeader* const header = row_header(rows(), row);
            *header = {keys[i], (header->generation & ~ERASED) | CLEAN};
            layout_.write(stored_row(rows(), row), source + i * layout_.stride());
        }
    }

    // Generation of the row's last change; 0: none since it was restored.
    uint32_t changed_in(uint32_t row) const {
        const uint32_t generation = row_header(rows(), row)->generation;
        return generation & CLEAN ? 0 : generation;
    }

    // announce: `erased` lists the key. False for a row that lives on elsewhere.
    bool erase(int64_t key, bool announce) {
        const uint32_t row = index_.erase(key);
        if (row == NO_ROW) return false;
        row_header(rows(), row)->generation |= ERASED;
        free_.push_back(row);
        if (usage_.on()) usage_.gone(row);
        if (announce && generation() > 1)
            erased_.back().push_back(key);  // before the first mark there is nothing to compare with
        return true;
    }

    // Erases all rows and frees their memory; marks continue counting.
    void clear() {
        Table fresh(layout_, seed_, hyper(), hyper_.size());
        fresh.closed_ = generation() - 1;
        fresh.usage_ = usage_.empty();
        fresh.admission_ = std::move(admission_);
        *this = std::move(fresh);
    }

    // Sets a row's generation; true: the caller owes it to the list of changes (see `changed`).
    static bool touch(RowHeader* header, uint32_t generation) {
        return (std::exchange(header->generation, generation) & ~CLEAN) != generation;
    }
    void changed(const uint32_t* rows, int64_t n) { changed_.back().insert(changed_.back().end(), rows, rows + n); }

    // Closes the current generation and returns its number.
    uint32_t mark() {
        changed_.emplace_back();
        erased_.emplace_back();
        return generation() - 1;
    }

    void forget(uint32_t mark) {
        for (; closed_ < mark && changed_.size() > 1; ++closed_) {
            changed_.pop_front();
            erased_.pop_front();
        }
    }

    // Drops entries of closed lists that no reader sees, as the rows have changed again or were erased: at most one
    // entry a row is left.
    void compact() {
        livectr::parallel_chunks(changed_.size() - 1, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                std::deque<uint32_t>& list = changed_[i];
                const uint32_t g = closed_ + 1 + i;
                const auto stale = [&](uint32_t row) { return row_header(rows(), row)->generation != g; };
                list.erase(std::remove_if(list.begin(), list.end(), stale), list.end());
                list.shrink_to_fit();
            }
        });
    }

    // Keys that were erased after `since` and do not exist now, each once, in rising order (0: none, because a list
    // of every row implies them), and an upper bound of their number (FORGOTTEN: the lists are).
    std::vector<int64_t> erased(uint32_t since) const {
        std::vector<int64_t> gone;
        for (uint32_t g = since + 1; since > 0 && g <= generation(); ++g) {
            const auto& list = erased_[g - closed_ - 1];
            gone.insert(gone.end(), list.begin(), list.end());
        }
        std::sort(gone.begin(), gone.end());
        gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
        const auto there = [this](int64_t key) { return find_row(index(), key) != NO_ROW; };
        gone.erase(std::remove_if(gone.begin(), gone.end(), there), gone.end());
        return gone;
    }
    int64_t most_erased(uint32_t since) const {
        if (since > 0 && since < closed_) return FORGOTTEN;
        int64_t most = 0;
        for (uint32_t g = since + 1; since > 0 && g <= generation(); ++g) most += erased_[g - closed_ - 1].size();
        return most;
    }

    // Row numbers in use are below.
    uint32_t end() const { return next_row_; }

    // Calls visit(row) for every row in use with a number in [begin, end).
    template <typename Visit>
    void each_in_use(uint32_t begin, uint32_t end, Visit&& visit) const {
        for (uint32_t row = begin; row < std::min(end, next_row_); ++row) {
            if (!(row_header(rows(), row)->generation & ERASED)) visit(row);
        }
    }

    // A bound of the number of rows changed after `since` (0: all rows); FORGOTTEN: their lists are.
    int64_t most_changed(uint32_t since) const {
        if (since == 0) return size();
        if (since < closed_) return FORGOTTEN;
        int64_t most = 0;
        for (uint32_t g = since + 1; g <= generation(); ++g) most += changed_[g - closed_ - 1].size();
        return most;
    }

    // Writes of(view, row) of every row changed after `since` (0: of all rows), each once, to out[most_changed(since)];
    // returns their number.
    template <typename Value, typename Of>
    int64_t each_changed(uint32_t since, Value* out, Of&& of) const {
        const RowsView view = rows();
        int64_t count = 0;
        if (since == 0) {
            each_in_use(0, next_row_, [&](uint32_t row) { out[count++] = of(view, row); });
            return count;
        }
        struct Piece {
            uint32_t generation;
            int64_t begin, end, to, found;
        };
        constexpr int64_t PIECE = 1 << 16, AHEAD = 16;
        std::vector<Piece> pieces;
        int64_t to = 0;
        for (uint32_t g = since + 1; g <= generation(); ++g) {
            const int64_t n = changed_[g - closed_ - 1].size();
            for (int64_t i = 0; i < n; i += PIECE) pieces.push_back({g, i, std::min(n, i + PIECE), to + i, 0});
            to += n;
        }
        livectr::parallel_chunks(pieces.size(), 1, [&](int64_t begin, int64_t end) {
            for (int64_t p = begin; p < end; ++p) {
                Piece& piece = pieces[p];
                const std::deque<uint32_t>& list = changed_[piece.generation - closed_ - 1];
                for (int64_t i = piece.begin; i < piece.end; ++i) {
                    if (i + AHEAD < piece.end) prefetch(row_header(view, list[i + AHEAD]));
                    if (row_header(view, list[i])->generation != piece.generation) continue;
                    out[piece.to + piece.found++] = of(view, list[i]);
                }
            }
        });
        for (const Piece& piece : pieces) {
            if (piece.to != count) memmove(out + count, out + piece.to, piece.found * sizeof(Value));
            count += piece.found;
        }
        return count;
    }

  private:
    RowLayout layout_;
    int64_t row_bytes_;  // of a row with its header, from row to row
    int slab_shift_ = 0;
    uint64_t seed_;
    std::vector<float> hyper_;
    Index index_;
    std::vector<Pages> slabs_;
    std::vector<char*> slab_data_;
    std::vector<uint32_t> free_;
    uint32_t next_row_ = 0;
    std::vector<std::pair<uint32_t, int64_t>> born_;  // rows of the running insert_missing
    uint32_t closed_ = 0;                             // generations up to here are forgotten
    // of generation closed_ + 1, ...: the rows that changed and the keys that were erased. Their lists are deques,
    // since a vector of millions copies itself when it grows, and that would be a pause.
    std::deque<std::deque<uint32_t>> changed_{{}};
    std::deque<std::deque<int64_t>> erased_{{}};
    Usage usage_;
    Admission admission_;

    static constexpr int64_t INSERT_PART = 1 << 15;

    void insert_part(const int64_t* keys, uint32_t* rows, int64_t n) {
        constexpr int64_t AHEAD = 16;
        born_.clear();
        for (int64_t i = 0; i < n; ++i) {
            if (i + AHEAD < n && rows[i + AHEAD] == NO_ROW) {
                const uint64_t hash = index_hash(index(), keys[i + AHEAD]);
                const Segment* const segment = segment_of(index(), hash);
                prefetch(segment->slots + home_slot(hash));
                prefetch(&segment->count);
            }
            if (rows[i] == NO_ROW) rows[i] = insert(keys[i]);
        }
        const RowsView view = this->rows();
        livectr::parallel_chunks(born_.size(), GRAIN, [&](int64_t begin, int64_t end) {
            RowBlock block;
            Scratch scratch(layout_.scratch());
            for (int64_t i = begin; i < end; i += block.size) {
                block.size = static_cast<int>(std::min<int64_t>(RowBlock::SIZE, end - i));
                for (int r = 0; r < block.size; ++r) {
                    const auto [row, key] = born_[i + r];
                    *row_header(view, row) = {key, generation()};
                    block.stored[r] = stored_row(view, row);
                    block.streams[r] = initial_stream(seed_, key);
                }
                layout_.begin(block, hyper(), scratch.data());
            }
        });
    }

    // The key's row, and whether it is new; a new row's header is still that of the key before, if any.
    std::pair<uint32_t, bool> place(int64_t key) {
        const uint32_t fresh = free_.empty() ? next_row_ : free_.back();
        if (fresh == NO_ROW) throw std::bad_alloc();
        if (fresh >> slab_shift_ == slabs_.size()) {
            slabs_.emplace_back(row_bytes_ << slab_shift_, !slabs_.empty());
            slab_data_.push_back(slabs_.back().data());
        }
        const uint32_t row = index_.find_or_insert(key, fresh);
        if (row != fresh) return {row, false};
        if (usage_.on()) usage_.born(row);
        if (free_.empty()) {
            ++next_row_;
        } else {
            free_.pop_back();
        }
        return {row, true};
    }

    uint32_t insert(int64_t key) {
        const uint32_t used = next_row_;
        const auto [row, fresh] = place(key);
        if (!fresh) return row;
        born_.emplace_back(row, key);
        // Erased and born again within a generation: already listed. The header of a row that was never used is not
        // read: its page is left to the thread that fills it.
        const bool listed = row < used && (row_header(rows(), row)->generation & ~(ERASED | CLEAN)) == generation();
        if (!listed) changed_.back().push_back(row);
        return row;
    }
};

}  // namespace

#endif
