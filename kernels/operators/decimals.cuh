// Decimal numbers in text → the nearest float64 (ties to even), whatever the number of digits.
//
//   1. up to 2⁵³ and powers up to 10²²: both exact, so one multiplication rounds once (Clinger, PLDI 1990)
//   2. else a 64-bit product with a bound on its error: right unless half-way lies within the bound (below 1 %)
//   3. else half-way's own digits, one by one, against the text's (Gay, "Correctly rounded conversions", 1990)
#pragma once
#include "operators/strings.cuh"

// (-1)^negative · digits · 10^exponent.
struct Decimal {
    uint64_t digits;  // the first 19 significant digits, without trailing zeros
    int64_t exponent;
    int32_t places;  // how many digits that are
    int32_t first;   // where the first digit that is not 0 stands
    bool negative;
    bool truncated;  // there are more digits than `digits` holds, and not only zeros
    bool valid;
};

// The whole of s as a number: [+-] digits [. digits] [e [+-] digits]; at least one digit before the e.
static __device__ OUT_OF_LINE Decimal read_decimal(Str s) {
    Decimal d{};
    int32_t i = 0;
    if (i < s.size && (s.data[i] == '-' || s.data[i] == '+')) d.negative = s.data[i++] == '-';
    bool any = false, point = false;
    int64_t zeros = 0;  // behind the digits taken so far
    ROLLED for (; i < s.size; ++i) {
        const uint32_t digit = uint32_t(s.data[i]) - '0';
        if (digit > 9) {
            if (s.data[i] != '.' || point) break;
            point = true;
            continue;
        }
        any = true;
        d.exponent -= point;
        if (digit == 0 && d.digits == 0) continue;
        if (d.digits == 0) d.first = i;
        if (digit == 0) {
            ++zeros;
            ++d.exponent;
        } else if (!d.truncated && d.places + zeros < 19) {
            ROLLED for (int64_t k = 0; k < zeros; ++k) d.digits *= 10;
            d.digits = d.digits * 10 + digit;
            d.places += int32_t(zeros) + 1;
            d.exponent -= zeros;
            zeros = 0;
        } else {
            d.truncated = true;
            ++d.exponent;
        }
    }
    if (!any) return d;
    if (i < s.size && (s.data[i] | 0x20) == 'e') {
        ++i;
        const bool down = i < s.size && s.data[i] == '-';
        if (i < s.size && (s.data[i] == '-' || s.data[i] == '+')) ++i;
        if (i == s.size) return d;
        int64_t power = 0;
        ROLLED for (; i < s.size && uint32_t(s.data[i]) - '0' <= 9; ++i) {
            // Beyond the longest string's digits, more changes nothing.
            if (power < 1000000000000ll) power = power * 10 + (s.data[i] - '0');
        }
        d.exponent += down ? -power : power;
    }
    d.valid = i == s.size;
    return d;
}

// Exact; 0 where it is no whole number of int64.
static __device__ inline int64_t whole_of(const Decimal& d) {
    if (!d.valid || d.digits == 0 || d.truncated || d.exponent < 0 || d.exponent > 18) return 0;
    uint64_t value = d.digits;
    ROLLED for (int64_t k = 0; k < d.exponent; ++k) {
        if (value > 0xFFFFFFFFFFFFFFFFull / 10) return 0;
        value *= 10;
    }
    if (value > 0x7FFFFFFFFFFFFFFFull + d.negative) return 0;
    return int64_t(d.negative ? 0 - value : value);
}

static __device__ __forceinline__ uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDACC__
    return __umul64hi(a, b);
#else
    return uint64_t((unsigned __int128)a * b >> 64);
#endif
}

static __device__ __forceinline__ int32_t leading_zeros(uint64_t word) {
#ifdef __CUDACC__
    return __clzll(int64_t(word));
#else
    return __builtin_clzll(word);
#endif
}

static __device__ __forceinline__ double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

// A natural number of up to 1024 bits, low words first.
struct Natural {
    uint32_t words[32];
    int32_t size;

    __device__ inline void set(uint64_t value) {
        words[0] = uint32_t(value);
        words[1] = uint32_t(value >> 32);
        size = words[1] != 0 ? 2 : words[0] != 0;
    }
    __device__ inline void multiply(uint32_t factor) {
        uint64_t carry = 0;
        ROLLED for (int32_t i = 0; i < size; ++i) {
            carry += uint64_t(words[i]) * factor;
            words[i] = uint32_t(carry);
            carry >>= 32;
        }
        if (carry != 0) words[size++] = uint32_t(carry);
    }
    __device__ inline void power_of_five(int32_t power) {
        ROLLED for (; power >= 13; power -= 13) multiply(1220703125u);
        ROLLED for (; power > 0; --power) multiply(5);
    }
    __device__ inline void shift_left(int32_t bits) {
        multiply(1u << (bits & 31));
        const int32_t whole = bits >> 5;
        ROLLED for (int32_t i = size - 1; i >= 0; --i) words[i + whole] = words[i];
        ROLLED for (int32_t i = 0; i < whole; ++i) words[i] = 0;
        size += whole;
    }
    __device__ inline bool at_least(const Natural& other) const {
        if (size != other.size) return size > other.size;
        ROLLED for (int32_t i = size - 1; i >= 0; --i) {
            if (words[i] != other.words[i]) return words[i] > other.words[i];
        }
        return true;
    }
    __device__ inline void subtract(const Natural& other) {  // other is not larger
        int64_t borrow = 0;
        ROLLED for (int32_t i = 0; i < size; ++i) {
            borrow += int64_t(words[i]) - (i < other.size ? int64_t(other.words[i]) : 0);
            words[i] = uint32_t(borrow);
            borrow >>= 32;
        }
        while (size > 0 && words[size - 1] == 0) --size;
    }
};

