// Wire format of Protobuf: https://protobuf.dev/programming-guides/encoding/
#pragma once
#include "stream/json_scan.hpp"  // valid_utf8
#include "extract/values.hpp"

#include <cstdint>
#include <cstring>

namespace livectr::protobuf {

enum Wire : uint32_t { VARINT, FIXED64, LENGTH, GROUP_BEGIN, GROUP_END, FIXED32 };

// Types of fields by their encoding: FIXED32 and FIXED64 are also floats.
enum Kind : int32_t { INT64, INT32, SINT64, SINT32, BOOL, WORD64, WORD32, STRING, BYTES, MESSAGE, GROUP };

constexpr int GROUPS = 100;  // deepest nesting of groups
constexpr int64_t MOST_BYTES = 0x7FFF'FFFF;

inline uint32_t wire_of(Kind kind) {
    constexpr Wire WIRES[] = {VARINT,  VARINT, VARINT, VARINT, VARINT,     FIXED64,
                              FIXED32, LENGTH, LENGTH, LENGTH, GROUP_BEGIN};
    return WIRES[kind];
}

inline stream::Form form_of(Kind kind) {
    using namespace stream;
    constexpr Form FORMS[] = {Form::WORD8, Form::WORD4, Form::WORD8, Form::WORD4, Form::BIT,  Form::WORD8,
                              Form::WORD4, Form::CHARS, Form::CHARS, Form::CHARS, Form::CHARS};
    return FORMS[kind];
}

// Each reads what begins at p and moves p behind it; false: damaged, or it ends before.
inline bool read_varint(const uint8_t*& p, const uint8_t* end, uint64_t& word) {
    if (p < end && *p < 0x80) return word = *p++, true;
    word = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p >= end) return false;
        const uint64_t byte = *p++;
        word |= (byte & 0x7F) << shift;
        if (byte < 0x80) return true;  // bits above the 64th are dropped, as protobuf does
    }
    return false;
}

inline bool read_tag(const uint8_t*& p, const uint8_t* end, uint32_t& tag) {
    const uint8_t* const begin = p;
    uint64_t word;
    if (!read_varint(p, end, word) || p - begin > 5 || word > 0xFFFF'FFFF || word < 8) return false;
    tag = uint32_t(word);
    return true;
}

inline bool read_size(const uint8_t*& p, const uint8_t* end, int64_t& size) {
    const uint8_t* const begin = p;
    uint64_t word;
    if (!read_varint(p, end, word) || p - begin > 5 || word > uint64_t(MOST_BYTES)) return false;
    size = int64_t(word);
    return size <= end - p;
}

// Number of a scalar field, as Arrow's word of its type.
inline bool read_word(const uint8_t*& p, const uint8_t* end, Kind kind, uint64_t& word) {
    if (kind == WORD64 || kind == WORD32) {
        const int64_t size = kind == WORD64 ? 8 : 4;
        if (end - p < size) return false;
        word = 0;
        std::memcpy(&word, p, size_t(size));  // little-endian, as this machine
        p += size;
        return true;
    }
    if (!read_varint(p, end, word)) return false;
    switch (kind) {
        case SINT64: word = (word >> 1) ^ (0 - (word & 1)); break;
        case SINT32: word = uint32_t(uint32_t(word) >> 1) ^ (0u - (uint32_t(word) & 1)); break;
        case INT32: word = uint32_t(word); break;
        case BOOL: word = word != 0; break;
        default: break;
    }
    return true;
}

// Passes over a field whose tag has been read.
inline bool skip(const uint8_t*& p, const uint8_t* end, uint32_t tag, int groups) {
    uint64_t word;
    int64_t size;
    switch (tag & 7) {
        case VARINT: return read_varint(p, end, word);
        case FIXED64: return end - p >= 8 && (p += 8, true);
        case FIXED32: return end - p >= 4 && (p += 4, true);
        case LENGTH: return read_size(p, end, size) && (p += size, true);
        case GROUP_BEGIN:
            if (groups == 0) return false;
            while (true) {
                uint32_t inner;
                if (!read_tag(p, end, inner)) return false;
                if ((inner & 7) == GROUP_END) return inner >> 3 == tag >> 3;
                if (!skip(p, end, inner, groups - 1)) return false;
            }
        default: return false;
    }
}

}  // namespace livectr::protobuf
