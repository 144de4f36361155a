// DIN's activation unit for other units of the library; attention.cpp says what it computes.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace livectr::attention {

// Unit with its parameters, and memory that calls use in turn. Thread-safe.
struct Pooler;

// Unit of vectors of `dim` numbers with hidden layers of `widths`, at least one, and its numbers p, as of
// `attention_forward_f32`. Throws bad_alloc.
std::shared_ptr<Pooler> pooler(int64_t dim, std::vector<int64_t> widths, const float* p);

// Pools lists values[offsets[l] : offsets[l + 1]] of vectors by query[samples, dim], out[samples, dim]. Sample b has
// list b, or with `once` the only one. Throws bad_alloc.
void pool(Pooler& of, const float* values, const int64_t* offsets, const float* query, int64_t samples, bool once,
          float* out);

}  // namespace livectr::attention
