// Wire code of a key all-to-all (host only): bit-packed keys of fields instead of 8 bytes per key.
//
// A segment is a field's keys in c cells (rows, or groups of rows): n keys, u of them unique. Its header is
// one 64-bit word; from that and c alone a receiver knows how many bytes the segment has:
//
//     bits  0–26  n         27–53  entries: u, or n where the keys are sent as they come
//     bits 54–59  key width 60–62  width of a cell's number of keys: 0, 1, 2, 4, 8, 16 or 32 bits
//
// Its bytes, each part packed to whole bytes:
//
//     c × length width    keys per cell; nothing where all cells have equally many
//     8                   the least key, unless the key width is 64 (63 in the header) or n is 0
//     entries × key width key − least key, as unsigned
//     n × ⌈log2 u⌉        for each key its number among the entries; nothing where entries = n
//
// Integers are their own keys, so those of a field span few bits; keys of strings are hashes and span 64, and
// spans over 56 are sent as 64. The encoder chooses the smaller form: unique keys or all keys.
#include <atomic>

#include "keys/unique_scratch.hpp"
#include "runtime/threads.hpp"

namespace {

constexpr uint32_t COUNT_BITS = 27;
constexpr int64_t COUNT_LIMIT = int64_t{1} << COUNT_BITS;
constexpr int64_t FALLING_OFFSETS = -1;           // in place of a header, whose top bit is never set
constexpr uint32_t WHOLE = 64, LAST_PACKED = 56;  // a packed value lies within 8 bytes from its first byte

inline uint32_t bits_of(uint64_t largest) { return largest == 0 ? 0 : 64 - __builtin_clzll(largest); }
inline int64_t packed_bytes(int64_t count, uint32_t width) { return (count * width + 7) / 8; }

struct KeyHeader {
    int64_t n, entries;
    uint32_t width, length_width;

    static KeyHeader of(int64_t word) {
        const auto bits = [&](uint32_t at, uint32_t count) { return word >> at & ((int64_t{1} << count) - 1); };
        const uint32_t width = bits(54, 6), lengths = bits(60, 3);
        return {bits(0, COUNT_BITS), bits(COUNT_BITS, COUNT_BITS), width == 63 ? WHOLE : width,
                lengths == 0 ? 0 : 1u << (lengths - 1)};
    }

    int64_t word() const {
        const uint64_t lengths = length_width == 0 ? 0 : bits_of(length_width);
        const uint64_t key_width = width == WHOLE ? 63 : width;
        return int64_t(uint64_t(n) | uint64_t(entries) << COUNT_BITS | key_width << 54 | lengths << 60);
    }

    // A sender writes these widths; sums of wider lengths would overflow, and wider keys do not lie within 8 bytes.
    bool written() const { return length_width <= 32 && (width <= LAST_PACKED || width == WHOLE); }
    bool framed() const { return n > 0 && width < WHOLE; }
    uint32_t index_width() const { return entries < n ? bits_of(entries - 1) : 0; }

    int64_t bytes(int64_t cells) const {
        return packed_bytes(cells, length_width) + (framed() ? 8 : 0) + packed_bytes(entries, width) +
               packed_bytes(n, index_width());
    }
};

// Packs value(i) < 2^width for i in [0, n), from the lowest bit on. Returns the end.
template <typename Value>
uint8_t* pack_bits(int64_t n, uint32_t width, uint8_t* out, Value&& value) {
    if (width == 0) return out;
    uint64_t word = 0;
    uint32_t filled = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t v = value(i);
        word |= v << filled;
        filled += width;
        if (filled >= 64) {
            memcpy(out, &word, 8);
            out += 8;
            filled -= 64;
            word = filled ? v >> (width - filled) : 0;
        }
    }
    memcpy(out, &word, (filled + 7) / 8);
    return out + (filled + 7) / 8;
}

