// Functions of a text, kept by the text: one that comes again is not worked on again.
//
//   texts of a batch ─find─► entry of each row
//                      └───► entries that are new ─► the functions run over these alone ─► values by entry
//
// An entry counts only if its bytes are the text's, so results are those of every other way. When entries take more
// than their share of memory, all are dropped before the next batch. Where texts hardly ever come again, nothing
// is kept for a while.
#pragma once
#include "extract/rowblock.hpp"

#include <type_traits>

namespace livectr {

constexpr int64_t LEAST_RECALLED = 256;  // rows of a batch; with fewer it does not pay

class Recall {
  public:
    HostPool items;                            // items of lists of numbers; all results, where texts are kept
    HostPool bytes;                            // of the texts
    std::vector<Str> texts;                    // by entry
    std::vector<uint8_t> failed;               // by entry; with room for a block of new ones
    std::vector<std::vector<uint8_t>> values;  // of each function that is kept, by entry; with such room, too

    explicit Recall(std::vector<int64_t> widths, int64_t most)
        : values(widths.size()), widths_(std::move(widths)), most_(most) {}

    // Before a batch; false: the batch does without.
    bool begin(int64_t rows) {
        if (resting_ > 0) {
            resting_ -= rows;
            return false;
        }
        if (asked_ >= WINDOW) {
            const bool idle = 2 * missed_ > asked_;
            asked_ = missed_ = 0;
            if (idle) {
                resting_ = REST;
                drop();
                return false;
            }
        }
        if (held() > most_) clear();
        index_.resize(size_t(rows));
        return true;
    }

    // Entries of the block of rows [first, first + rows), at most BLOCK_ROWS. run(entry, count) computes the new ones.
    template <typename Run>
    void find(const Str* block, int64_t first, int64_t rows, Run run) {
        const int64_t known = int64_t(texts.size());
        reserve(known + rows);
        uint64_t hash[BLOCK_ROWS];
        int32_t* const index = index_.data() + first;
        for (int64_t i = 0; i < rows; ++i) {
            hash[i] = hash_of(block[i]);
            __builtin_prefetch(&slots_[hash[i] & mask_]);
        }
        for (int64_t i = 0; i < rows; ++i) {
            uint64_t at = hash[i] & mask_;
            while (slots_[at].entry >= 0 && slots_[at].tag != tag(hash[i])) at = (at + 1) & mask_;
            index[i] = slots_[at].entry;
            if (index[i] >= 0) __builtin_prefetch(&texts[size_t(index[i])]);
        }
        for (int64_t i = 0; i < rows; ++i) {
            if (index[i] >= 0) __builtin_prefetch(texts[size_t(index[i])].data);
        }
        for (int64_t i = 0; i < rows; ++i) {
            if (index[i] < 0 || !same(texts[size_t(index[i])], block[i])) index[i] = entry_of(block[i], hash[i]);
        }
        const int64_t fresh = int64_t(texts.size()) - known;
        asked_ += rows;
        missed_ += fresh;
        if (fresh > 0) run(known, fresh);
        for (int64_t i = known; i < known + fresh; ++i) any_failed_ |= failed[size_t(i)] != 0;
    }

    // Values of the n-th function from an entry on.
    template <typename T>
    T* column(int64_t n, int64_t entry) {
        return reinterpret_cast<T*>(values[size_t(n)].data()) + entry;
    }

    // out[i] = value of the n-th function for row first + i.
    template <typename Column>
    void give(const Column& out, int64_t n, int64_t first, int64_t rows) const {
        using T = std::remove_reference_t<decltype(*out.values)>;
        const T* const values_of = reinterpret_cast<const T*>(values[size_t(n)].data());
        const int32_t* const index = index_.data() + first;
        for (int64_t i = 0; i < rows; ++i) {
            out.values[i] = values_of[index[i]];
            if constexpr (!std::is_arithmetic_v<T>) __builtin_prefetch(out.values[i].data);
        }
    }

    // Marks rows whose text cannot be worked on.
    void give_failed(uint8_t* failed_rows, int64_t first, int64_t rows) const {
        if (!any_failed_) return;
        for (int64_t i = 0; i < rows; ++i) failed_rows[i] |= failed[size_t(index_[size_t(first + i)])];
    }

