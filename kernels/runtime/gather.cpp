#include <cstdint>
#include <cstring>

#include "runtime/threads.hpp"

// from[i] < 0: zeros
extern "C" void gather_rows(const char* const* sources, const int32_t* from, const int32_t* row, int64_t n,
                            int64_t row_bytes, char* out) {
    const int64_t grain = 1 + (int64_t(64) << 10) / row_bytes;
    livectr::parallel_chunks(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            char* const to = out + i * row_bytes;
            if (from[i] < 0) {
                memset(to, 0, size_t(row_bytes));
            } else {
                memcpy(to, sources[from[i]] + int64_t(row[i]) * row_bytes, size_t(row_bytes));
            }
        }
    });
}

// Every part has some rows of `out`, and adds to them in the order of `index`.
extern "C" void add_rows(const float* values, const int64_t* index, int64_t n, int64_t width, float* out,
                         int64_t rows) {
    const int64_t parts = std::min(livectr::pool().size, 1 + n / 4096);
    livectr::parallel_for(parts, [&](int64_t part) {
        const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
        for (int64_t i = 0; i < n; ++i) {
            if (index[i] < first || index[i] >= last) continue;
            const float* const from = values + i * width;
            float* const to = out + index[i] * width;
            for (int64_t k = 0; k < width; ++k) to[k] += from[k];
        }
    });
}
