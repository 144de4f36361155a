// Calls of a row log against a map: each read gives the last row that was written.
#include "fuzz.hpp"
#include "tiers/row_log.cpp"

#include <map>

namespace {

constexpr int64_t WIDTH = 9;

struct Named {
    std::vector<uint32_t> tables;
    std::vector<int64_t> keys;
    int64_t count() const { return int64_t(keys.size()); }
};

Named names(fuzz::Input& input) {
    Named found;
    for (int64_t n = input.below(40); n > 0; --n) {
        found.tables.push_back(uint32_t(input.below(3)));
        found.keys.push_back(input.number<int8_t>());
    }
    return found;
}

}  // namespace

FUZZ_TARGET(row_log) {
    const int file = memfd_create("rows", 0);
    REQUIRE(file >= 0);
    RowLog* log = nullptr;
    REQUIRE(log_new(file, WIDTH, 16 + 16 * input.number<uint8_t>(), &log) == 0);  // segments of 1 to 128 rows
    std::map<std::pair<uint32_t, int64_t>, std::vector<char>> model;
    while (!input.empty()) {
        const int64_t call = input.below(8);
        if (call <= 3) {
            const Named some = names(input);
            std::vector<char> rows(size_t(WIDTH * some.count()));
            for (int64_t i = 0; i < some.count(); ++i) {
                char* const row = rows.data() + WIDTH * i;
                std::memset(row, int(input.number<uint8_t>()), size_t(WIDTH));
                model[{some.tables[size_t(i)], some.keys[size_t(i)]}] = std::vector<char>(row, row + WIDTH);
            }
            REQUIRE(log_put(log, some.tables.data(), some.keys.data(), some.count(), rows.data()) == some.count());
        } else if (call == 4) {
            const Named some = names(input);
            REQUIRE(log_erase(log, some.tables.data(), some.keys.data(), some.count()) == some.count());
            for (int64_t i = 0; i < some.count(); ++i) model.erase({some.tables[size_t(i)], some.keys[size_t(i)]});
        } else if (call == 5) {
            const uint32_t table = uint32_t(input.below(4));
            REQUIRE(log_clear(log, table) == 0);
            for (auto at = model.begin(); at != model.end();)
                at = at->first.first == table ? model.erase(at) : std::next(at);
        } else if (call == 6) {
            const Named some = names(input);
            std::vector<uint8_t> found(size_t(some.count()));
            std::vector<char> rows(size_t(WIDTH * some.count()));
            const int64_t count =
                log_get(log, some.tables.data(), some.keys.data(), some.count(), found.data(), rows.data());
            int64_t at = 0;
            for (int64_t i = 0; i < some.count(); ++i) {
                const auto row = model.find({some.tables[size_t(i)], some.keys[size_t(i)]});
                REQUIRE((row != model.end()) == bool(found[size_t(i)]));
                if (row == model.end()) continue;
                REQUIRE(std::equal(row->second.begin(), row->second.end(), rows.begin() + WIDTH * at++));
            }
            REQUIRE(count == at);
        } else {
            for (uint32_t table = 0; table < 3; ++table) {
                const int64_t n = log_rows_of(log, table);
                std::vector<uint32_t> slots(static_cast<size_t>(n));
                std::vector<int64_t> keys(static_cast<size_t>(n));
                std::vector<char> rows(size_t(WIDTH * n));
                REQUIRE(log_slots(log, table, slots.data()) == 0);
                REQUIRE(log_read(log, slots.data(), n, keys.data(), rows.data()) == n);
                for (int64_t i = 0; i < n; ++i) {
                    const auto row = model.find({table, keys[size_t(i)]});
                    REQUIRE(row != model.end());
                    REQUIRE(std::equal(row->second.begin(), row->second.end(), rows.begin() + WIDTH * i));
                }
            }
        }
        REQUIRE(log_size(log) == int64_t(model.size()));
    }
    log_delete(log);
    close(file);
}
