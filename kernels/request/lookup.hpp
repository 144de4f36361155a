// Look-up rows in memory, by column: found by key while others are added. Rows are only appended: a changed row gets
// another slot, and its key points there. Slot 0 is the row that was never read.
#pragma once
#include "keys/numbers.hpp"
#include "request/columns.hpp"

#include <array>
#include <memory>
#include <mutex>

namespace livectr::request {

// Values that are only appended. Memory doubles when it is full; a copy reads its memory as long as it lives, and only
// the last copy is appended to.
template <typename T>
class Growing {
  public:
    const T* data() const { return memory_.get(); }
    int64_t size() const { return size_; }

    void append(const T* values, int64_t count) {
        if (size_ + count > room_) {
            const int64_t room = std::max(size_ + count, 2 * room_);
            std::shared_ptr<T[]> wider(new T[size_t(room)]);
            if (size_) std::memcpy(wider.get(), memory_.get(), size_t(size_) * sizeof(T));
            memory_ = std::move(wider);
            room_ = room;
        }
        if (count) std::memcpy(memory_.get() + size_, values, size_t(count) * sizeof(T));
        size_ += count;
    }
    void append(T value) { append(&value, 1); }
    void cut(int64_t size) { size_ = size; }

  private:
    std::shared_ptr<T[]> memory_;
    int64_t size_ = 0, room_ = 0;
};

// Column of a look-up table. A null is a zero, "" or an empty list that is marked.
class LookupColumn {
  public:
    LookupColumn(Element element, bool listed) : element_(element), listed_(listed) {
        if (listed) lists_.append(0);
        if (is_text(kind_of(element))) texts_.append(0);
    }

    LookupColumn emptied() const { return LookupColumn(element_, listed_); }
    int64_t rows() const { return nulls_.size(); }
    // Bytes of texts, or values of lists, whose offsets are int32.
    int64_t extent() const { return std::max(is_text(kind_of(element_)) ? values_.size() : 0, items()); }

    // Adds the rows of an array of this column's type; it may be dictionary-encoded.
    void append(const ArrowArray& array) {
        const ArrowArray& source = array.dictionary ? *array.dictionary : array;
        for (int64_t i = 0; i < array.length; ++i) {
            int64_t row = array.offset + i;
            bool null = is_null(array, row);
            if (array.dictionary && !null) {
                row = source.offset + buffer<int32_t>(array, 1)[row];
                null = is_null(source, row);
            }
            nulls_.append(uint8_t(null));
            if (!listed_) {
                add_value(source, row, null);
                continue;
            }
            if (!null) {
                const int32_t* const ends = buffer<int32_t>(source, 1);
                const ArrowArray& of_lists = *source.children[0];
                for (int64_t k = ends[row]; k < ends[row + 1]; ++k)
                    add_value(of_lists, of_lists.offset + k, is_null(of_lists, of_lists.offset + k));
            }
            lists_.append(int32_t(items()));
        }
    }

    // Forgets the rows from `rows` on.
    void cut(int64_t rows) {
        nulls_.cut(rows);
        int64_t items = rows;
        if (listed_) {
            items = lists_.data()[rows];
            lists_.cut(rows + 1);
        }
        const bool texts = is_text(kind_of(element_));
        values_.cut(texts ? texts_.data()[items] : items * width());
        if (texts) texts_.cut(items + 1);
    }

    // Values at some slots. Texts are dictionary-encoded: not a byte of them is copied.
    ArrowArray* take(const int32_t* slots, int64_t n, Arrays& arrays) const {
        Validity valid(arrays.arena, n);
        for (int64_t i = 0; i < n; ++i) {
            if (uint64_t(int64_t(slots[i])) >= uint64_t(rows())) throw BadArray();
            if (nulls_.data()[slots[i]]) valid.set_null(i);
        }
        if (listed_) return take_lists(slots, n, arrays, valid);
        if (is_text(kind_of(element_))) {
            ArrowArray* const array = arrays.make(n, &valid, 2);
            array->buffers[1] = slots;
            array->dictionary = texts(rows(), texts_.data(), values_.data(), arrays);
            return array;
        }
        return fixed(n, arrays, &valid, [slots](int64_t i) { return slots[i]; });
    }

  private:
    Element element_;
    bool listed_;
    Growing<uint8_t> nulls_;   // of rows
    Growing<uint8_t> values_;  // of rows, or of the items of lists: numbers, bytes of texts, a byte for each bool
    Growing<int32_t> texts_;   // ends of texts in `values_`, from 0 on
    Growing<int32_t> lists_;   // ends of lists, from 0 on

    static bool is_null(const ArrowArray& array, int64_t row) {
        return array.null_count != 0 && array.buffers[0] && !bit_at(buffer<uint8_t>(array, 0), row);
    }

    int64_t width() const {
        constexpr int64_t WIDTHS[] = {8, 4, 8, 4, 1, 1, 1};
        return WIDTHS[element_];
    }
    int64_t items() const { return is_text(kind_of(element_)) ? texts_.size() - 1 : values_.size() / width(); }

