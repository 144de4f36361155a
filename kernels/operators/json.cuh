// Extraction of a field from JSON text (RFC 8259): a single pass, no recursion, no allocation.
#pragma once
#include "operators/casts.cuh"

constexpr int32_t JSON_DEPTH = 64;  // containers within each other; deeper text counts as broken

enum JsonKind : int32_t { JSON_NONE, JSON_NUMBER, JSON_STRING, JSON_TRUE };

struct JsonValue {
    Str raw;  // as it stands in the text; of a string what is between its quotes
    JsonKind kind;
    bool escaped;
};

static __device__ __forceinline__ int32_t hex4(const uint8_t* data) {
    int32_t value = 0;
    ROLLED for (int32_t k = 0; k < 4; ++k) {
        const int32_t digit = data[k] - '0', letter = (data[k] | 0x20) - 'a';
        if (digit >= 0 && digit <= 9) value = value << 4 | digit;
        else if (letter >= 0 && letter <= 5) value = value << 4 | (letter + 10);
        else return -1;
    }
    return value;
}

// Position after the closing quote of the string that opens at s.data[i]; -1 where it is no string.
static __device__ inline int32_t json_string_end(Str s, int32_t i, bool& escaped) {
    escaped = false;
    for (++i; i < s.size;) {
        ROLLED for (; i + 8 <= s.size; i += 8) {
            const uint64_t word = eight_bytes(s.data + i), quote = word ^ EACH * '"', slash = word ^ EACH * '\\';
            const uint64_t stop =
                ((quote - EACH) & ~quote) | ((slash - EACH) & ~slash) | ((word - EACH * 0x20) & ~word);
            if ((stop & EACH * 0x80) != 0) {  // its lowest bit is exact
                i += lowest_bit(stop & EACH * 0x80) / 8;
                break;
            }
        }
        if (i >= s.size) return -1;
        const uint8_t byte = s.data[i++];
        if (byte == '"') return i;
        if (byte < 0x20) return -1;
        if (byte != '\\') continue;
        escaped = true;
        if (i >= s.size) return -1;
        switch (s.data[i++]) {
            case '"':
            case '\\':
            case '/':
            case 'b':
            case 'f':
            case 'n':
            case 'r':
            case 't': break;
            case 'u':
                if (i + 4 > s.size || hex4(s.data + i) < 0) return -1;
                i += 4;
                break;
            default: return -1;
        }
    }
    return -1;
}

template <typename Sink>
static __device__ inline void put_character(uint32_t c, Sink& sink) {
    if (c < 0x80) {
        sink.put(uint8_t(c));
        return;
    }
    if (c < 0x800) {
        sink.put(uint8_t(0xC0 | c >> 6));
    } else {
        if (c < 0x10000) {
            sink.put(uint8_t(0xE0 | c >> 12));
        } else {
            sink.put(uint8_t(0xF0 | c >> 18));
            sink.put(uint8_t(0x80 | (c >> 12 & 0x3F)));
        }
        sink.put(uint8_t(0x80 | (c >> 6 & 0x3F)));
    }
    sink.put(uint8_t(0x80 | (c & 0x3F)));
}

// The characters of a string that json_string_end accepted. Half a surrogate pair becomes U+FFFD.
template <typename Sink>
static __device__ inline void unescape(Str raw, Sink& sink) {
    for (int32_t i = 0; i < raw.size;) {
        const int32_t run = find(raw, '\\', i);
        if (run > i) sink.append(Str{raw.data + i, run - i});
        if (run == raw.size) return;
        const uint8_t letter = raw.data[run + 1];
        i = run + 2;
        if (letter != 'u') {
            const bool same = letter == '"' || letter == '\\' || letter == '/';
            sink.put(same ? letter
                          : uint8_t(letter == 'b'   ? 8
                                    : letter == 'f' ? 12
                                    : letter == 'n' ? 10
                                    : letter == 'r' ? 13
                                                    : 9));
            continue;
        }
        uint32_t c = uint32_t(hex4(raw.data + i));
        i += 4;
        if (c >= 0xD800 && c < 0xE000) {
            const bool pair = c < 0xDC00 && i + 6 <= raw.size && raw.data[i] == '\\' && raw.data[i + 1] == 'u';
            const uint32_t low = pair ? uint32_t(hex4(raw.data + i + 2)) : 0;
            const bool whole = low >= 0xDC00 && low < 0xE000;
            c = whole ? 0x10000 + ((c - 0xD800) << 10 | (low - 0xDC00)) : 0xFFFD;
            if (whole) i += 6;
        }
        put_character(c, sink);
    }
}

