// Device functions of casts between numbers, bools and strings.
#pragma once
#include "operators/decimals.cuh"

static __device__ __forceinline__ bool is_space(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static __device__ GPU_CALL Str trimmed(Str s) {
    while (s.size > 0 && is_space(s.data[s.size - 1])) --s.size;
    while (s.size > 0 && is_space(s.data[0])) s = Str{s.data + 1, s.size - 1};
    return s;
}

// The value as T: whole numbers are exact or 0; float32 is the float64 rounded once more.
template <typename T>
static __device__ __forceinline__ T number_of(const Decimal& d, Str s);
template <>
__device__ __forceinline__ int64_t number_of<int64_t>(const Decimal& d, Str) {
    return whole_of(d);
}
template <>
__device__ __forceinline__ int32_t number_of<int32_t>(const Decimal& d, Str) {
    const int64_t value = whole_of(d);
    return value == int64_t(int32_t(value)) ? int32_t(value) : 0;
}
template <>
__device__ __forceinline__ double number_of<double>(const Decimal& d, Str s) {
    return d.valid ? double_of(d, s) : 0.0;
}
template <>
__device__ __forceinline__ float number_of<float>(const Decimal& d, Str s) {
    return float(d.valid ? double_of(d, s) : 0.0);
}

template <typename T>
static __device__ __forceinline__ T cast_text(Str s) {
    s = trimmed(s);
    return number_of<T>(read_decimal(s), s);
}

// Truncates a float towards zero, within T's range; NaN is 0. `limit` is the first float above.
template <typename T>
static __device__ __forceinline__ T saturated_whole(double x, double limit, T low, T high) {
    return !(x > -limit) ? (x == x ? low : T(0)) : x < limit ? T(x) : high;
}

template <typename T>
struct Cast {
    static __device__ __forceinline__ T of(double x) { return T(x); }
    static __device__ __forceinline__ T of(int64_t x) { return T(x); }
};
template <>
struct Cast<int64_t> {
    static __device__ __forceinline__ int64_t of(double x) {
        return saturated_whole<int64_t>(x, 9223372036854775808.0, INT64_MIN, INT64_MAX);
    }
    static __device__ __forceinline__ int64_t of(int64_t x) { return x; }
};
template <>
struct Cast<int32_t> {
    static constexpr int32_t LOW = -2147483647 - 1, HIGH = 2147483647;
    static __device__ __forceinline__ int32_t of(double x) {
        return saturated_whole<int32_t>(x, 2147483648.0, LOW, HIGH);
    }
    static __device__ __forceinline__ int32_t of(int64_t x) { return x < LOW ? LOW : x > HIGH ? HIGH : int32_t(x); }
};
template <>
struct Cast<bool> {
    static __device__ __forceinline__ bool of(double x) { return x < 0 || x > 0; }
    static __device__ __forceinline__ bool of(int64_t x) { return x != 0; }
};

template <typename Sink>
static __device__ inline void cast_to_text(int64_t x, Sink& sink) {
    uint8_t text[20];
    int32_t at = 20;
    uint64_t rest = x < 0 ? 0 - uint64_t(x) : uint64_t(x);
    do {
        text[--at] = uint8_t('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (x < 0) text[--at] = '-';
    ROLLED for (; at < 20; ++at) sink.put(text[at]);
}

template <typename Sink>
static __device__ __forceinline__ void cast_bool_to_text(bool x, Sink& sink) {
    sink.append(x ? Str{(const uint8_t*)"true", 4} : Str{(const uint8_t*)"false", 5});
}