    void add_value(const ArrowArray& array, int64_t row, bool null) {
        if (is_text(kind_of(element_))) {
            const int32_t* const ends = buffer<int32_t>(array, 1);
            if (!null) values_.append(buffer<uint8_t>(array, 2) + ends[row], ends[row + 1] - ends[row]);
            texts_.append(int32_t(values_.size()));
        } else if (element_ == BOOL) {
            values_.append(uint8_t(!null && bit_at(buffer<uint8_t>(array, 1), row)));
        } else {
            static constexpr uint8_t ZERO[8] = {};
            values_.append(null ? ZERO : buffer<uint8_t>(array, 1) + row * width(), width());
        }
    }

    static ArrowArray* texts(int64_t n, const int32_t* ends, const uint8_t* bytes, Arrays& arrays) {
        ArrowArray* const array = arrays.make(n, nullptr, 3);
        array->buffers[1] = ends, array->buffers[2] = bytes;
        return array;
    }

    // Array of n numbers or bools: that at place(i) for each i.
    template <typename Place>
    ArrowArray* fixed(int64_t n, Arrays& arrays, const Validity* valid, Place place) const {
        ArrowArray* const array = arrays.make(n, valid, 2);
        const uint8_t* const from = values_.data();
        if (element_ == BOOL) {
            auto* const bits = arrays.arena.take<uint8_t>((n + 7) / 8);
            std::memset(bits, 0, size_t((n + 7) / 8));
            for (int64_t i = 0; i < n; ++i) bits[i >> 3] = uint8_t(bits[i >> 3] | from[place(i)] << (i & 7));
            array->buffers[1] = bits;
        } else if (width() == 8) {
            auto* const to = arrays.arena.take<uint64_t>(n);
            for (int64_t i = 0; i < n; ++i) std::memcpy(to + i, from + 8 * int64_t(place(i)), 8);
            array->buffers[1] = to;
        } else {
            auto* const to = arrays.arena.take<uint32_t>(n);
            for (int64_t i = 0; i < n; ++i) std::memcpy(to + i, from + 4 * int64_t(place(i)), 4);
            array->buffers[1] = to;
        }
        return array;
    }

    ArrowArray* take_lists(const int32_t* slots, int64_t n, Arrays& arrays, const Validity& valid) const {
        auto* const ends = arrays.arena.take<int32_t>(n + 1);
        const int32_t* const old = lists_.data();
        int64_t size = 0;
        ends[0] = 0;
        for (int64_t i = 0; i < n; ++i) {
            size += old[slots[i] + 1] - old[slots[i]];
            if (size > INT32_MAX) throw std::bad_alloc();
            ends[i + 1] = int32_t(size);
        }
        auto* const places = arrays.arena.take<int32_t>(size);
        int32_t* to = places;
        for (int64_t i = 0; i < n; ++i)
            for (int32_t k = old[slots[i]]; k < old[slots[i] + 1]; ++k) *to++ = k;
        ArrowArray* const array = arrays.make(n, &valid, 2, 1);
        array->buffers[1] = ends;
        array->children[0] = is_text(kind_of(element_))
                                 ? copied(places, size, arrays)
                                 : fixed(size, arrays, nullptr, [places](int64_t i) { return places[i]; });
        return array;
    }

    ArrowArray* copied(const int32_t* places, int64_t n, Arrays& arrays) const {
        const int32_t* const old = texts_.data();
        int64_t bytes = 0;
        for (int64_t i = 0; i < n; ++i) bytes += old[places[i] + 1] - old[places[i]];
        if (bytes > INT32_MAX) throw std::bad_alloc();
        auto* const ends = arrays.arena.take<int32_t>(n + 1);
        auto* const chars = arrays.arena.take<uint8_t>(bytes);
        int32_t size = 0;
        ends[0] = 0;
        for (int64_t i = 0; i < n; ++i) {
            const int32_t from = old[places[i]], length = old[places[i] + 1] - from;
            if (length) std::memcpy(chars + size, values_.data() + from, size_t(length));
            ends[i + 1] = size += length;
        }
        return texts(n, ends, chars, arrays);
    }
};

namespace {  // as the index is

// Rows of a look-up table; thread-safe.
class LookupTable {
  public:
    using Columns = std::vector<LookupColumn>;
    using View = std::shared_ptr<const Columns>;
    static constexpr double NEVER = -HUGE_VAL;

    // Adds a column, before there are rows.
    void add_column(Element element, bool listed) { columns_.emplace_back(element, listed); }

