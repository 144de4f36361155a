// Scanner of strict JSON in one text: space, strings, numbers, and values that are skipped.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace livectr::json {

inline bool valid_utf8(const uint8_t* p, const uint8_t* end) {
    while (p < end) {
        const uint8_t a = *p++;
        if (a < 0x80) continue;
        const int more = a >= 0xF0 ? 3 : a >= 0xE0 ? 2 : 1;
        if (a < 0xC2 || a > 0xF4 || end - p < more) return false;
        const uint8_t b = p[0];
        if ((b & 0xC0) != 0x80 || (a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F) || (a == 0xF0 && b < 0x90) ||
            (a == 0xF4 && b > 0x8F))
            return false;
        for (int i = 1; i < more; ++i)
            if ((p[i] & 0xC0) != 0x80) return false;
        p += more;
    }
    return true;
}

class Scanner {
  public:
    int64_t depth = 0;  // deepest nesting of objects and lists

  protected:
    const uint8_t *p_ = nullptr, *end_ = nullptr;

    void space() {
        while (p_ < end_ && (*p_ == ' ' || *p_ == '\t')) ++p_;
    }

    // Bytes of a string up to its quote or the first escape; p_ stands at it. False at its end or a control character.
    bool run(bool& high) {
        uint8_t all = 0;
        while (end_ - p_ >= 8) {
            uint64_t w;
            std::memcpy(&w, p_, 8);
            constexpr uint64_t ONES = 0x0101010101010101, TOPS = 0x8080808080808080;
            const auto zero = [](uint64_t x) { return (x - ONES) & ~x & TOPS; };
            if (zero(w ^ ONES * '"') | zero(w ^ ONES * '\\') | ((w - ONES * 0x20) & ~w & TOPS)) break;
            all |= (w & TOPS) != 0 ? 0x80 : 0;
            p_ += 8;
        }
        while (p_ < end_ && *p_ != '"' && *p_ != '\\') {
            if (*p_ < 0x20) return false;
            all |= *p_++;
        }
        high = high || all >= 0x80;
        return p_ < end_;
    }

    // Skips a string, whose opening quote was read.
    bool skip_string() {
        for (bool high = false; run(high);) {
            if (*p_++ == '"') return true;
            if (p_ >= end_) return false;
            const uint8_t kind = *p_++;
            if (kind == 'u') {
                uint32_t unit;
                if (!hex(unit)) return false;
                if (unit >= 0xDC00 && unit < 0xE000) return false;
                if (unit >= 0xD800 && unit < 0xDC00 && !low(unit)) return false;
            } else if (!std::strchr("\"\\/bfnrt", kind) || !kind) {
                return false;
            }
        }
        return false;
    }

    bool hex(uint32_t& unit) {
        if (end_ - p_ < 4) return false;
        unit = 0;
        for (int i = 0; i < 4; ++i) {
            const uint8_t c = *p_++;
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) return false;
            unit = 16 * unit + uint32_t(digit);
        }
        return true;
    }

    // The second half of a pair of surrogates, whose first half is `unit`.
    bool low(uint32_t& unit) {
        uint32_t second;
        if (end_ - p_ < 6 || p_[0] != '\\' || p_[1] != 'u') return false;
        p_ += 2;
        if (!hex(second) || second < 0xDC00 || second > 0xDFFF) return false;
        unit = 0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00);
        return true;
    }

    // The end of a number of strict JSON, or null. whole: it has neither fraction nor exponent.
    const uint8_t* number_end(bool& whole) const {
        const uint8_t* p = p_;
        const auto digits = [&] {
            const uint8_t* const begin = p;
            while (p < end_ && *p >= '0' && *p <= '9') ++p;
            return p > begin;
        };
        if (p < end_ && *p == '-') ++p;
        if (p < end_ && *p == '0') ++p;
        else if (!digits()) return nullptr;
        whole = true;
        if (p < end_ && *p == '.') {
            whole = false, ++p;
            if (!digits()) return nullptr;
        }
        if (p < end_ && (*p | 0x20) == 'e') {
            whole = false, ++p;
            if (p < end_ && (*p == '+' || *p == '-')) ++p;
            if (!digits()) return nullptr;
        }
        return p;
    }

    // A number that ends at `stop` is a float64; the general reader refuses one that is too large, in use or not.
    bool in_range(const uint8_t* stop) const {
        const char* const first = reinterpret_cast<const char*>(p_);
        const char* const last = reinterpret_cast<const char*>(stop);
        if (last - first <= 300 && std::find_if(first, last, [](char c) { return (c | 0x20) == 'e'; }) == last)
            return true;
        double value;
        return std::from_chars(first, last, value).ec == std::errc();
    }

    template <class T>
    bool number(const uint8_t* stop, uint64_t& word) {
        T value;
        const char* const last = reinterpret_cast<const char*>(stop);
        const auto read = std::from_chars(reinterpret_cast<const char*>(p_), last, value);
        if (read.ec != std::errc() || read.ptr != last) return false;
        word = 0;
        std::memcpy(&word, &value, sizeof value);
        p_ = stop;
        return true;
    }

    bool literal(const char* text, int64_t size) {
        if (end_ - p_ < size || std::memcmp(p_, text, size_t(size))) return false;
        p_ += size;
        return true;
    }

    // Skips a value that is not in use; an object or list in it is of a depth of at least `level`.
    bool skip(int64_t level) {
        if (p_ >= end_) return false;
        switch (*p_) {
            case '"': return ++p_, skip_string();
            case 't': return literal("true", 4);
            case 'f': return literal("false", 5);
            case 'n': return literal("null", 4);
            case '{':
            case '[': break;
            default: {
                bool whole;
                const uint8_t* const stop = number_end(whole);
                return stop && in_range(stop) && (p_ = stop);
            }
        }
        if (level > depth) return false;
        const bool named = *p_++ == '{';
        const uint8_t closing = named ? '}' : ']';
        space();
        if (p_ < end_ && *p_ == closing) return ++p_, true;
        while (true) {
            space();
            if (named) {
                if (p_ >= end_ || *p_++ != '"' || !skip_string()) return false;
                space();
                if (p_ >= end_ || *p_++ != ':') return false;
                space();
            }
            if (!skip(level + 1)) return false;
            space();
            if (p_ >= end_) return false;
            if (*p_ == closing) return ++p_, true;
            if (*p_++ != ',') return false;
        }
    }
};

}  // namespace livectr::json
