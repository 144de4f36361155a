// Records of a Kafka batch: places lie within the data and offsets ascend; written records are read as they were.
#include "fuzz.hpp"
#include "stream/record_writer.cpp"
#include "stream/records.cpp"

namespace {

void read(const fuzz::Exact& data, int64_t base, int64_t base_ms, int64_t count) {
    std::vector<int64_t> out(size_t(6 * count));
    if (!records_read(data.data(), data.size, base, base_ms, count, out.data())) return;
    for (int64_t i = 0; i < count; ++i) {
        REQUIRE(i == 0 ? out[0] >= base : out[size_t(i)] > out[size_t(i - 1)]);
        for (const int64_t part : {1, 3}) {
            const int64_t start = out[size_t(part * count + i)], stop = out[size_t((part + 1) * count + i)];
            REQUIRE(start >= 0 && start <= data.size && stop <= data.size && stop >= start - 1);
        }
    }
}

// Writes the lines of the input as records, each with its first byte as key, or none.
void write_and_read(const fuzz::Lines& lines) {
    const int64_t n = lines.count();
    std::vector<int64_t> at_key(1), at_value(1), rows, batches(size_t(4 * n));
    std::vector<uint8_t> keys(1), values(1);  // a byte that belongs to nothing: never a null pointer
    const auto no_key = std::make_unique<bool[]>(size_t(n));
    const std::vector<int32_t> partition(static_cast<size_t>(n), 0);
    keys.clear(), values.clear();
    for (int64_t i = 0; i < n; ++i) {
        const uint8_t *const begin = lines.data.data() + lines.starts[size_t(i)], *const end = lines.data.data() +
                                                                                               lines.stops[size_t(i)];
        no_key[size_t(i)] = begin == end;
        if (begin < end) keys.push_back(*begin);
        values.insert(values.end(), begin, end);
        at_key.push_back(int64_t(keys.size())), at_value.push_back(int64_t(values.size()));
        rows.push_back(i);
    }
    std::vector<uint8_t> out(keys.size() + values.size() + size_t(n) * 64);
    const int64_t made = records_write(keys.data(), at_key.data(), no_key.get(), values.data(), at_value.data(),
                                       partition.data(), rows.data(), n, 1 << 20, out.data(), batches.data());
    REQUIRE(made == 1 && batches[size_t(n)] == n);
    const fuzz::Exact data(out.data(), batches[size_t(3 * n)]);
    std::vector<int64_t> found(size_t(6 * n));
    REQUIRE(records_read(data.data(), data.size, 7, 0, n, found.data()));
    for (int64_t i = 0; i < n; ++i) {
        const size_t at = size_t(i);
        REQUIRE(found[at] == 7 + i);
        const int64_t key = found[at + size_t(2 * n)] - found[at + size_t(n)];
        REQUIRE(key == (no_key[at] ? -1 : 1));
        const int64_t start = found[at + size_t(3 * n)], size = found[at + size_t(4 * n)] - start;
        REQUIRE(size == at_value[at + 1] - at_value[at]);
        REQUIRE(size == 0 || std::memcmp(data.data() + start, values.data() + at_value[at], size_t(size)) == 0);
    }
}

}  // namespace

FUZZ_TARGET(records) {
    const int64_t base = input.number<int64_t>(), base_ms = input.number<int64_t>();
    const uint8_t count = input.number<uint8_t>();
    if (count == 255) write_and_read(fuzz::Lines(input.rest()));
    else read(input.rest(), base, base_ms, count);
}