// Sink that compares its input with `wanted`.
struct SameBytes {
    Str wanted;
    int32_t at = 0;
    bool same = true;
    __device__ __forceinline__ void put(uint8_t byte) {
        same = same && at < wanted.size && wanted.data[at] == byte;
        ++at;
    }
    __device__ inline void append(Str s) {
        ROLLED for (int32_t i = 0; i < s.size; ++i) { put(s.data[i]); }
    }
};

static __device__ inline bool json_key_is(Str raw, bool escaped, Str wanted) {
    if (!escaped) return equal(raw, wanted);
    SameBytes sink{wanted};
    unescape(raw, sink);
    return sink.same && sink.at == wanted.size;
}

static __device__ __forceinline__ int32_t json_skip_digits(Str s, int32_t i) {
    while (i < s.size && uint32_t(s.data[i]) - '0' <= 9) ++i;
    return i;
}

// Position after the number at s.data[i]; -1 where there is none.
static __device__ inline int32_t json_number_end(Str s, int32_t i) {
    i += i < s.size && s.data[i] == '-';
    int32_t begin = i;
    i = json_skip_digits(s, i);
    if (i == begin || (s.data[begin] == '0' && i > begin + 1)) return -1;
    if (i < s.size && s.data[i] == '.') {
        begin = i + 1;
        i = json_skip_digits(s, begin);
        if (i == begin) return -1;
    }
    if (i < s.size && (s.data[i] | 0x20) == 'e') {
        begin = i + 1;
        begin += begin < s.size && (s.data[begin] == '-' || s.data[begin] == '+');
        i = json_skip_digits(s, begin);
        if (i == begin) return -1;
    }
    return i;
}

static __device__ __forceinline__ bool json_word(Str s, int32_t i, const char* word, int32_t size) {
    if (i + size > s.size) return false;
    ROLLED for (int32_t k = 0; k < size; ++k) {
        if (s.data[i + k] != uint8_t(word[k])) return false;
    }
    return true;
}

// Position after the scalar at s.data[i], which is stored in `value`; -1 where there is none.
static __device__ inline int32_t json_scalar(Str s, int32_t i, JsonValue& value) {
    int32_t end = -1;
    value = JsonValue{Str{s.data, 0}, JSON_NONE, false};
    switch (s.data[i]) {
        case '"':
            end = json_string_end(s, i, value.escaped);
            value.raw = Str{s.data + i + 1, end - i - 2};
            value.kind = JSON_STRING;
            break;
        case 't':
            if (json_word(s, i, "true", 4)) end = i + 4;
            value.kind = JSON_TRUE;
            break;
        case 'f': return json_word(s, i, "false", 5) ? i + 5 : -1;
        case 'n': return json_word(s, i, "null", 4) ? i + 4 : -1;
        default:
            end = json_number_end(s, i);
            value.raw = Str{s.data + i, end - i};
            value.kind = JSON_NUMBER;
    }
    return end;
}

static __device__ __forceinline__ int32_t json_skip_space(Str s, int32_t i) {
    constexpr uint64_t SPACES = 1ull << ' ' | 1ull << '\t' | 1ull << '\n' | 1ull << '\r';
    while (i < s.size && s.data[i] <= ' ' && (SPACES >> s.data[i] & 1) != 0) ++i;
    return i;
}

// Segment of a path "a.b.c" that a member of the innermost container on the path must match.
struct JsonPath {
    Str path;
    int32_t begin, end;
    __device__ __forceinline__ explicit JsonPath(Str whole) : path(whole), begin(0), end(find(whole, '.', 0)) {}
    __device__ __forceinline__ Str segment() const { return Str{path.data + begin, end - begin}; }
    __device__ __forceinline__ bool last() const { return end == path.size; }
    __device__ __forceinline__ void down() {
        begin = end + 1;
        end = find(path, '.', begin);
    }
    __device__ __forceinline__ void up() {
        end = begin - 1;
        for (begin = end; begin > 0 && path.data[begin - 1] != '.';) --begin;
    }
    // Index of an array; -1 where it is no index.
    __device__ __forceinline__ int32_t index() const {
        int32_t value = 0;
        ROLLED for (int32_t i = begin; i < end; ++i) {
            const uint32_t digit = uint32_t(path.data[i]) - '0';
            if (digit > 9 || value > 99999999) return -1;
            value = value * 10 + int32_t(digit);
        }
        return value;
    }
};

