#include <cstdint>

// Brackets inside strings do not count. A broken text has the depth of its readable beginning at least.
static bool is_deeper(const uint8_t* text, int64_t size, int64_t limit) {
    int64_t depth = 0;
    bool quoted = false;
    for (int64_t i = 0; i < size; ++i) {
        const uint8_t byte = text[i];
        if (quoted) {
            if (byte == '\\') ++i;
            else if (byte == '"') quoted = false;
        } else if (byte == '"') {
            quoted = true;
        } else if ((byte | 0x20) == '{') {
            if (++depth > limit) return true;
        } else if ((byte | 0x20) == '}') {
            --depth;
        }
    }
    return false;
}

extern "C" {

// Text i is texts[starts[i]] to texts[stops[i]]. Returns how many are deeper; rows[n] takes their numbers.
int64_t json_deeper(const uint8_t* texts, const int64_t* starts, const int64_t* stops, int64_t n, int64_t limit,
                    int64_t* rows) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint8_t* const text = texts + starts[i];
        const int64_t size = stops[i] - starts[i];
        int64_t opened = 0;  // a bound that is nearly always enough; the loop becomes vector instructions
        for (int64_t k = 0; k < size; ++k) opened += (text[k] | 0x20) == '{';
        if (opened > limit && is_deeper(text, size, limit)) rows[found++] = i;
    }
    return found;
}
}
