// Device functions of the operators on strings. Written once against a sink: see runtime/columns.cuh.
#pragma once
#include "runtime/sinks.cuh"

static __device__ __forceinline__ int32_t compare(Str a, Str b) {
    const int32_t shared = a.size < b.size ? a.size : b.size;
    ROLLED for (int32_t i = 0; i < shared; ++i) {
        if (a.data[i] != b.data[i]) return int32_t(a.data[i]) - int32_t(b.data[i]);
    }
    return a.size < b.size ? -1 : a.size > b.size;
}
static __device__ __forceinline__ bool less(Str a, Str b) { return compare(a, b) < 0; }
static __device__ __forceinline__ bool less_equal(Str a, Str b) { return compare(a, b) <= 0; }
static __device__ __forceinline__ bool greater(Str a, Str b) { return compare(a, b) > 0; }
static __device__ __forceinline__ bool greater_equal(Str a, Str b) { return compare(a, b) >= 0; }
static __device__ __forceinline__ bool equal(Str a, Str b) { return a.size == b.size && compare(a, b) == 0; }
static __device__ __forceinline__ bool not_equal(Str a, Str b) { return !equal(a, b); }

static __device__ __forceinline__ bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Eight bytes as one little-endian word, for steps of eight; EACH * x is x in every byte.
constexpr uint64_t EACH = 0x0101010101010101ull;

static __device__ __forceinline__ uint64_t eight_bytes(const uint8_t* data) { return read_bytes<uint64_t>(data); }

// UTF-8 code points: bytes that continue no character.
static __device__ GPU_CALL int32_t characters(Str s) {
    int32_t count = 0;
    ROLLED for (int32_t i = 0; i < s.size; ++i) count += !continues(s.data[i]);
    return count;
}

// Unicode's simple lower case of U+0080 … U+07FF where it lies there too: both are two bytes in UTF-8.
static __device__ inline uint32_t lower_two_byte(uint32_t c) {
    const bool even = (c & 1) == 0;
    if (c >= 0xC0 && c <= 0xDE) return c == 0xD7 ? c : c + 32;  // Latin-1
    if ((c >= 0x100 && c <= 0x12F) || (c >= 0x132 && c <= 0x137) || (c >= 0x14A && c <= 0x177)) return c + even;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c + !even;  // Latin Extended-A
    if (c == 0x178) return 0xFF;
    if (c == 0x386) return 0x3AC;  // Greek
    if (c >= 0x388 && c <= 0x38A) return c + 37;
    if (c == 0x38C) return 0x3CC;
    if (c == 0x38E || c == 0x38F) return c + 63;
    if (c >= 0x391 && c <= 0x3AB) return c == 0x3A2 ? c : c + 32;
    if (c >= 0x400 && c <= 0x40F) return c + 80;  // Cyrillic
    if (c >= 0x410 && c <= 0x42F) return c + 32;
    if ((c >= 0x460 && c <= 0x481) || (c >= 0x48A && c <= 0x4BF) || (c >= 0x4D0 && c <= 0x52F)) return c + even;
    if (c == 0x4C0) return 0x4CF;
    if (c >= 0x4C1 && c <= 0x4CE) return c + !even;
    if (c >= 0x531 && c <= 0x556) return c + 48;  // Armenian
    return c;
}

// Lower case of ASCII bytes; other bytes stay. The high bit of a byte of `upper` is set where 'A' <= byte <= 'Z'.
static __device__ __forceinline__ uint64_t lower_ascii(uint64_t word) {
    const uint64_t low = word & EACH * 0x7F;
    const uint64_t upper = (low + EACH * (0x80 - 'A')) & ~(low + EACH * (0x7F - 'Z')) & ~word & EACH * 0x80;
    return word | upper >> 2;
}

