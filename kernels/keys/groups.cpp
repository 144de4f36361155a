#include <vector>

#include "runtime/hash.cuh"

namespace {

struct Column {
    const uint8_t* values;
    const int32_t* offsets;  // null: `width` bytes a row
    int64_t width;           // of an item

    const uint8_t* at(int64_t row) const { return values + (offsets ? offsets[row] : row) * width; }
    int64_t size(int64_t row) const { return (offsets ? offsets[row + 1] - offsets[row] : 1) * width; }
};

}  // namespace

// index[rows], first[rows]; returns the number of groups.
extern "C" int64_t group_rows(const Column* columns, int64_t count, int64_t rows, int32_t* index, int32_t* first) {
    const Column* const end = columns + count;
    uint64_t slots = 16;
    while (slots < 2 * static_cast<uint64_t>(rows)) slots *= 2;
    std::vector<int32_t> group_at(slots, -1);
    std::vector<uint64_t> hashes;  // of the groups
    const auto equal = [&](int64_t a, int64_t b) {
        for (const Column* c = columns; c != end; ++c) {
            const int64_t size = c->size(a);
            if (size != c->size(b) || (size && memcmp(c->at(a), c->at(b), size))) return false;
        }
        return true;
    };
    for (int64_t row = 0; row < rows; ++row) {
        uint64_t hash = 0;
        for (const Column* c = columns; c != end; ++c) hash = hash_bytes(c->at(row), c->size(row), hash);
        uint64_t slot = hash & (slots - 1);
        int32_t group;
        while ((group = group_at[slot]) >= 0 && !(hashes[group] == hash && equal(first[group], row))) {
            slot = (slot + 1) & (slots - 1);
        }
        if (group < 0) {
            group = group_at[slot] = hashes.size();
            hashes.push_back(hash);
            first[group] = row;
        }
        index[row] = group;
    }
    return hashes.size();
}