// The value at `path`; kind JSON_NONE where it is absent, null, false or a container, and where the text is broken
// anywhere. Of members with equal keys the last one counts.
static __device__ OUT_OF_LINE JsonValue json_find(Str s, Str whole_path) {
    const JsonValue none{Str{s.data, 0}, JSON_NONE, false};
    enum Match { OFF, WITHIN, HERE };  // is the next value off the path, a container on it, or its end?
    JsonValue found = none, value;
    JsonPath path(whole_path);
    uint64_t objects = 0;           // bit d - 1: the container at depth d is an object
    int32_t depth = 0, level = 0;   // containers that are open; those of them on the path
    int32_t index = 0, wanted = 0;  // in the array at depth == level
    bool key_due = false;
    Match match = WITHIN;
    for (int32_t i = 0;;) {
        i = json_skip_space(s, i);
        if (i >= s.size) return none;
        if (key_due) {
            bool escaped;
            if (s.data[i] != '"') return none;
            const int32_t end = json_string_end(s, i, escaped);
            if (end < 0) return none;
            match = OFF;
            if (depth == level && json_key_is(Str{s.data + i + 1, end - i - 2}, escaped, path.segment())) {
                match = path.last() ? HERE : WITHIN;
            }
            i = json_skip_space(s, end);
            if (i >= s.size || s.data[i] != ':') return none;
            i = json_skip_space(s, i + 1);
            if (i >= s.size) return none;
        }
        if (match != OFF) found = none;
        const bool object = s.data[i] == '{';
        if (object || s.data[i] == '[') {
            if (depth == JSON_DEPTH) return none;
            objects = (objects & ~(1ull << depth)) | uint64_t(object) << depth;
            if (match == WITHIN) {
                if (depth > 0) path.down();
                level = depth + 1;
                index = 0;
                wanted = object ? -1 : path.index();
            }
            ++depth;
            i = json_skip_space(s, i + 1);
            if (i >= s.size) return none;
            if (s.data[i] != (object ? '}' : ']')) {
                key_due = object;
                match = depth == level && wanted == 0 ? (path.last() ? HERE : WITHIN) : OFF;
                continue;
            }
        } else {
            i = json_scalar(s, i, value);
            if (i < 0) return none;
            if (match == HERE) found = value;
        }
        for (;;) {  // behind a value: closing brackets, then a comma or the end
            i = json_skip_space(s, i);
            if (depth == 0) return i == s.size ? found : none;
            if (i == s.size) return none;
            const bool in_object = objects >> (depth - 1) & 1;
            const uint8_t byte = s.data[i++];
            if (byte == ',') {
                key_due = in_object;
                match = OFF;
                if (depth == level && !in_object && ++index == wanted) match = path.last() ? HERE : WITHIN;
                break;
            }
            if (byte != (in_object ? '}' : ']')) return none;
            if (depth-- == level && --level > 0) {
                path.up();
                const bool outer_object = objects >> (level - 1) & 1;
                index = wanted = outer_object ? -1 : path.index();
            }
        }
    }
}

template <typename T>
static __device__ inline T json_number(Str s, Str path) {
    const JsonValue value = json_find(s, path);
    return value.kind == JSON_NUMBER ? number_of<T>(read_decimal(value.raw), value.raw) : T(0);
}

static __device__ inline bool json_bool(Str s, Str path) { return json_find(s, path).kind == JSON_TRUE; }

template <typename Sink>
static __device__ inline void json_text(Str s, Str path, Sink& sink) {
    const JsonValue value = json_find(s, path);
    if (value.kind != JSON_STRING) return;
    if (value.escaped) unescape(value.raw, sink);
    else sink.append(value.raw);
}
