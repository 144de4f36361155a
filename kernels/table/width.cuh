// Number of values of a row or of a segment. Fixed<N> is known to the compiler, which unrolls and vectorises the loops
// over it; an int is known when the table is made. Templates take either.
#pragma once
#include "runtime/shim.cuh"

template <int N>
struct Fixed {
    constexpr Fixed() = default;
    __device__ explicit constexpr Fixed(int) {}
    __device__ __forceinline__ constexpr operator int() const { return N; }
};

#ifdef LIVECTR_HOST

namespace {

// Calls call(Fixed<n>()) if n is one of HOT, else call(n).
template <int... HOT, typename Call>
__forceinline__ void with_fixed(int n, Call&& call) {
    const bool hot = ((n == HOT && (call(Fixed<HOT>()), true)) || ...);
    if (!hot) call(n);
}

// Widths of segments: a weight, and vectors of the usual sizes.
template <typename Call>
void with_segment_width(int n, Call&& call) {
    with_fixed<1, 4, 8, 12, 16, 24, 32, 64>(n, call);
}

// Widths of rows: vectors, with and without a weight.
template <typename Call>
void with_row_width(int n, Call&& call) {
    with_fixed<1, 4, 5, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 64, 65>(n, call);
}

}  // namespace

#endif