// Unpacks what pack_bits wrote: calls emit(i, value). No byte behind it is read. Returns the end.
template <typename Emit>
const uint8_t* unpack_bits(int64_t n, uint32_t width, const uint8_t* in, Emit&& emit) {
    const int64_t bytes = packed_bytes(n, width);
    const uint64_t mask = width == 0 ? 0 : ~uint64_t{0} >> (64 - width);
    int64_t i = 0;
    if (width == 0) {
        for (; i < n; ++i) emit(i, uint64_t{0});
    }
    for (; i < n && (i * width >> 3) + 8 <= bytes; ++i) {
        uint64_t word;
        memcpy(&word, in + (i * width >> 3), 8);
        emit(i, word >> (i * width & 7) & mask);
    }
    for (; i < n; ++i) {
        uint64_t word = 0;
        memcpy(&word, in + (i * width >> 3), bytes - (i * width >> 3));
        emit(i, word >> (i * width & 7) & mask);
    }
    return in + bytes;
}

struct KeySegment {
    const int64_t* keys;     // of all cells that share the offsets
    const int32_t* offsets;  // cells + 1
    int64_t cells;
    int64_t plain;  // not 0: 8 bytes per key, for a receiver on the same rank

    int64_t size() const { return offsets[cells] - offsets[0]; }
    int64_t capacity() const { return 8 * size() + 4 * cells + 8; }
};

struct KeyScratch {
    UniqueScratch finder;
    std::vector<int64_t> unique;
    std::vector<uint32_t> index;
};

inline KeyScratch& key_scratch() {
    static thread_local KeyScratch scratch;
    return scratch;
}

// Writes a segment of less than COUNT_LIMIT keys and returns its header, or FALLING_OFFSETS.
inline int64_t encode_segment(const KeySegment& segment, uint8_t* out) {
    const int64_t n = segment.size(), cells = segment.cells;
    const int64_t* const keys = segment.keys + segment.offsets[0];
    KeyHeader header{n, n, WHOLE, 0};
    int32_t shortest = INT32_MAX, longest = 0;
    const auto length = [&](int64_t c) { return segment.offsets[c + 1] - segment.offsets[c]; };
    for (int64_t c = 0; c < cells; ++c) {
        shortest = std::min(shortest, length(c));
        longest = std::max(longest, length(c));
    }
    if (shortest < 0) return FALLING_OFFSETS;
    if (shortest < longest) {
        header.length_width = 1;
        while (bits_of(longest) > header.length_width) header.length_width *= 2;
    }
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (int64_t i = 0; i < n; ++i) {
        least = std::min(least, keys[i]);
        most = std::max(most, keys[i]);
    }
    const uint32_t spanned = n == 0 ? 0 : bits_of(uint64_t(most) - uint64_t(least));
    if (!segment.plain && spanned <= LAST_PACKED) header.width = spanned;
    KeyScratch& scratch = key_scratch();
    const int64_t* entries = keys;
    if (!segment.plain && header.width > 1) {
        if (int64_t(scratch.index.size()) < n) {
            scratch.unique.resize(n);
            scratch.index.resize(n);
        }
        KeyHeader unique = header;
        unique.entries = scratch.finder.find(keys, n, scratch.unique.data(), scratch.index.data());
        if (unique.bytes(cells) < header.bytes(cells)) {
            header = unique;
            entries = scratch.unique.data();
        }
    }
    out = pack_bits(cells, header.length_width, out, [&](int64_t c) { return uint64_t(length(c)); });
    if (header.framed()) {
        memcpy(out, &least, 8);
        out += 8;
    }
    const uint64_t base = header.framed() ? least : 0;
    if (header.width == WHOLE) {
        if (n > 0) memcpy(out, entries, 8 * header.entries);
        out += 8 * header.entries;
    } else {
        const auto value = [&](int64_t i) { return uint64_t(entries[i]) - base; };
        out = pack_bits(header.entries, header.width, out, value);
    }
    pack_bits(n, header.index_width(), out, [&](int64_t i) { return uint64_t(scratch.index[i]); });
    return header.word();
}

// Received segment, and destination of its keys.
struct CodedSegment {
    int64_t word;
    const uint8_t* bytes;
    int64_t cells;
    int64_t* keys;     // n
    int32_t* offsets;  // cells, the first of them `first`
    int64_t first;
};

