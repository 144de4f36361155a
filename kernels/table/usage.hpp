// Usage of rows, for eviction: last use (stamp) and frequency (count), two columns by row number. A table keeps them
// on request: 4 bytes per row for the stamp, 4 more for the count.
//
// The stamp is a number that the caller advances (steps, or seconds of event time). A count is a sum of uses that
// halves every `half_life` of stamps. It is aged when it is read, by the halvings between the row's last use and now,
// so that no pass over the rows is needed. It saturates. No clock and no random number is involved.
#pragma once
#include "runtime/hash.cuh"
#ifdef LIVECTR_HOST
#include <memory>
#include <mutex>
#include "runtime/threads.hpp"

namespace {

class Usage {
  public:
    static constexpr uint32_t GONE = 0xFFFFFFFFu;  // stamp of a free row number
    static constexpr uint32_t USE = 256;           // one use: nine halvings forget it

    bool on() const { return on_; }
    bool counting() const { return half_life_ > 0; }
    uint32_t now() const { return now_; }
    int64_t row_bytes() const { return on_ ? counting() ? 8 : 4 : 0; }
    int64_t bytes() const { return static_cast<int64_t>(stamps_.size()) * CHUNK * row_bytes(); }

    // half_life 0: no counts. To be called before the first row.
    void start(uint32_t half_life) {
        on_ = true;
        half_life_ = half_life;
        if (half_life) inverse_ = ~uint64_t{0} / half_life + 1;
    }
    // The same settings, no rows.
    Usage empty() const {
        Usage fresh;
        if (on_) fresh.start(half_life_);
        fresh.now_ = now_;
        return fresh;
    }
    void move_to(uint32_t now) { now_ = now; }

    void born(uint32_t row) {
        while (row / CHUNK >= stamps_.size()) {
            stamps_.emplace_back(new uint32_t[CHUNK]);
            std::fill_n(stamps_.back().get(), CHUNK, GONE);
            if (counting()) counts_.emplace_back(new uint32_t[CHUNK]);
        }
        set(row, now_, 0);
    }
    void gone(uint32_t row) { set(row, GONE, 0); }

    void touch(uint32_t row) {
        uint32_t& stamp = stamps_[row / CHUNK][row % CHUNK];
        if (counting()) {
            uint32_t& count = counts_[row / CHUNK][row % CHUNK];
            const uint64_t more = uint64_t{aged(stamp, count)} + USE;
            count = static_cast<uint32_t>(std::min<uint64_t>(more, 0xFFFFFFFFu));
        }
        stamp = now_;
    }

    uint32_t stamp(uint32_t row) const { return stamps_[row / CHUNK][row % CHUNK]; }
    uint32_t count(uint32_t row) const { return counting() ? counts_[row / CHUNK][row % CHUNK] : 0; }
    void set(uint32_t row, uint32_t stamp, uint32_t count) {
        stamps_[row / CHUNK][row % CHUNK] = stamp;
        if (counting()) counts_[row / CHUNK][row % CHUNK] = count;
    }

    // Count as of the present stamp.
    uint32_t aged(uint32_t stamp, uint32_t count) const {
        const uint32_t halvings = stamp < now_ ? period(now_) - period(stamp) : 0;
        return halvings < 32 ? count >> halvings : 0;
    }

    // stamp / half_life, without a division: exact for 32 bits (Lemire, Kaser, Kurz 2019, "Faster remainder by
    // direct computation", section 3.2).
    uint32_t period(uint32_t stamp) const {
        return half_life_ == 1 ? stamp : static_cast<uint32_t>(static_cast<unsigned __int128>(inverse_) * stamp >> 64);
    }

    // Scores of a row for eviction, the lowest first: (aged count, stamp) or the stamp. Free numbers come last.
    uint64_t rarity(uint32_t row) const {
        const uint32_t stamp = this->stamp(row);
        return stamp == GONE ? ~uint64_t{0} : uint64_t{aged(stamp, count(row))} << 32 | stamp;
    }
    uint64_t age(uint32_t row) const { return stamp(row); }

    // Rows whose stamp is below `stamp`, in the order of their numbers.
    std::vector<uint32_t> older_than(uint32_t stamp, int64_t rows) const {
        return collect(rows, [&](uint32_t row) { return this->stamp(row) < stamp; });
    }

    // The `count` rows (at most those there are) with the lowest (score, key), in the order of their numbers.
    // score(row): DIGITS digits of 16 bits, all ones for free numbers. A radix selection: DIGITS + 1 passes over the
    // columns, and keys are read only of rows whose score is that of the last chosen row, if there are too many of them.
    template <int DIGITS, typename Score, typename KeyOf>
    std::vector<uint32_t> lowest(int64_t count, int64_t rows, Score&& score, KeyOf&& key_of) const {
        if (count <= 0) return {};
        uint64_t last = 0;  // the leading digits of the score that the last chosen row has
        int64_t left = count;
        for (int digit = DIGITS - 1; digit >= 0; --digit) {
            std::vector<int64_t> histogram(1 << 16);
            std::mutex mutex;
            livectr::parallel_chunks(rows, TASK, [&](int64_t begin, int64_t end) {
                std::vector<uint32_t> part(1 << 16);
                for (int64_t row = begin; row < end; ++row) {
                    const uint64_t value = score(row);
                    if (digit == DIGITS - 1 || value >> 16 * (digit + 1) == last) ++part[value >> 16 * digit & 0xFFFF];
                }
                const std::lock_guard<std::mutex> lock(mutex);
                for (int i = 0; i < 1 << 16; ++i) histogram[i] += part[i];
            });
            uint64_t at = 0;
            for (; left > histogram[at]; ++at) left -= histogram[at];
            last = last << 16 | at;
        }
        std::vector<uint32_t> lowest_rows = collect(rows, [&](uint32_t row) { return score(row) <= last; });
        if (static_cast<int64_t>(lowest_rows.size()) == count) return lowest_rows;
        std::vector<std::pair<int64_t, uint32_t>> equal;  // the first `left` are chosen
        for (const uint32_t row : lowest_rows) {
            if (score(row) == last) equal.emplace_back(key_of(row), row);
        }
        std::nth_element(equal.begin(), equal.begin() + left, equal.end());
        std::vector<uint32_t> out;
        for (size_t i = left; i < equal.size(); ++i) out.push_back(equal[i].second);
        std::sort(out.begin(), out.end());
        const auto left_out = [&](uint32_t row) { return std::binary_search(out.begin(), out.end(), row); };
        lowest_rows.erase(std::remove_if(lowest_rows.begin(), lowest_rows.end(), left_out), lowest_rows.end());
        return lowest_rows;
    }

  private:
    static constexpr int64_t CHUNK = 1 << 14;  // rows of an allocation: a column never moves
    static constexpr int64_t TASK = 1 << 19;   // rows of a thread's turn
    bool on_ = false;
    uint32_t half_life_ = 0;
    uint64_t inverse_ = 0;  // of the half-life, times 2^64, rounded up
    uint32_t now_ = 0;
    std::vector<std::unique_ptr<uint32_t[]>> stamps_, counts_;

    template <typename Wanted>
    std::vector<uint32_t> collect(int64_t rows, Wanted&& wanted) const {
        std::vector<std::vector<uint32_t>> parts((rows + TASK - 1) / TASK);
        livectr::parallel_chunks(rows, TASK, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                if (wanted(row)) parts[begin / TASK].push_back(row);
            }
        });
        std::vector<uint32_t> all;
        for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
        return all;
    }
};

}  // namespace

#endif
