// Repeated fields in Protobuf's wire format: each function writes what begins at `at`, and returns its end.
#pragma once
#include <cstdint>
#include <cstring>

namespace livectr::protobuf {

constexpr int64_t MOST_VARINT = 10;  // bytes

inline uint8_t* put_varint(uint8_t* at, uint64_t value) {
    for (; value >= 128; value >>= 7) *at++ = static_cast<uint8_t>(value | 128);
    *at++ = static_cast<uint8_t>(value);
    return at;
}

inline uint64_t varint_bytes(uint64_t value) {
    uint64_t bytes = 1;
    while (value >>= 7) ++bytes;
    return bytes;
}

// Head of a field of some bytes: a message, a text or a packed field.
inline uint8_t* put_head(uint8_t* at, int64_t field, uint64_t bytes) {
    return put_varint(put_varint(at, static_cast<uint64_t>(field << 3 | 2)), bytes);
}

// Packed float or double field of n numbers; little-endian, as this machine.
template <class T>
inline uint8_t* put_numbers(uint8_t* at, int64_t field, const T* numbers, int64_t n) {
    at = put_head(at, field, sizeof(T) * uint64_t(n));
    if (n) std::memcpy(at, numbers, sizeof(T) * size_t(n));
    return at + sizeof(T) * size_t(n);
}

// Packed integer field of numbers[n], which have `bytes` bytes.
inline uint8_t* put_varints(uint8_t* at, int64_t field, const int64_t* numbers, int64_t n, uint64_t bytes) {
    at = put_head(at, field, bytes);
    for (int64_t i = 0; i < n; ++i) at = put_varint(at, static_cast<uint64_t>(numbers[i]));
    return at;
}

inline uint64_t varints_bytes(const int64_t* numbers, int64_t n) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i) bytes += varint_bytes(static_cast<uint64_t>(numbers[i]));
    return bytes;
}

}  // namespace livectr::protobuf