// Decodes a segment; false if it does not match its header.
inline bool decode_segment(const CodedSegment& segment) {
    const KeyHeader header = KeyHeader::of(segment.word);
    const int64_t n = header.n, cells = segment.cells;
    if (!header.written()) return false;
    const uint8_t* in = segment.bytes;
    int64_t at = segment.first;
    if (header.length_width == 0) {
        const int64_t each = cells == 0 ? 0 : n / cells;
        for (int64_t c = 0; c < cells; ++c) segment.offsets[c] = int32_t(at + c * each);
        at += cells * each;
    } else {
        in = unpack_bits(cells, header.length_width, in, [&](int64_t c, uint64_t length) {
            segment.offsets[c] = int32_t(at);
            at += int64_t(length);
        });
    }
    if (at != segment.first + n || header.entries > n || (n > 0 && header.entries == 0)) return false;
    uint64_t base = 0;
    if (header.framed()) {
        memcpy(&base, in, 8);
        in += 8;
    }
    const bool coded = header.entries < n;
    std::vector<int64_t>& unique = key_scratch().unique;
    if (coded && int64_t(unique.size()) < header.entries) unique.resize(header.entries);
    int64_t* const entries = coded ? unique.data() : segment.keys;
    if (header.width == WHOLE) {
        if (n > 0) memcpy(entries, in, 8 * header.entries);
        in += 8 * header.entries;
    } else {
        in = unpack_bits(header.entries, header.width, in,
                         [&](int64_t i, uint64_t v) { entries[i] = int64_t(v + base); });
    }
    if (!coded) return true;
    uint64_t largest = 0;
    const uint64_t last = header.entries - 1;
    unpack_bits(n, header.index_width(), in, [&](int64_t i, uint64_t v) {
        largest = std::max(largest, v);
        segment.keys[i] = entries[std::min(v, last)];
    });
    return largest <= last;
}

extern "C" {

// Upper bound of the bytes that encode_keys writes.
int64_t keys_capacity(const KeySegment* segments, int64_t count) {
    int64_t capacity = 0;
    for (int64_t s = 0; s < count; ++s) capacity += segments[s].capacity();
    return capacity;
}

// Segment s is written to out[ends[s]] (ends[0] = 0) to out[ends[s + 1]]; out has room for the capacity.
// Returns 0; -1 without memory; -2 where a segment has too many keys, -3 where its offsets fall.
int32_t encode_keys(const KeySegment* segments, int64_t count, int64_t* headers, int64_t* ends, uint8_t* out) {
    try {
        std::vector<int64_t> starts(count + 1, 0);
        for (int64_t s = 0; s < count; ++s) {
            if (segments[s].size() >= COUNT_LIMIT) return -2;
            starts[s + 1] = starts[s] + segments[s].capacity();
        }
        ends[0] = 0;
        livectr::parallel_for(count, [&](int64_t s) {
            headers[s] = encode_segment(segments[s], out + starts[s]);
            ends[s + 1] = KeyHeader::of(headers[s]).bytes(segments[s].cells);
        });
        if (std::find(headers, headers + count, FALLING_OFFSETS) != headers + count) return -3;
        for (int64_t s = 0; s < count; ++s) {  // close the gaps
            memmove(out + ends[s], out + starts[s], ends[s + 1]);
            ends[s + 1] += ends[s];
        }
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

void key_bytes(const int64_t* headers, const int64_t* cells, int64_t count, int64_t* keys, int64_t* bytes) {
    for (int64_t s = 0; s < count; ++s) {
        const KeyHeader header = KeyHeader::of(headers[s]);
        keys[s] = header.n;
        bytes[s] = header.bytes(cells[s]);
    }
}

// Returns 0; -1 without memory; -2 where a segment does not match its header.
int32_t decode_keys(const CodedSegment* segments, int64_t count) {
    std::atomic<bool> whole{true};
    try {
        livectr::parallel_for(count, [&](int64_t s) {
            if (!decode_segment(segments[s])) whole = false;
        });
    } catch (const std::bad_alloc&) {
        return -1;
    }
    return whole ? 0 : -2;
}

}  // extern "C"

}  // namespace
