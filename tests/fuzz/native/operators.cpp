// Feature operators on arbitrary bytes. What an operator writes is what it counts, decimals are the C library's, and keys
// of many strings are the keys of each.
#include "fuzz.hpp"
#include "extract/rowblock.hpp"
#include "operators/json.cuh"
#include "operators/features.cuh"
#include "operators/text.cuh"

#include <charconv>
#include <string>

namespace {

Str str(const fuzz::Exact& bytes) { return Str{bytes.data(), int32_t(bytes.size)}; }

// Runs an operator to measure and to write, into memory of exactly the measured size. Returns the strings.
template <typename Operator>
std::vector<std::string> written(Operator operate) {
    CountStrings count;
    operate(count);
    const auto bytes = std::make_unique<uint8_t[]>(size_t(count.bytes));
    const auto items = std::make_unique<Str[]>(size_t(count.items));
    WriteStrings sink{items.get(), bytes.get(), bytes.get(), Str{nullptr, 0}};
    operate(sink);
    REQUIRE(sink.items == items.get() + count.items);
    REQUIRE(sink.at <= bytes.get() + count.bytes);
    std::vector<std::string> found;
    for (int64_t i = 0; i < count.items; ++i)
        found.emplace_back(reinterpret_cast<const char*>(items[size_t(i)].data), size_t(items[size_t(i)].size));
    return found;
}

void decimals(Str s) {
    const Decimal decimal = read_decimal(s);
    const double found = number_of<double>(decimal, s);
    number_of<int64_t>(decimal, s), number_of<int32_t>(decimal, s), number_of<float>(decimal, s);
    cast_text<double>(s), cast_text<int64_t>(s);
    const char *first = reinterpret_cast<const char*>(s.data), *const last = first + s.size;
    if (!decimal.valid || s.size > 400) return;
    if (*first == '+') ++first;
    const std::string text(first, last);
    const double wanted = std::strtod(text.c_str(), nullptr);
    REQUIRE(std::memcmp(&found, &wanted, sizeof found) == 0);
}

void strings(Str s, Str other, int64_t start, int64_t length, int32_t n) {
    std::string all;
    for (const std::string& piece : written([&](auto& sink) { split(s, other, sink); })) {
        REQUIRE(!piece.empty());
        all += piece;
    }
    REQUIRE(all.size() <= size_t(s.size));
    written([&](auto& sink) { character_ngrams(s, n, sink); });
    written([&](auto& sink) { byte_ngrams(s, n, sink); });
    const auto low = written([&](auto& sink) { lower(s, sink), sink.next(); });
    REQUIRE(low[0].size() == size_t(s.size));
    const auto both = written([&](auto& sink) { concat(sink, s, other, s), sink.next(); });
    REQUIRE(both[0].size() == size_t(2 * s.size + other.size));
    const Str part = substring_of(s, start, length);
    REQUIRE(part.size >= 0 && part.data >= s.data && part.data + part.size <= s.data + s.size);
    REQUIRE(contains(s, other) == (std::string_view(reinterpret_cast<const char*>(s.data), size_t(s.size))
                                       .find(std::string_view(reinterpret_cast<const char*>(other.data),
                                                              size_t(other.size))) != std::string_view::npos));
    REQUIRE(!starts_with(s, other) || contains(s, other));
    characters(s), less(s, other), find(s, other.data[0], 0);
}

void json(Str s, Str path) {
    const JsonValue value = json_find(s, path);
    REQUIRE(value.raw.size >= 0 && value.raw.data >= s.data && value.raw.data + value.raw.size <= s.data + s.size);
    written([&](auto& sink) { json_text(s, path, sink), sink.next(); });
    json_number<double>(s, path), json_number<int64_t>(s, path), json_number<int32_t>(s, path), json_bool(s, path);
}

// Keys of an input's lines, each in memory of its own.
void keys(fuzz::Input& input) {
    std::vector<fuzz::Exact> lines;
    std::vector<Str> views;
    while (!input.empty() && lines.size() < 64) lines.push_back(input.until('\n'));
    for (const fuzz::Exact& line : lines) views.push_back(str(line));
    std::vector<int64_t> many(views.size());
    livectr::keys(views.data(), int64_t(views.size()), many.data());
    for (size_t i = 0; i < views.size(); ++i) REQUIRE(many[i] == key(views[i]));
}

void gram_keys(Str s, int32_t n) {
    const auto grams = written([&](auto& sink) { character_ngrams(s, n, sink); });
    livectr::GramKeys made(n);
    const int32_t count = made.begin(s);
    REQUIRE(count == int32_t(grams.size()));
    std::vector<int64_t> found(grams.size() + livectr::LANES);
    made.keys(count, found.data());
    for (size_t i = 0; i < grams.size(); ++i)
        REQUIRE(found[i] == key(Str{reinterpret_cast<const uint8_t*>(grams[i].data()), int32_t(grams[i].size())}));
}

}  // namespace

FUZZ_TARGET(operators) {
    switch (input.below(5)) {
        case 0: {
            const fuzz::Exact text = input.rest();
            return decimals(str(text));
        }
        case 1: {
            const int64_t start = input.number<int8_t>(), length = input.number<uint8_t>();
            const int32_t n = int32_t(1 + input.below(5));
            const fuzz::Exact other = input.until('\n'), text = input.rest();
            if (other.size == 0) return;  // a separator has a byte: ingest/operators checks it
            return strings(str(text), str(other), start, length, n);
        }
        case 2: {
            const fuzz::Exact path = input.until('\n'), text = input.rest();
            if (path.size == 0) return;  // as above
            return json(str(text), str(path));
        }
        case 3: return keys(input);
        default: {
            const int32_t n = int32_t(1 + input.below(4));
            const fuzz::Exact text = input.rest();
            return gram_keys(str(text), n);
        }
    }
}
