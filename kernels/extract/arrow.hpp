// Root columns on the host: Arrow arrays, read in place (zero-copy). Arrays are untrusted: offsets that fall or are
// negative (int32 that wrapped around), and indices beyond a dictionary throw BadArray.
#pragma once
#include "extract/rowblock.hpp"

// Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), ABI-stable.
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

namespace livectr {

struct BadArray {};

// Numbers without nulls are read in place; other columns become pointers, or copies of a block, without nulls,
// so that operators see roots like any other column.

// `count` bits from number `first` on, at most 64; no byte behind them is read.
inline uint64_t bits_of(const uint8_t* bits, int64_t first, int64_t count) {
    const int64_t shift = first & 7, bytes = (shift + count + 7) >> 3;
    uint64_t found = 0;
    memcpy(&found, bits + (first >> 3), size_t(std::min<int64_t>(bytes, 8)));
    found >>= shift;
    if (bytes > 8) found |= uint64_t(bits[(first >> 3) + 8]) << (64 - shift);
    return count < 64 ? found & ((uint64_t(1) << count) - 1) : found;
}

// Positions of a block's rows in the array of their values: consecutive, or arbitrary where the column is
// dictionary-encoded (a look-up column: its table is the dictionary).
class Places {
  public:
    const ArrowArray& source;

    Places(const ArrowArray& array, int64_t first)
        : source(array.dictionary != nullptr ? *array.dictionary : array), first_(array.offset + first) {
        const auto validity = [](const ArrowArray& column) {
            return column.null_count == 0 ? nullptr : static_cast<const uint8_t*>(column.buffers[0]);
        };
        valid_ = validity(source);
        if (array.dictionary == nullptr) return;
        index_ = static_cast<const int32_t*>(array.buffers[1]);
        index_valid_ = validity(array);
    }
    // First row, if all rows are valid and consecutive; else -1.
    int64_t run() const { return index_ == nullptr && valid_ == nullptr ? first_ : -1; }
    // First row, if the next `rows` rows are valid and consecutive; else -1.
    int64_t run(int64_t rows) const {
        if (run() >= 0 || !consecutive()) return run();
        bool any = false;
        each_null(rows, [&](int64_t) { any = true; });
        return any ? -1 : first_;
    }
    bool consecutive() const { return index_ == nullptr; }
    int64_t first() const { return first_; }
    // Calls null(i) for the null rows of the next `rows`, which are consecutive.
    template <typename Null>
    void each_null(int64_t rows, Null null) const {
        if (valid_ == nullptr) return;
        for (int64_t i = 0; i < rows; i += 64) {
            const int64_t count = std::min<int64_t>(64, rows - i);
            uint64_t nulls = ~bits_of(valid_, first_ + i, count);
            if (count < 64) nulls &= (uint64_t(1) << count) - 1;
            for (; nulls != 0; nulls &= nulls - 1) null(i + __builtin_ctzll(nulls));
        }
    }
    // Position of row i of the block; -1: null.
    int64_t operator()(int64_t i) const {
        int64_t row = first_ + i;
        if (index_ != nullptr) {
            if (index_valid_ != nullptr && !bit_at(index_valid_, row)) return -1;
            row = in_dictionary(index_[row]);
        }
        return valid_ == nullptr || bit_at(valid_, row) ? row : -1;
    }
    // out[i] = value(row i of the block), or `fill`; no check per row where no row is null.
    template <typename T, typename Value>
    void gather(T* out, int64_t rows, Value value, T fill) const {
        if (valid_ != nullptr || index_valid_ != nullptr) {
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t row = (*this)(i);
                out[i] = row < 0 ? fill : value(row);
            }
        } else if (index_ == nullptr) {
            for (int64_t i = 0; i < rows; ++i) out[i] = value(first_ + i);
        } else {
            const int32_t* const index = index_ + first_;
            const int64_t start = source.offset;
            uint64_t largest = 0;  // negative numbers become the largest
            for (int64_t i = 0; i < rows; ++i) largest = std::max(largest, uint64_t(int64_t(index[i])));
            if (rows > 0 && largest >= uint64_t(source.length)) throw BadArray();
            for (int64_t i = 0; i < rows; ++i) out[i] = value(start + index[i]);
        }
    }

  private:
    int64_t in_dictionary(int32_t index) const {
        if (uint64_t(int64_t(index)) >= uint64_t(source.length)) throw BadArray();
        return source.offset + index;
    }

    int64_t first_;
    const uint8_t *valid_ = nullptr, *index_valid_ = nullptr;
    const int32_t* index_ = nullptr;
};

template <typename T>
T* room(HostPool& pool, int64_t count) {
    return reinterpret_cast<T*>(pool.allocate(std::max<int64_t>(count, 1) * int64_t(sizeof(T))));
}

