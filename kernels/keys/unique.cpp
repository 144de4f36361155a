// Deduplication of keys in many segments (host only). Segments are independent: no result depends on threads.
#include "runtime/threads.hpp"
#include "keys/unique_scratch.hpp"

constexpr int64_t FEW = 4096;  // keys of a call that one thread takes

// Segment s is keys[bounds[s]] to keys[bounds[s + 1]]. Its unique keys come at unique[ends[s]] to
// unique[ends[s + 1]], ends[0] = 0; index[nnz] counts within the segment. unique has room for nnz keys.
// Returns 0, or -1 without memory.
extern "C" int32_t unique_segments(const int64_t* keys, const int64_t* bounds, int64_t segments, int64_t* unique,
                                   int64_t* ends, uint32_t* index) {
    try {
        ends[0] = 0;
        livectr::parallel_if(bounds[segments] - bounds[0] > FEW, segments, [&](int64_t s) {
            const int64_t begin = bounds[s], n = bounds[s + 1] - begin;
            ends[s + 1] = unique_scratch().find(keys + begin, n, unique + begin, index + begin);
        });
    } catch (const std::bad_alloc&) {
        return -1;
    }
    for (int64_t s = 0; s < segments; ++s) {  // close the gaps; a segment never moves behind its beginning
        memmove(unique + ends[s], unique + bounds[s], ends[s + 1] * sizeof(int64_t));
        ends[s + 1] += ends[s];
    }
    return 0;
}
