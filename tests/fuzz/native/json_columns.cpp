// JSON objects, one a line, into columns of all types: rows are what the reader says is plain, and Arrow can hold them.
#include "columns.hpp"
#include "stream/json_columns.cpp"

namespace {

struct Wanted {
    std::vector<std::string> path;
    livectr::json::Type type;
    bool list, required;
};

const std::vector<Wanted> WANTED = {
    {{"i"}, livectr::json::INT64, false, true},        {{"w"}, livectr::json::INT32, false, false},
    {{"d"}, livectr::json::FLOAT64, false, false},     {{"f"}, livectr::json::FLOAT32, false, false},
    {{"b"}, livectr::json::BOOL, false, false},        {{"s"}, livectr::json::STRING, false, false},
    {{"li"}, livectr::json::INT64, true, false},       {{"lb"}, livectr::json::BOOL, true, false},
    {{"ls"}, livectr::json::STRING, true, false},      {{"o", "n"}, livectr::json::INT32, false, false},
    {{"o", "s"}, livectr::json::STRING, false, false}, {{"o", "q", "l"}, livectr::json::FLOAT32, true, false},
};

}  // namespace

FUZZ_TARGET(json_columns) {
    using namespace livectr::json;
    const int64_t depth = 1 + input.below(16);
    const std::unique_ptr<Reader, decltype(&json_delete)> reader(json_new(depth), json_delete);
    for (const Wanted& wanted : WANTED) {
        std::string path;
        std::vector<int64_t> sizes;
        for (const std::string& name : wanted.path) path += name, sizes.push_back(int64_t(name.size()));
        json_column(reader.get(), path.data(), sizes.data(), int64_t(sizes.size()), wanted.type, wanted.list,
                    wanted.required);
    }
    const fuzz::Lines lines(input.rest());
    for (int again = 0; again < 2; ++again) {  // a reader keeps its memory, and the places of names
        std::vector<uint8_t> plain(size_t(lines.count()), 9);
        const int64_t rows = json_read(reader.get(), lines.data.data(), lines.starts.data(), lines.stops.data(),
                                       lines.count(), plain.data());
        for (const uint8_t one : plain) REQUIRE(one <= 1);
        REQUIRE(rows == std::count(plain.begin(), plain.end(), 1));
        for (size_t i = 0; i < WANTED.size(); ++i) {
            const Type type = WANTED[i].type;
            const int64_t width = type == BOOL ? 0 : type == INT32 || type == FLOAT32 ? 4 : 8;
            fuzz::check_column(
                rows, WANTED[i].list, type == STRING, true, width,
                [&](int64_t* to) { json_sizes(reader.get(), int64_t(i), to); },
                [&](auto... to) { json_take(reader.get(), int64_t(i), to...); });
        }
    }
}
