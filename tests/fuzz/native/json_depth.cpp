// Texts, one a line, that are nested too deeply: the quick bound gives the result of the count.
#include "fuzz.hpp"
#include "stream/json_depth.cpp"

FUZZ_TARGET(json_depth) {
    const int64_t limit = input.below(8);
    const fuzz::Lines lines(input.rest());
    std::vector<int64_t> rows(size_t(lines.count()), -1), wanted;
    const int64_t found =
        json_deeper(lines.data.data(), lines.starts.data(), lines.stops.data(), lines.count(), limit, rows.data());
    for (int64_t i = 0; i < lines.count(); ++i) {
        const int64_t at = lines.starts[size_t(i)];
        if (is_deeper(lines.data.data() + at, lines.stops[size_t(i)] - at, limit)) wanted.push_back(i);
    }
    REQUIRE(found == int64_t(wanted.size()) && std::equal(wanted.begin(), wanted.end(), rows.begin()));
}
