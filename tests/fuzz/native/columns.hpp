// Checks of a column that a compiled reader has collected (`extract/values.hpp`), as Python copies it.
#pragma once
#include "fuzz.hpp"
#include "stream/json_scan.hpp"

namespace fuzz {

// Copies a column of `rows` rows into memory of exactly its sizes, and checks that it is an Arrow column.
template <typename Sizes, typename Take>
void check_column(int64_t rows, bool list, bool text, bool utf8, int64_t width, const Sizes& sizes, const Take& take) {
    int64_t counts[3];
    sizes(counts);
    const auto [nulls, items, chars] = counts;
    REQUIRE(nulls >= 0 && nulls <= rows && items >= 0 && chars >= 0);
    const int64_t count = list ? items : rows;
    const auto bytes = [](int64_t size) { return std::make_unique<uint8_t[]>(size_t(size)); };
    const auto words = [](int64_t size) { return std::make_unique<int32_t[]>(size_t(size)); };
    const auto valid = bytes((rows + 7) / 8), numbers = bytes(width ? count * width : (count + 7) / 8),
               data = bytes(chars);
    const auto ends = words(rows + 1), item_ends = words(items + 1);
    take(valid.get(), list || text ? ends.get() : nullptr, list && text ? item_ends.get() : nullptr,
         text ? nullptr : numbers.get(), data.get());
    int64_t absent = 0;
    for (int64_t i = 0; i < rows; ++i) absent += !(valid[size_t(i / 8)] >> (i % 8) & 1);
    REQUIRE(absent == nulls);
    const auto rise = [](const int32_t* at, int64_t n, int64_t last) {
        REQUIRE(at[0] == 0 && at[n] == last);
        for (int64_t i = 0; i < n; ++i) REQUIRE(at[i] <= at[i + 1]);
    };
    if (list || text) rise(ends.get(), rows, list ? items : chars);
    if (list && text) rise(item_ends.get(), items, chars);
    if (!text || !utf8) return;
    const int32_t* const at = list ? item_ends.get() : ends.get();
    for (int64_t i = 0; i < count; ++i) REQUIRE(livectr::json::valid_utf8(data.get() + at[i], data.get() + at[i + 1]));
}

}  // namespace fuzz
