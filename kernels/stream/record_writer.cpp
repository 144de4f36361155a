#include <cstdint>
#include <cstring>

// Writes a number that is not negative, in zigzag code.
static uint8_t* varint(uint8_t* p, int64_t value) {
    uint64_t word = uint64_t(value) << 1;
    for (; word >= 0x80; word >>= 7) *p++ = uint8_t(word) | 0x80;
    *p++ = uint8_t(word);
    return p;
}

static int64_t varint_size(int64_t value) {
    int64_t size = 1;
    for (uint64_t word = uint64_t(value) << 1; word >= 0x80; word >>= 7) ++size;
    return size;
}

extern "C" {

// Writes n records in the order of rows[n], which has those of a partition together; partition[n] is by row.
// at_key, at_value [n + 1]: where keys and values begin; a key with no_key is null. A batch has at most
// `limit` bytes, or one record. batches[4, n]: partition, records, start and stop in `out`. Returns their
// number.
int64_t records_write(const uint8_t* keys, const int64_t* at_key, const bool* no_key, const uint8_t* values,
                      const int64_t* at_value, const int32_t* partition, const int64_t* rows, int64_t n, int64_t limit,
                      uint8_t* out, int64_t* batches) {
    int64_t made = -1, records = 0;
    uint8_t *p = out, *begin = out;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t row = rows[i];
        const int64_t key = at_key[row + 1] - at_key[row], value = at_value[row + 1] - at_value[row];
        // Attributes, the time's delta, the count of headers and a null key are a byte each.
        const int64_t rest = 3 + (no_key[row] ? 1 : varint_size(key) + key) + varint_size(value) + value;
        int64_t size = rest + varint_size(records);
        if (i == 0 || partition[row] != batches[made] || p + varint_size(size) + size - begin > limit) {
            batches[++made] = partition[row];
            batches[n + made] = records = 0;
            batches[2 * n + made] = p - out;
            begin = p;
            size = rest + 1;
        }
        p = varint(p, size);
        *p++ = 0;
        *p++ = 0;
        p = varint(p, records++);
        if (no_key[row]) {
            *p++ = 1;  // -1
        } else {
            p = varint(p, key);
            std::memcpy(p, keys + at_key[row], key);
            p += key;
        }
        p = varint(p, value);
        std::memcpy(p, values + at_value[row], value);
        p += value;
        *p++ = 0;
        batches[n + made] = records;
        batches[3 * n + made] = p - out;
    }
    return made + 1;
}
}