// The size stays: ASCII first, eight bytes at once, then characters of two bytes where they lie.
static __device__ OUT_OF_LINE void lower_to(uint8_t* out, Str s) {
    uint64_t seen = 0;
    const auto eight = [&](int32_t at) {
        const uint64_t word = eight_bytes(s.data + at), low = lower_ascii(word);
        memcpy(out + at, &low, 8);
        seen |= word;
    };
    int32_t i = 0;
    ROLLED for (; i + 8 <= s.size; i += 8) eight(i);
    if (s.size >= 8 && i < s.size) {
        eight(s.size - 8);
    } else {
        ROLLED for (; i < s.size; ++i) {
            out[i] = uint8_t(lower_ascii(s.data[i]));
            seen |= s.data[i];
        }
    }
    if ((seen & EACH * 0x80) == 0) return;
    ROLLED for (i = 0; i + 1 < s.size;) {
        if (i + 8 <= s.size) {
            const uint64_t high = eight_bytes(s.data + i) & EACH * 0x80;
            if (high == 0) {
                i += 8;
                continue;
            }
            i += lowest_bit(high) / 8;
            if (i + 1 >= s.size) return;
        }
        const uint8_t byte = s.data[i], next = s.data[i + 1];
        if (byte < 0xC3 || byte > 0xD5 || !continues(next)) {
            ++i;
            continue;
        }
        const uint32_t c = lower_two_byte(uint32_t(byte & 0x1F) << 6 | (next & 0x3F));
        out[i++] = uint8_t(0xC0 | c >> 6);
        out[i++] = uint8_t(0x80 | (c & 0x3F));
    }
}

template <typename Sink>
static __device__ __forceinline__ void lower(Str s, Sink& sink) {
    sink.write(s.size, [&](uint8_t* out) { lower_to(out, s); });
}

// Position of the next `byte` in s at or after `from`; s.size if there is none.
static __device__ __forceinline__ int32_t find(Str s, uint8_t byte, int32_t from) {
    ROLLED for (; from + 8 <= s.size; from += 8) {
        const uint64_t word = eight_bytes(s.data + from) ^ EACH * byte;
        const uint64_t zero = (word - EACH) & ~word & EACH * 0x80;  // its lowest bit is exact
        if (zero != 0) return from + lowest_bit(zero) / 8;
    }
    while (from < s.size && s.data[from] != byte) ++from;
    return from;
}

template <typename Sink>
static __device__ __forceinline__ void piece(const uint8_t* data, int32_t size, Sink& sink) {
    sink.view(Str{data, size});
}

// Pieces between separators; empty pieces are left out.
template <typename Sink>
static __device__ __forceinline__ void split(Str s, Str separator, Sink& sink) {
    int32_t begin = 0;
    ROLLED for (int32_t i = 0; (i = find(s, separator.data[0], i)) + separator.size <= s.size;) {
        bool match = true;
        ROLLED for (int32_t k = 1; match && k < separator.size; ++k) match = s.data[i + k] == separator.data[k];
        if (!match) {
            ++i;
            continue;
        }
        if (i > begin) piece(s.data + begin, i - begin, sink);
        begin = i += separator.size;
    }
    if (s.size > begin) piece(s.data + begin, s.size - begin, sink);
}

template <typename Sink>
static __device__ __forceinline__ void byte_ngrams(Str s, int32_t n, Sink& sink) {
    ROLLED for (int32_t i = 0; i + n <= s.size; ++i) piece(s.data + i, n, sink);
}

// Two heads run n characters apart. Bytes that continue no character (broken UTF-8) belong to the one before.
template <typename Sink>
static __device__ __forceinline__ void character_ngrams(Str s, int32_t n, Sink& sink) {
    const auto next = [&s](int32_t i) {
        do ++i;
        while (i < s.size && continues(s.data[i]));
        return i;
    };
    int32_t begin = 0, end = 0;
    ROLLED for (int32_t k = 0; k < n; ++k) {
        if (end >= s.size) return;
        end = next(end);
    }
    ROLLED for (;;) {
        piece(s.data + begin, end - begin, sink);
        if (end >= s.size) return;
        begin = next(begin);
        end = next(end);
    }
}

// n words with a space between two, as they mostly lie in the text that they are from; then nothing is copied.
template <typename Words, typename Sink>
static __device__ __forceinline__ void word_ngrams(const Row<Words>& words, int32_t n, Sink& sink) {
    ROLLED for (int32_t i = 0; i + n <= words.size(); ++i) {
        Str all = words.at(i);
        int32_t k = 1;
        ROLLED for (; k < n; ++k) {
            const Str next = words.at(i + k);
            const uint8_t* const between = all.data + all.size;
            if (next.data != between + 1 || *between != uint8_t(' ')) break;
            all.size += 1 + next.size;
        }
        if (k == n) {
            sink.view(all);
            continue;
        }
        ROLLED for (k = 0; k < n; ++k) {
            if (k > 0) sink.put(uint8_t(' '));
            sink.append(words.at(i + k));
        }
        sink.next();
    }
}