// Sign of (the number in s, 0.d₁d₂… · 10^point) - half · 2^power: digits of half-way are made one by one. Sizes:
// |point| <= 330 and -1075 <= power keep all below 2^830.
static __device__ OUT_OF_LINE int32_t compare_with_half(Str s, int32_t first, int32_t point, uint64_t half,
                                                        int32_t power) {
    Natural rest, one;  // half · 2^power / 10^point = rest / one
    rest.set(half);
    one.set(1);
    (point < 0 ? rest : one).power_of_five(point < 0 ? -point : point);
    const int32_t twos = power - point;
    (twos > 0 ? rest : one).shift_left(twos > 0 ? twos : -twos);
    ROLLED for (int32_t i = first; i < s.size; ++i) {
        if (s.data[i] == '.') continue;
        const int32_t digit = int32_t(s.data[i]) - '0';
        if (digit < 0 || digit > 9) break;
        rest.multiply(10);
        int32_t ours = 0;
        ROLLED for (; rest.at_least(one); ++ours) rest.subtract(one);
        if (digit != ours) return digit > ours ? 1 : -1;
    }
    return rest.size == 0 ? 0 : -1;
}

static __device__ const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                         1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
// The first 64 bits of 5^(27 k), rounded, for k = -13 … 11.
static __device__ const uint64_t FIVES_27[] = {
    0x8049A4AC0C5811AEull, 0xCF42894A5DCE35EAull, 0xA76C582338ED2622ull, 0x873E4F75E2224E68ull, 0xDA7F5BF590966849ull,
    0xB080392CC4349DEDull, 0x8E938662882AF53Eull, 0xE65829B3046B0AFAull, 0xBA121A4650E4DDECull, 0x964E858C91BA2655ull,
    0xF2D56790AB41C2A3ull, 0xC428D05AA4751E4Dull, 0x9E74D1B791E07E48ull, 0x8000000000000000ull, 0xCECB8F27F4200F3Aull,
    0xA70C3C40A64E6C52ull, 0x86F0AC99B4E8DAFDull, 0xDA01EE641A708DEAull, 0xB01AE745B101E9E4ull, 0x8E41ADE9FBEBC27Dull,
    0xE5D3EF282A242E82ull, 0xB9A74A0637CE2EE1ull, 0x95F83D0A1FB69CD9ull, 0xF24A01A73CF2DCD0ull, 0xC3B8358109E84F07ull};

// d as read from s; beyond float64's range an infinity.
static __device__ OUT_OF_LINE double double_of(const Decimal& d, Str s) {
    const uint64_t sign = uint64_t(d.negative) << 63;
    const int64_t point = d.exponent + d.places;
    if (d.digits == 0 || point < -330) return double_of_bits(sign);
    const uint64_t infinity = 0x7FF0000000000000ull;
    if (point > 310) return double_of_bits(sign | infinity);
    const int32_t power = int32_t(d.exponent);
    if (!d.truncated && d.digits <= 1ull << 53 && power >= -22 && power <= 22) {
        const double exact = double(d.digits), value = power < 0 ? exact / TENS[-power] : exact * TENS[power];
        return d.negative ? -value : value;
    }
    // digits · 10^power = f · 2^e, 2⁶³ <= f < 2⁶⁴; the true f differs by less than `error`.
    const int32_t block = (power + 27 * 13) / 27 - 13, fives = power - 27 * block;
    uint64_t small = 1;
    ROLLED for (int32_t k = 0; k < fives; ++k) small *= 5;
    int32_t shift = leading_zeros(d.digits);
    uint64_t f = d.digits << shift;
    int32_t e = power - shift;
    shift = leading_zeros(small);
    f = high_product(f, small << shift);
    e += 64 - shift;
    shift = leading_zeros(f);
    f = high_product(f << shift, FIVES_27[block + 13]);
    e += 64 - shift + (152170 * 27 * block >> 16) - 63;  // floor(log2(5^n)) = 152170 n >> 16 for these n
    shift = leading_zeros(f);
    f <<= shift;
    e -= shift;
    const uint64_t error = d.truncated ? 128 : 16;
    const int32_t top = e + 63;  // 2^top <= value < 2^(top + 1)
    if (top > 1023) return double_of_bits(sign | infinity);
    const int32_t drop = top >= -1022 ? 11 : 11 - 1022 - top;
    if (drop > 65) return double_of_bits(sign);
    const uint64_t kept = drop > 63 ? 0 : f >> drop, rest = drop > 63 ? f : f - (kept << drop);
    const uint64_t half = 1ull << (drop > 64 ? 63 : drop - 1);
    bool up = rest > half;
    if (drop > 63 || (rest + error >= half && rest <= half + error)) {
        const int32_t sign_of_rest = compare_with_half(s, d.first, int32_t(point), 2 * kept + 1, e + drop - 1);
        up = sign_of_rest > 0 || (sign_of_rest == 0 && (kept & 1) != 0);
    }
    const uint64_t exponent = top >= -1022 ? uint64_t(top + 1022) << 52 : 0;
    return double_of_bits(sign | (exponent + kept + up));  // a carry moves into the exponent, up to infinity
}
