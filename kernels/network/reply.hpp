// Order of scored candidates, packed for a reply in protobuf's wire format.
#pragma once
#include <cstdint>

namespace livectr::reply {

struct Candidate {
    uint64_t key;
    double value;
    uint32_t index;
};

// Bound of the bytes of a packed reply of n candidates.
constexpr int64_t most_bytes(int64_t n) { return 4 * 2 * 10 + (5 + 4 + 8 + 8) * n; }

// Click probabilities out[n] of logits, of calibrated ones with scale[n] and shift[n]: null, or
// logit -> scale * logit + shift.
void probabilities(const float* logits, const float* scale, const float* shift, int64_t n, double* out);

// Packs order, probabilities and values of n candidates, best value first, as repeated fields fields[0] (uint32),
// fields[1] (float), fields[2] (double). A value is bid * pctr, or values[n] where that is not null. With fields[3]
// (double) fields[2] is per mille, 1000 * value, and fields[3] the value. memory[2 n] is scratch. Returns the number of
// bytes, of which there are at most reply.py's `most_bytes(n)`.
int64_t pack(const double* pctr, const double* bids, const double* values, int64_t n, const int64_t* fields,
             Candidate* memory, uint8_t* out);

}  // namespace livectr::reply
