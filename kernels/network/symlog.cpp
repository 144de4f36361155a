#include "network/symlog.hpp"
#include "operators/features.cuh"

void symlog(const float* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = from[i];
        const double size = fabs(double(x)), log = 1 + log1p_in_double(size - 1);
        to[i] = size > 1 ? float(copysign(log, double(x))) : x;  // NaN is not above 1
    }
}
