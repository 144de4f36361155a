#include <cstdint>

// Reads a varint in zigzag code; false at the end, or for more than 64 bits.
static bool varint(const uint8_t*& p, const uint8_t* end, int64_t& value) {
    uint64_t word = 0;
    for (int shift = 0; shift < 64 && p < end; shift += 7) {
        const uint8_t byte = *p++;
        word |= uint64_t(byte & 0x7F) << shift;
        if (byte < 0x80) {
            value = static_cast<int64_t>(word >> 1) ^ -static_cast<int64_t>(word & 1);
            return true;
        }
    }
    return false;
}

// Bytes of a length that may be -1, for null; at and to: where they are, to < at for null.
static bool bytes(const uint8_t* start, const uint8_t*& p, const uint8_t* end, int64_t& at, int64_t& to) {
    int64_t size;
    if (!varint(p, end, size) || size > end - p) return false;
    at = p - start;
    to = size < 0 ? at - 1 : at + size;
    p += size < 0 ? 0 : size;
    return true;
}

extern "C" {

// Reads `count` records of data[size]: out[6, count] takes offsets, key starts and stops, value starts and
// stops, and times. Returns false for anything unusual, which another reader explains: a wrong length, an
// offset that does not ascend, a header's name that is not ASCII.
bool records_read(const uint8_t* data, int64_t size, int64_t base, int64_t base_ms, int64_t count, int64_t* out) {
    const uint8_t *p = data, *const end = data + size;
    int64_t before = 0;  // offset of the record before
    for (int64_t i = 0; i < count; ++i) {
        int64_t length, ignored, age, delta, headers;
        if (!varint(p, end, length) || length < 0 || length > end - p) return false;
        const uint8_t* const stop = p + length;
        if (!varint(p, stop, ignored) || !varint(p, stop, age) || !varint(p, stop, delta)) return false;
        int64_t offset;
        if (delta < 0 || delta > INT32_MAX || __builtin_add_overflow(base, delta, &offset)) return false;
        if (i > 0 && offset <= before) return false;
        before = out[i] = offset;
        out[5 * count + i] = int64_t(uint64_t(base_ms) + uint64_t(age));
        if (!bytes(data, p, stop, out[count + i], out[2 * count + i])) return false;
        if (!bytes(data, p, stop, out[3 * count + i], out[4 * count + i])) return false;
        if (!varint(p, stop, headers) || headers < 0) return false;
        for (int64_t h = 0; h < headers; ++h) {
            int64_t at, to;
            if (!bytes(data, p, stop, at, to) || to < at) return false;
            for (int64_t k = at; k < to; ++k)
                if (data[k] >= 0x80) return false;
            if (!bytes(data, p, stop, at, to)) return false;
        }
        if (p != stop) return false;
    }
    return true;
}
}
