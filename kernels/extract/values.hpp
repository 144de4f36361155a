// Values of a column, collected row by row and then copied into Arrow's layout.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace livectr::stream {

enum Form : int32_t { BIT, WORD4, WORD8, CHARS };

constexpr int64_t MOST = std::numeric_limits<int32_t>::max();  // Arrow's offsets are int32

// Numbers as words; texts as chars with their ends; lists with the ends of their items.
struct Values {
    Form form = WORD8;
    bool list = false;
    std::vector<uint64_t> words;
    std::vector<uint8_t> chars, valid;
    std::vector<int32_t> ends, item_ends;
    int64_t items = 0, size = 0, nulls = 0;  // of all rows: items of lists, chars

    bool text() const { return form == CHARS; }

    void clear(int64_t rows) {
        items = size = nulls = 0;
        valid.resize(size_t(rows));
        if (list || text()) ends.resize(size_t(rows + 1)), ends[0] = 0;
        if (list && text()) item_ends.assign(1, 0);
        if (!list && !text()) words.resize(size_t(rows));
    }

    // Sets the number of a row, or the next item of its list; `items` is not changed.
    void word(int64_t row, uint64_t value) {
        if (!list) {
            words[size_t(row)] = value;
            return;
        }
        if (size_t(items) >= words.size()) words.resize(2 * size_t(items) + 64);
        words[size_t(items)] = value;
    }

    void word_if_scalar(int64_t row) {
        if (!list && !text()) words[size_t(row)] = 0;
    }

    uint8_t* room(int64_t more) {
        if (size_t(size + more) > chars.size()) chars.resize(2 * size_t(size + more) + 64);
        return chars.data() + size;
    }

    // Ends a row, whose `valid` is set.
    void finish(int64_t row) {
        if (list || text()) ends[size_t(row + 1)] = int32_t(list ? items : size);
        nulls += !valid[size_t(row)];
    }

    // Forgets what an unfinished row has added.
    void rewind(int64_t row) {
        if (!list && !text()) return;
        const int32_t before = ends[size_t(row)];
        if (list) {
            items = before;
            if (text()) item_ends.resize(size_t(before) + 1), size = item_ends.back();
        } else {
            size = before;
        }
    }

    // Sizes of the results: nulls, items of all lists, chars.
    void sizes(int64_t* to) const { to[0] = nulls, to[1] = items, to[2] = size; }

    // Copies the results: valid, a bitmap; ends[rows + 1] of lists or texts; item_ends[items + 1] of texts in lists;
    // numbers of the form's width, bools as a bitmap; chars. Null pointers are left out.
    void take(int64_t rows, uint8_t* valid_to, int32_t* ends_to, int32_t* item_ends_to, void* numbers,
              uint8_t* chars_to) const {
        const int64_t count = list ? items : rows;
        const auto copy = [](void* to, const void* from, int64_t bytes) {
            if (bytes) std::memcpy(to, from, size_t(bytes));  // of nothing: the vector has no memory
        };
        const auto bits = [](uint8_t* to, int64_t n, const auto* values) {
            std::memset(to, 0, size_t((n + 7) / 8));
            for (int64_t i = 0; i < n; ++i) to[i / 8] |= uint8_t((values[i] != 0) << (i % 8));
        };
        if (valid_to) bits(valid_to, rows, valid.data());
        if (ends_to) copy(ends_to, ends.data(), 4 * (rows + 1));
        if (item_ends_to) copy(item_ends_to, item_ends.data(), 4 * (count + 1));
        if (chars_to) copy(chars_to, chars.data(), size);
        if (!numbers) return;
        if (form == BIT) {
            bits(static_cast<uint8_t*>(numbers), count, words.data());
        } else if (form == WORD8) {
            copy(numbers, words.data(), 8 * count);
        } else {
            auto* const to = static_cast<uint32_t*>(numbers);
            for (int64_t i = 0; i < count; ++i) to[i] = uint32_t(words[size_t(i)]);
        }
    }
};

}  // namespace livectr::stream