  private:
    static constexpr int64_t WINDOW = 1 << 16, REST = 1 << 20;  // rows

    struct Slot {
        uint32_t tag;
        int32_t entry;  // -1: free
    };
    std::vector<int64_t> widths_;  // bytes of a value
    int64_t most_;                 // bytes
    std::vector<Slot> slots_;
    uint64_t mask_ = 0;
    std::vector<int32_t> index_;  // row of the batch → entry
    int64_t asked_ = 0, missed_ = 0, resting_ = 0;
    bool any_failed_ = false;

    static uint32_t tag(uint64_t hash) { return uint32_t(hash >> 32); }

    static bool same(Str a, Str b) {
        return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, size_t(a.size)) == 0);
    }

    static uint64_t hash_of(Str s) {
        uint64_t hash = uint64_t(s.size) * xxh64::P5, word = 0;
        if (s.size >= 8) {
            for (int32_t i = 0; i + 8 < s.size; i += 8)
                hash = xxh64::rotl(hash ^ read_bytes<uint64_t>(s.data + i), 29) * xxh64::P1;
            word = read_bytes<uint64_t>(s.data + s.size - 8);
        } else if (s.size >= 4) {
            word = uint64_t(read_bytes<uint32_t>(s.data)) << 32 | read_bytes<uint32_t>(s.data + s.size - 4);
        } else if (s.size > 0) {
            word = uint64_t(s.data[0]) << 16 | uint64_t(s.data[s.size / 2]) << 8 | s.data[s.size - 1];
        }
        return mix64(hash ^ word);
    }

    int32_t entry_of(Str text, uint64_t hash) {
        uint64_t at = hash & mask_;
        for (; slots_[at].entry >= 0; at = (at + 1) & mask_) {
            if (slots_[at].tag == tag(hash) && same(texts[size_t(slots_[at].entry)], text)) return slots_[at].entry;
        }
        if (bytes.end - bytes.at < text.size) bytes.grow(text.size);
        if (text.size > 0) memcpy(bytes.at, text.data, size_t(text.size));
        slots_[at] = Slot{tag(hash), int32_t(texts.size())};
        texts.push_back(Str{bytes.at, text.size});
        bytes.at += text.size;
        return slots_[at].entry;
    }

    // Room for `count` entries.
    void reserve(int64_t count) {
        if (int64_t(failed.size()) < count) {
            const size_t room = size_t(std::max<int64_t>(count, 2 * int64_t(failed.size())));
            texts.reserve(room);
            failed.resize(room);
            for (size_t n = 0; n < values.size(); ++n) values[n].resize(room * size_t(widths_[n]));
        }
        if (2 * uint64_t(count) <= mask_) return;
        uint64_t size = std::max<uint64_t>(2 * (mask_ + 1), 4096);
        while (size < 2 * uint64_t(count) + 1) size *= 2;
        slots_.assign(size_t(size), Slot{0, -1});
        mask_ = size - 1;
        for (size_t entry = 0; entry < texts.size(); ++entry) {
            const uint64_t hash = hash_of(texts[entry]);
            uint64_t at = hash & mask_;
            while (slots_[at].entry >= 0) at = (at + 1) & mask_;
            slots_[at] = Slot{tag(hash), int32_t(entry)};
        }
    }

    int64_t held() const {
        int64_t width = int64_t(sizeof(Str) + 2 * sizeof(Slot)) + 1;
        for (const int64_t own : widths_) width += own;
        return items.bytes() - (items.end - items.at) + bytes.bytes() - (bytes.end - bytes.at) +
               width * int64_t(texts.size());
    }

    void clear() {
        items.reset();
        bytes.reset();
        texts.clear();
        std::fill(failed.begin(), failed.end(), uint8_t(0));
        std::fill(slots_.begin(), slots_.end(), Slot{0, -1});
        any_failed_ = false;
    }

    void drop() {
        items = HostPool();
        bytes = HostPool();
        texts = {};
        failed = {};
        for (auto& column : values) column = {};
        slots_ = {};
        mask_ = 0;
        any_failed_ = false;
    }
};

}  // namespace livectr
