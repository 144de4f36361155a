// Outputs of a block of rows: keys in pieces that stay where they were computed, dense numbers in their places.
#pragma once
#include "extract/arrow.hpp"

namespace livectr {

// Results of a block: keys of all fields, field after field, in pieces that stay where they were computed.
struct BlockKeys {
    struct Piece {
        const int64_t* keys;
        int64_t size;
    };
    HostPool memory;
    std::vector<Piece> pieces;
    std::vector<size_t> ends;      // of each field's pieces
    std::vector<int64_t> sizes;    // keys of each field
    std::vector<int32_t> lengths;  // int32[LISTS, rows]

    void begin(int64_t lists, int64_t rows) {
        pieces.clear();
        ends.clear();
        sizes.clear();
        lengths.resize(size_t(lists * rows));
    }
    void end_field(int64_t size) {
        ends.push_back(pieces.size());
        sizes.push_back(size);
    }
    int64_t keys() const {
        int64_t total = 0;
        for (const int64_t size : sizes) total += size;
        return total;
    }
};

// Extracts a block's outputs from its columns.
struct Emitter {
    BlockKeys& out;
    int64_t first, rows, batch_rows, dense_width;
    float* dense;                     // null: not wanted
    int64_t* observed;                // null: not wanted
    const uint8_t* fields = nullptr;  // per field 1 if it is shared; null: all are wanted
    bool shared = false;              // fields that are wanted: shared or not
    int64_t list = 0, replaced = 0, number_of_field = 0;

    bool wanted() {
        const int64_t f = number_of_field++;
        return fields == nullptr || (fields[f] != 0) == shared;
    }

    // Keys lie in memory that outlives the block.
    void field(const Values<int64_t>& column) {
        if (!wanted()) return;
        out.pieces.push_back({column.values, rows});
        out.end_field(rows);
    }
    template <typename Column>
    void field(const Column& column) {
        if (!wanted()) return;
        int64_t* const keys = room<int64_t>(out.memory, rows);
        for (int64_t row = 0; row < rows; ++row) keys[row] = int64_t(column.at(row));
        out.pieces.push_back({keys, rows});
        out.end_field(rows);
    }
    // Keys of a block mostly lie one behind the other: they stay there.
    void field(const Lists<int64_t>& column) {
        if (!wanted()) return;
        int32_t* const lengths = out.lengths.data() + list++ * rows;
        BlockKeys::Piece piece{nullptr, 0};
        int64_t before = 0;  // keys of earlier pieces
        for (int64_t row = 0; row < rows; ++row) {
            const Span<int64_t> span = column.values[row];
            lengths[row] = span.size;
            if (span.data != piece.keys + piece.size && span.size > 0) {
                if (piece.size > 0) out.pieces.push_back(piece);
                before += piece.size;
                piece = {span.data, 0};
            }
            piece.size += span.size;
        }
        if (piece.size > 0) out.pieces.push_back(piece);
        out.end_field(before + piece.size);
    }
    template <typename T>
    void field(const Lists<T>& column) {
        if (!wanted()) return;
        int32_t* const lengths = out.lengths.data() + list++ * rows;
        int64_t total = 0;
        for (int64_t row = 0; row < rows; ++row) total += lengths[row] = column.values[row].size;
        int64_t* key = room<int64_t>(out.memory, total);
        out.pieces.push_back({key, total});
        for (int64_t row = 0; row < rows; ++row) {
            const auto items = column.row(row);
            for (int32_t i = 0; i < items.size(); ++i) *key++ = int64_t(items.at(i));
        }
        out.end_field(total);
    }

    // A number that is not finite would make every weight NaN: it becomes 0 and is counted.
    template <typename Column>
    void number(const Column& column, int64_t place) {
        if (dense == nullptr) return;
        for (int64_t row = 0; row < rows; ++row) put(row, place, float(column.at(row)));
    }
    // A list of `width` numbers; missing ones are 0.
    template <typename Column>
    void numbers(const Column& column, int64_t place, int64_t width) {
        if (dense == nullptr) return;
        for (int64_t row = 0; row < rows; ++row) {
            const auto items = column.row(row);
            for (int64_t i = 0; i < width; ++i) {
                put(row, place + i, i < items.size() ? float(items.at(int32_t(i))) : 0.0f);
            }
        }
    }
    template <typename Word, typename Column>
    void words(const Column& column, int64_t place) {
        if (observed == nullptr) return;
        for (int64_t row = 0; row < rows; ++row) {
            const Word word = Word(column.at(row));
            memcpy(observed + place * batch_rows + first + row, &word, 8);
        }
    }

  private:
    void put(int64_t row, int64_t place, float value) {
        const bool finite = value - value == 0;
        dense[(first + row) * dense_width + place] = finite ? value : 0;
        replaced += !finite;
    }
};

}  // namespace livectr
