// Device functions of the operators on numbers, keys and lists. Pure functions, written once for both targets.
#pragma once
#include "runtime/columns.cuh"
#include "runtime/hash.cuh"

// Whole numbers wrap around: unsigned arithmetic has the bits without the undefined behavior.

static __device__ __forceinline__ int32_t add(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
static __device__ __forceinline__ int64_t add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
static __device__ __forceinline__ float add(float a, float b) { return a + b; }
static __device__ __forceinline__ double add(double a, double b) { return a + b; }

static __device__ __forceinline__ int32_t subtract(int32_t a, int32_t b) { return int32_t(uint32_t(a) - uint32_t(b)); }
static __device__ __forceinline__ int64_t subtract(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
static __device__ __forceinline__ float subtract(float a, float b) { return a - b; }
static __device__ __forceinline__ double subtract(double a, double b) { return a - b; }

static __device__ __forceinline__ int32_t multiply(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }
static __device__ __forceinline__ int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
static __device__ __forceinline__ float multiply(float a, float b) { return a * b; }
static __device__ __forceinline__ double multiply(double a, double b) { return a * b; }

static __device__ __forceinline__ float divide(float a, float b) { return a / b; }
static __device__ __forceinline__ double divide(double a, double b) { return a / b; }

// Rounded towards minus infinity. By zero: 0 for whole numbers. By -1 apart, because the smallest integer traps.
template <typename T>
static __device__ __forceinline__ T floor_divide_whole(T a, T b) {
    if (b == 0) return 0;
    if (b == -1) return subtract(T(0), a);
    return T(a / b) - T(a % b != 0 && (a < 0) != (b < 0));
}

template <typename T>
static __device__ __forceinline__ T modulo_whole(T a, T b) {
    if (b == 0 || b == -1) return 0;
    const T rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static __device__ __forceinline__ int32_t floor_divide(int32_t a, int32_t b) { return floor_divide_whole(a, b); }
static __device__ __forceinline__ int64_t floor_divide(int64_t a, int64_t b) { return floor_divide_whole(a, b); }
static __device__ __forceinline__ int32_t modulo(int32_t a, int32_t b) { return modulo_whole(a, b); }
static __device__ __forceinline__ int64_t modulo(int64_t a, int64_t b) { return modulo_whole(a, b); }

static __device__ GPU_CALL double modulo(double a, double b) {
    const double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? copysign(0.0, b) : rest;
}
// Floor division as in Python and NumPy: from the remainder, so that a == b * (a // b) + a % b holds as well as it can.
static __device__ GPU_CALL double floor_divide(double a, double b) {
    if (b == 0) return a / b;
    const double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysign(0.0, a / b);
    const double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}
static __device__ GPU_CALL float modulo(float a, float b) {
    const float rest = fmodf(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? copysignf(0.0f, b) : rest;
}
static __device__ GPU_CALL float floor_divide(float a, float b) {
    if (b == 0) return a / b;
    const float rest = fmodf(a, b);
    float quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysignf(0.0f, a / b);
    const float whole = floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1 : whole;
}

template <typename T>
static __device__ __forceinline__ bool less(T a, T b) {
    return a < b;
}
template <typename T>
static __device__ __forceinline__ bool less_equal(T a, T b) {
    return a <= b;
}
template <typename T>
static __device__ __forceinline__ bool greater(T a, T b) {
    return a > b;
}
template <typename T>
static __device__ __forceinline__ bool greater_equal(T a, T b) {
    return a >= b;
}
template <typename T>
static __device__ __forceinline__ bool equal(T a, T b) {
    return a == b;
}
template <typename T>
static __device__ __forceinline__ bool not_equal(T a, T b) {
    return a != b;
}

static __device__ __forceinline__ bool logical_and(bool a, bool b) { return a & b; }
static __device__ __forceinline__ bool logical_or(bool a, bool b) { return a | b; }
static __device__ __forceinline__ bool logical_not(bool a) { return !a; }

// Comparisons that are false for NaN keep it.
template <typename T>
static __device__ __forceinline__ T at_least(T x, T lo) {
    return x < lo ? lo : x;
}
template <typename T>
static __device__ __forceinline__ T at_most(T x, T hi) {
    return x > hi ? hi : x;
}

// ln(1 + x) without a branch, for the host's vector instructions, and with the same steps on every target. The method
// is fdlibm's (Sun Microsystems, 1993: s_log1p.c): 1 + x = 2^k·(1 + f) with √½ < 1 + f < √2, ln(1 + f) by a polynomial
// in s = f / (2 + f), and c for what 1 + x has lost. It is off by less than one unit of the last place.
static __device__ __forceinline__ double log1p_in_double(double x) {
    const double y = 1 + x, infinite = 1e300 * 1e300;
    uint64_t bits;
    memcpy(&bits, &y, 8);
    const uint64_t shifted = bits + (0x3FF0000000000000ull - 0x3FE6A09E667F3BCDull);
    const int64_t k = int64_t(shifted >> 52) - 1023;
    bits -= uint64_t(k) << 52;
    double m;
    memcpy(&m, &bits, 8);
    const double lost = y > 2 ? 1 - (y - x) : x - (y - 1);
    const double f = m - 1, c = lost / y, n = double(k), s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    double sum = 1.479819860511658591e-01;
    sum = 1.531383769920937332e-01 + z * sum;
    sum = 1.818357216161805012e-01 + z * sum;
    sum = 2.222219843214978396e-01 + z * sum;
    sum = 2.857142874366239149e-01 + z * sum;
    sum = 3.999999999940941908e-01 + z * sum;
    sum = 6.666666666666735130e-01 + z * sum;
    const double low = s * (half + z * sum) + (n * 1.90821492927058770002e-10 + c);
    double found = low - half + f + n * 6.93147180369123816490e-01;
    found = y < infinite ? found : y;
    found = y > 0 ? found : y == 0 ? -infinite : infinite - infinite;
    return x == x ? found : x;
}
static __device__ __forceinline__ float log1p_of(double x) { return float(log1p_in_double(x)); }
static __device__ __forceinline__ float normalise(double x, double mean, double std) { return float((x - mean) / std); }

static __device__ __forceinline__ int32_t hour_of(int64_t ts_ms, int64_t offset_ms) {
    return int32_t(modulo(floor_divide(add(ts_ms, offset_ms), int64_t(3600000)), int64_t(24)));
}
// 1970-01-01 was a Thursday: day 3 from Monday.
static __device__ __forceinline__ int32_t weekday_of(int64_t ts_ms, int64_t offset_ms) {
    return int32_t(modulo(floor_divide(add(ts_ms, offset_ms), int64_t(86400000)) + 3, int64_t(7)));
}

// Number of `bounds` (increasing) that are <= x. `!(x < bound)` puts NaN into the last bucket.
template <typename T>
static __device__ GPU_CALL int32_t bucketize(T x, const T* bounds, int32_t n) {
    int32_t low = 0;
    if (n <= 32) {  // known when it is compiled: rows side by side, no branch
        for (int32_t i = 0; i < n; ++i) low += !(x < bounds[i]);
        return low;
    }
    while (n > 0) {
        const int32_t half = n / 2;
        const bool right = !(x < bounds[low + half]);
        low = right ? low + half + 1 : low;
        n = right ? n - half - 1 : half;
    }
    return low;
}

static __device__ __forceinline__ int64_t key(int64_t x) { return x; }
static __device__ __forceinline__ int64_t key(int32_t x) { return x; }
static __device__ __forceinline__ int64_t key(bool x) { return x; }
static __device__ __forceinline__ int64_t key(Str s) { return int64_t(hash_bytes(s.data, s.size)); }

// Crosses: keys are mixed from left to right; the first is mixed alone, so that cross(0, 0) is not 0.

template <typename... Keys>
static __device__ __forceinline__ int64_t cross_with(uint64_t hash, Keys... keys) {
    ((hash = hash_combine(hash, uint64_t(int64_t(keys)))), ...);
    return int64_t(hash);
}

template <typename... Keys>
static __device__ __forceinline__ int64_t cross_keys(int64_t first, Keys... rest) {
    return cross_with(mix64(uint64_t(first)), rest...);
}

template <typename T>
constexpr bool IS_LIST = false;
template <typename Items>
constexpr bool IS_LIST<Row<Items>> = true;

template <typename Sink>
static __device__ __forceinline__ void cross_from(Sink& sink, uint64_t hash) {
    sink.push(int64_t(hash));
}

template <typename Sink, typename... Rest>
static __device__ __forceinline__ void cross_from(Sink& sink, uint64_t hash, int64_t x, const Rest&... rest) {
    cross_from(sink, hash_combine(hash, uint64_t(x)), rest...);
}

template <typename Sink, typename Items, typename... Rest>
static __device__ __forceinline__ void cross_from(Sink& sink, uint64_t hash, const Row<Items>& row,
                                                  const Rest&... rest) {
    if constexpr (!(IS_LIST<Rest> || ...)) {
        sink.fill(row.size(), [&](int32_t i) { return cross_with(hash, row.at(i), rest...); });
    } else {
        ROLLED for (int32_t i = 0; i < row.size() && !sink.done(); ++i)
            cross_from(sink, hash_combine(hash, uint64_t(row.at(i))), rest...);
    }
}

template <typename Sink, typename... Rest>
static __device__ __forceinline__ void cross(Sink& sink, int64_t x, const Rest&... rest) {
    cross_from(sink, mix64(uint64_t(x)), rest...);
}

template <typename Sink, typename Items, typename... Rest>
static __device__ __forceinline__ void cross(Sink& sink, const Row<Items>& row, const Rest&... rest) {
    if constexpr (!(IS_LIST<Rest> || ...)) {
        sink.fill(row.size(), [&](int32_t i) { return cross_keys(row.at(i), rest...); });
    } else {
        ROLLED for (int32_t i = 0; i < row.size() && !sink.done(); ++i)
            cross_from(sink, mix64(uint64_t(row.at(i))), rest...);
    }
}
