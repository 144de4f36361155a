// Forward pass of a CTR network on the host, for other units of the library; forward.cpp says what it computes.
#pragma once
#include <cstdint>

namespace livectr::forward {

struct Network;

// A part of the inputs of every row: a field's vector, behind whose weight w it lies, or dense features.
struct Source {
    const float* data;  // of row 0
    int64_t stride;     // floats from row to row
    int32_t number;     // of the source in the network
};

}  // namespace livectr::forward

extern "C" {

int64_t forward_partial_size(const livectr::forward::Network* network);

// Partial results out[rows, partial_size] of rows with `count` sources. Returns false without memory.
bool forward_partials(const livectr::forward::Network* network, const livectr::forward::Source* sources, int64_t count,
                      int64_t rows, float* out);

// Logits out[rows] of rows with `count` sources of their own and `shared` sources that all rows share. kept: null, or
// the addresses of the rows' partial results of other sources, which are added to those of the shared sources. Returns
// false without memory.
bool forward_run(const livectr::forward::Network* network, const livectr::forward::Source* own, int64_t count,
                 const livectr::forward::Source* common, int64_t shared, const float* const* kept, int64_t rows,
                 float* out);
}
