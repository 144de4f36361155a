// Numbers as networks take them (host): as they are up to 1, and their logarithm beyond.
//
//     s(x) = x for |x| ≤ 1, else sign(x) · (1 + ln |x|)
//
// It is continuous, with its slope: the scale `symlog` of plots. Computed in double and rounded once. A number that is
// not finite stays as it is.
#pragma once
#include <cstdint>

// to[n] = s(from[n]); both may be the same memory. Not inlined: a unit whose compiler contracts products would have
// other bits.
extern "C" void symlog(const float* from, int64_t n, float* to);
