#include "runtime/hash.cuh"

extern "C" void mix(const int64_t* keys, int64_t n, uint64_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = mix64(uint64_t(keys[i]));
}
