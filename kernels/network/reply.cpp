#include "network/reply.hpp"
#include "protobuf/packed.hpp"

#include <cmath>
#include <memory>
#include <new>
#include <utility>

using livectr::reply::Candidate;
using namespace livectr::protobuf;

namespace {

// Key that rises where a value falls; 0 and -0 are equal, and NaN comes last.
uint64_t descending(double number) {
    const double value = number == number ? number + 0.0 : -INFINITY;
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    return bits >> 63 ? bits : ~bits & ~(uint64_t(1) << 63);
}

// Stable radix sort by the key, least byte first; returns where the result is. No branch depends on a key:
// half of those of a comparison sort would be guessed wrong.
const Candidate* sorted(Candidate* from, Candidate* to, int64_t n) {
    uint32_t places[8][256] = {};
    for (int64_t i = 0; i < n; ++i)
        for (int b = 0; b < 8; ++b) ++places[b][from[i].key >> 8 * b & 255];
    for (int b = 0; b < 8; ++b) {
        uint32_t* const place = places[b];
        if (n && place[from[0].key >> 8 * b & 255] == n) continue;  // all have the same byte
        uint32_t start = 0;
        for (int v = 0; v < 256; ++v) start += std::exchange(place[v], start);
        for (int64_t i = 0; i < n; ++i) to[place[from[i].key >> 8 * b & 255]++] = from[i];
        std::swap(from, to);
    }
    return from;
}

}  // namespace

namespace livectr::reply {

void probabilities(const float* logits, const float* scale, const float* shift, int64_t n, double* out) {
    for (int64_t i = 0; i < n; ++i) {
        const double logit = scale ? double(scale[i]) * logits[i] + shift[i] : logits[i];
        out[i] = 1.0 / (1.0 + std::exp(-logit));
    }
}

int64_t pack(const double* pctr, const double* bids, const double* values, int64_t n, const int64_t* fields,
             Candidate* memory, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) {
        const double value = values ? values[i] : bids[i] * pctr[i];
        memory[i] = {descending(value), value, static_cast<uint32_t>(i)};
    }
    const Candidate* const order = sorted(memory, memory + n, n);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i) bytes += varint_bytes(static_cast<uint64_t>(i));
    uint8_t* at = put_head(out, fields[0], bytes);
    for (int64_t i = 0; i < n; ++i) at = put_varint(at, order[i].index);
    at = put_head(at, fields[1], 4 * uint64_t(n));
    for (int64_t i = 0; i < n; ++i, at += 4) {
        const float value = static_cast<float>(pctr[order[i].index]);
        std::memcpy(at, &value, 4);
    }
    const auto put = [&](int64_t field, double factor) {
        at = put_head(at, field, 8 * uint64_t(n));
        for (int64_t i = 0; i < n; ++i, at += 8) {
            const double value = factor * order[i].value;
            std::memcpy(at, &value, 8);
        }
    };
    put(fields[2], fields[3] ? 1000 : 1);
    if (fields[3]) put(fields[3], 1);
    return at - out;
}

}  // namespace livectr::reply

extern "C" {

void reply_probabilities(const float* logits, const float* scale, const float* shift, int64_t n, double* out) {
    livectr::reply::probabilities(logits, scale, shift, n, out);
}

int64_t reply_most_bytes(int64_t n) { return livectr::reply::most_bytes(n); }

// See livectr::reply::pack. Returns -1 without memory.
int64_t pack_reply(const double* pctr, const double* bids, const double* values, int64_t n, const int64_t* fields,
                   uint8_t* out) {
    std::unique_ptr<Candidate[]> memory(new (std::nothrow) Candidate[size_t(2 * n)]);
    return memory ? livectr::reply::pack(pctr, bids, values, n, fields, memory.get(), out) : -1;
}

// Packs texts[n] (Arrow's offsets[n + 1] into bytes) as repeated field `inner` of a message, which is field `field`.
// Returns the number of bytes; out: null, or room for them.
int64_t pack_texts(const int32_t* offsets, const uint8_t* texts, int64_t n, int64_t field, int64_t inner,
                   uint8_t* out) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t size = uint64_t(offsets[i + 1] - offsets[i]);
        bytes += varint_bytes(uint64_t(inner << 3 | 2)) + varint_bytes(size) + size;
    }
    const uint64_t head = varint_bytes(uint64_t(field << 3 | 2)) + varint_bytes(bytes);
    if (!out) return int64_t(head + bytes);
    uint8_t* at = put_head(out, field, bytes);
    for (int64_t i = 0; i < n; ++i) {
        const size_t size = size_t(offsets[i + 1] - offsets[i]);
        at = put_head(at, inner, size);
        if (size) std::memcpy(at, texts + offsets[i], size);
        at += size;
    }
    return at - out;
}
}