template <typename T>
const T* buffer(const ArrowArray& array, int64_t number) {
    return static_cast<const T*>(array.buffers[number]);
}

// Row → value of an array that holds values: numbers, bits, strings. wrong: negative after a bad string.
template <typename T>
auto values_of(const ArrowArray& array, int32_t& wrong) {
    if constexpr (std::is_same_v<T, bool>) {
        return [bits = buffer<uint8_t>(array, 1)](int64_t row) { return bit_at(bits, row); };
    } else if constexpr (std::is_same_v<T, Str>) {
        return [&wrong, offsets = buffer<int32_t>(array, 1), bytes = buffer<uint8_t>(array, 2)](int64_t row) {
            const Str found{bytes + offsets[row], int32_t(uint32_t(offsets[row + 1]) - uint32_t(offsets[row]))};
            wrong |= offsets[row] | offsets[row + 1] | found.size;
            __builtin_prefetch(found.data);  // rows of a table lie apart
            return found;
        };
    } else {
        return [values = buffer<T>(array, 1)](int64_t row) { return values[row]; };
    }
}

template <typename T>
constexpr bool LIES_AS_IT_IS = !std::is_same_v<T, bool> && !std::is_same_v<T, Str>;

template <typename T>
void load(Values<T>& column, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool, T fill = T()) {
    const Places place(array, first);
    int32_t wrong = 0;
    if constexpr (LIES_AS_IT_IS<T>) {
        if (place.run() >= 0) {
            column.values = const_cast<T*>(buffer<T>(place.source, 1)) + place.run();
            return;
        }
    }
    column.values = room<T>(pool, rows);
    place.gather(column.values, rows, values_of<T>(place.source, wrong), fill);
    if (wrong < 0) throw BadArray();
}

template <typename T>
void load(Lists<T>& column, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool) {
    const Places place(array, first);
    const ArrowArray& items = *place.source.children[0];
    const int32_t* const offsets = buffer<int32_t>(place.source, 1);
    const uint8_t* const valid = items.null_count == 0 ? nullptr : buffer<uint8_t>(items, 0);
    int32_t wrong = 0;
    const auto value = values_of<T>(items, wrong);
    column.values = room<Span<T>>(pool, rows);
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = place(i);
        if (row < 0 || offsets[row + 1] == offsets[row]) {
            column.values[i] = Span<T>{nullptr, 0};
            continue;
        }
        if (offsets[row] < 0 || offsets[row + 1] < offsets[row] || offsets[row + 1] > items.length) throw BadArray();
        const int64_t begin = items.offset + offsets[row];
        const int32_t size = offsets[row + 1] - offsets[row];
        if constexpr (LIES_AS_IT_IS<T>) {
            // The last lists are copied: operators read up to LANES - 1 items behind a list.
            if (valid == nullptr && offsets[row + 1] + LANES <= items.length) {
                column.values[i] = Span<T>{const_cast<T*>(buffer<T>(items, 1)) + begin, size};
                continue;
            }
        }
        T* const copy = room<T>(pool, size);
        for (int32_t k = 0; k < size; ++k) {
            copy[k] = valid == nullptr || bit_at(valid, begin + k) ? value(begin + k) : T();
        }
        column.values[i] = Span<T>{copy, size};
    }
    if (wrong < 0) throw BadArray();
}

// Broadcast: every row has the same value.
template <typename T>
void spread(const Values<T>& out, const Values<T>& shared, int64_t rows) {
    std::fill_n(out.values, rows, shared.values[0]);
}
template <typename T>
void spread(const Lists<T>& out, const Lists<T>& shared, int64_t rows) {
    std::fill_n(out.values, rows, shared.values[0]);
}
template <typename T>
void load_shared(Values<T>& column, const Values<T>& shared, int64_t rows, HostPool& pool) {
    column.values = room<T>(pool, rows);
    spread(column, shared, rows);
}
template <typename T>
void load_shared(Lists<T>& column, const Lists<T>& shared, int64_t rows, HostPool& pool) {
    column.values = room<Span<T>>(pool, rows);
    spread(column, shared, rows);
}

// Bytes, or values, that a row reads of a column of strings or lists.
template <typename T>
int64_t extent(const Values<T>&) {
    return 0;
}
inline int64_t extent(const Values<Str>& shared) { return shared.values[0].size; }
template <typename T>
int64_t extent(const Lists<T>& shared) {
    return shared.values[0].size;
}
inline int64_t extent(const Lists<Str>& shared) {
    int64_t total = shared.values[0].size;
    for (int32_t i = 0; i < shared.values[0].size; ++i) total += shared.values[0].data[i].size;
    return total;
}

}  // namespace livectr