    // Slots of n keys, 0 where there is none. read_at: instants when they were read; null: not wanted. Lowers
    // `oldest` to the first instant.
    void find(const int64_t* keys, int64_t n, int32_t* slots, double* read_at, double& oldest) {
        constexpr int64_t PART = 256;
        uint32_t found[PART];
        std::lock_guard<std::mutex> hold(mutex_);
        for (int64_t begin = 0; begin < n; begin += PART) {
            const int64_t count = std::min(PART, n - begin);
            find_rows(numbers_.index.view(), keys + begin, count, found);
            for (int64_t i = 0; i < count; ++i) {
                const int32_t slot = found[i] == NO_ROW ? 0 : slot_of_[found[i]];
                const double at = read_at_[size_t(slot)];
                slots[begin + i] = slot;
                if (read_at) read_at[begin + i] = at;
                oldest = std::min(oldest, at);
            }
        }
    }

    // Columns that have all slots that were found before.
    View view() {
        std::lock_guard<std::mutex> hold(mutex_);
        return view_;
    }

    // Adds rows of n distinct keys that were read at `now`, by column; the first of a table is of no key.
    void add(const int64_t* keys, int64_t n, const ArrowArray& rows, double now) {
        std::lock_guard<std::mutex> hold(mutex_);
        add_held(keys, n, rows, now);
    }

    // Notes that rows at some slots were read again; slot 0 is none.
    void touch(const int32_t* slots, int64_t n, double now) {
        std::lock_guard<std::mutex> hold(mutex_);
        for (int64_t i = 0; i < n; ++i)
            if (slots[i] > 0 && uint64_t(slots[i]) < read_at_.size()) read_at_[size_t(slots[i])] = now;
    }

    // Lets the rows of n keys be read again; null: all rows.
    void expire(const int64_t* keys, int64_t n) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (!keys) {
            std::fill(read_at_.begin(), read_at_.end(), NEVER);
            return;
        }
        for (int64_t i = 0; i < n; ++i) {
            const uint32_t number = find_row(numbers_.index.view(), keys[i]);
            if (number != NO_ROW) read_at_[size_t(slot_of_[number])] = NEVER;
        }
    }

    // Slots with garbage, keys, and the most that a column has of bytes of texts or items of lists.
    std::array<int64_t, 3> sizes() {
        std::lock_guard<std::mutex> hold(mutex_);
        int64_t extent = 0;
        for (const LookupColumn& column : columns_) extent = std::max(extent, column.extent());
        return {int64_t(read_at_.size()), int64_t(numbers_.count), extent};
    }

    // Copy of at most `most` live rows as they are now; slots: theirs here, behind slot 0. Only the keys are copied
    // under the lock.
    std::unique_ptr<LookupTable> moved(int32_t* slots, int64_t most) {
        auto made = std::make_unique<LookupTable>();
        std::vector<int64_t> keys;
        std::vector<double> read_at;
        View columns;
        int64_t count;
        {
            std::lock_guard<std::mutex> hold(mutex_);
            count = std::min<int64_t>(most, numbers_.count);
            keys.assign(keys_.begin(), keys_.begin() + count);
            slots[0] = 0;
            for (int64_t i = 0; i < count; ++i) {
                slots[i + 1] = slot_of_[size_t(i)];
                read_at.push_back(read_at_[size_t(slots[i + 1])]);
            }
            columns = view_;
        }
        for (const LookupColumn& column : *columns) {
            Arena arena;
            Arrays arrays{arena, nullptr, nullptr};
            made->columns_.push_back(column.emptied());
            made->columns_.back().append(*column.take(slots, count + 1, arrays));
        }
        made->view_ = std::make_shared<Columns>(made->columns_);
        made->read_at_.push_back(NEVER);
        for (int64_t i = 0; i < count; ++i) made->know(keys[size_t(i)], read_at[size_t(i)]);
        return made;
    }

  private:
    std::mutex mutex_;
    Numbers numbers_;
    Columns columns_;
    View view_;
    std::vector<int64_t> keys_;     // by number
    std::vector<int32_t> slot_of_;  // by number
    std::vector<double> read_at_;   // by slot

    void add_held(const int64_t* keys, int64_t n, const ArrowArray& rows, double now) {
        const int64_t before = int64_t(read_at_.size()), added = before ? n : n + 1;
        if (size_t(rows.n_children) != columns_.size() || rows.length != added) throw BadArray();
        Columns columns = columns_;  // they are taken when all of them have the rows
        for (size_t c = 0; c < columns.size(); ++c) {
            columns[c].cut(before);  // an add that had no memory may have left some
            columns[c].append(*rows.children[c]);
            if (columns[c].extent() > INT32_MAX) throw std::bad_alloc();
        }
        view_ = std::make_shared<Columns>(columns);
        columns_ = std::move(columns);
        if (!before) read_at_.push_back(NEVER);
        for (int64_t i = 0; i < n; ++i) know(keys[i], now);
    }

    // Gives the next slot to a key.
    void know(int64_t key, double now) {
        const int32_t slot = int32_t(read_at_.size());
        read_at_.push_back(now);
        const uint32_t number = numbers_.index.find_or_insert(key, numbers_.count);
        if (number == numbers_.count) {
            keys_.push_back(key);
            slot_of_.push_back(slot);
            ++numbers_.count;
        } else {
            slot_of_[number] = slot;
        }
    }
};

}  // namespace

}  // namespace livectr::request
