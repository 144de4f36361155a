// Pieces of gRPC's protocol over HTTP/2: deadlines, statuses and metadata in headers.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace livectr::serving {

using Headers = std::vector<std::pair<std::string, std::string>>;

// gRPC status codes that the front itself gives.
enum Code : int64_t {
    DEADLINE_EXCEEDED = 4,
    RESOURCE_EXHAUSTED = 8,
    UNIMPLEMENTED = 12,
    INTERNAL = 13,
    UNAVAILABLE = 14
};

struct Status {
    int64_t code = 0;
    std::string text, details;  // details: google.rpc.Status
};

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }
inline bool ends(std::string_view text, std::string_view with) {
    return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}

// Seconds of `grpc-timeout`, such as 100m; NaN: another form.
inline double timeout_s(std::string_view text) {
    if (text.size() < 2 || text.size() > 9) return NAN;
    double value = 0;
    for (char digit : text.substr(0, text.size() - 1)) {
        if (digit < '0' || digit > '9') return NAN;
        value = value * 10 + (digit - '0');
    }
    switch (text.back()) {
        case 'H': return value * 3600;
        case 'M': return value * 60;
        case 'S': return value;
        case 'm': return value / 1e3;
        case 'u': return value / 1e6;
        case 'n': return value / 1e9;
        default: return NAN;
    }
}

// Text of `grpc-message`: what is no printable ASCII, and %, is percent-encoded.
inline std::string percent_encoded(std::string_view text) {
    static constexpr char DIGITS[] = "0123456789ABCDEF";
    std::string out;
    for (unsigned char c : text) {
        if (c >= 0x20 && c < 0x7f && c != '%') out += char(c);
        else (out += '%', out += DIGITS[c >> 4]) += DIGITS[c & 15];
    }
    return out;
}

inline constexpr char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Value of a `-bin` header, without padding.
inline std::string base64(std::string_view bytes) {
    std::string out;
    uint32_t held = 0, bits = 0;
    for (unsigned char byte : bytes) {
        held = held << 8 | byte, bits += 8;
        for (; bits >= 6; bits -= 6) out += BASE64[held >> (bits - 6) & 63];
        held &= (1u << bits) - 1;
    }
    if (bits) out += BASE64[held << (6 - bits) & 63];
    return out;
}

// Tells if gRPC takes the value of a `-bin` header: no digit without a byte, and no bits behind the last byte.
inline bool is_base64(std::string_view text) {
    const size_t digits = std::min(text.find_first_not_of(std::string_view(BASE64, 64)), text.size());
    if (text.find_first_not_of('=', digits) != std::string_view::npos) return false;
    static constexpr size_t LEFT[] = {0, 63, 15, 3};  // bits of the last digit that are of no byte
    return digits == 0 ||
           (digits % 4 != 1 && !(std::string_view(BASE64, 64).find(text[digits - 1]) & LEFT[digits % 4]));
}

// Bytes of a `-bin` header; what is no base64 is left out.
inline std::string of_base64(std::string_view text) {
    std::string out;
    uint32_t held = 0, bits = 0;
    for (char c : text) {
        const size_t digit = std::string_view(BASE64, 64).find(c);
        if (digit == std::string_view::npos) continue;
        held = held << 6 | uint32_t(digit), bits += 6;
        if (bits >= 8) bits -= 8, out += char(held >> bits & 255);
        held &= (1u << bits) - 1;
    }
    return out;
}

// google.rpc.Status with one detail, `any`: a google.protobuf.Any.
inline std::string rich_status(int64_t code, std::string_view text, std::string_view any) {
    std::string out{'\x08', char(code)};
    const auto add = [&](char tag, std::string_view value) {
        out += tag;
        size_t size = value.size();
        for (; size >= 128; size >>= 7) out += char(size & 127 | 128);
        out += char(size);
        out += value;
    };
    add('\x12', text), add('\x1a', any);
    return out;
}

}  // namespace livectr::serving
