// Device functions of the operators that cut, search and join strings.
#pragma once
#include "operators/casts.cuh"

// Start of the n-th next character (s.size behind the last); eight ASCII bytes at once. The rest of n stays in it.
static __device__ inline int32_t forward(Str s, int32_t i, int64_t& n) {
    while (n > 0 && i < s.size) {
        const bool ascii = n >= 8 && i + 8 <= s.size && (eight_bytes(s.data + i) & EACH * 0x80) == 0;
        if (ascii && (i + 8 == s.size || !continues(s.data[i + 8]))) {
            i += 8;
            n -= 8;
            continue;
        }
        do ++i;
        while (i < s.size && continues(s.data[i]));
        --n;
    }
    return i;
}

static __device__ inline int32_t backward(Str s, int32_t i, int64_t& n) {
    while (n > 0 && i > 0) {
        do --i;
        while (i > 0 && continues(s.data[i]));
        --n;
    }
    return i;
}

// Existing characters at positions start … start + length - 1; a negative start counts from the end.
static __device__ OUT_OF_LINE Str substring_of(Str s, int64_t start, int64_t length) {
    int64_t left = start < 0 ? -start : start;
    int32_t begin = start < 0 ? backward(s, s.size, left) : forward(s, 0, left);
    if (start < 0) length -= left;  // positions before the first character
    const int32_t end = forward(s, begin, length);
    return Str{s.data + begin, end - begin};
}

static __device__ inline bool bytes_equal(const uint8_t* a, const uint8_t* b, int32_t size) {
    int32_t i = 0;
    ROLLED for (; i + 8 <= size; i += 8) {
        if (eight_bytes(a + i) != eight_bytes(b + i)) return false;
    }
    ROLLED for (; i < size; ++i) {
        if (a[i] != b[i]) return false;
    }
    return true;
}

static __device__ __forceinline__ bool starts_with(Str s, Str text) {
    return text.size <= s.size && bytes_equal(s.data, text.data, text.size);
}

static __device__ inline bool contains(Str s, Str text) {
    if (text.size == 0) return true;
    for (int32_t i = 0; (i = find(s, text.data[0], i)) + text.size <= s.size; ++i) {
        if (bytes_equal(s.data + i, text.data, text.size)) return true;
    }
    return false;
}

template <typename Sink, typename... Strs>
static __device__ __forceinline__ void concat(Sink& sink, Strs... parts) {
    (sink.append(parts), ...);
}
