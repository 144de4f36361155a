// Number of values of a row or of a segment: Fixed<N> for the usual numbers, whose loops are unrolled and vectorised, or
// an int. Both are an int to the functions that have the loops, and these are inlined.
#pragma once
#include "row/vector_loop.cuh"
#ifdef LIVECTR_HOST
#include <type_traits>

#define INLINED __attribute__((always_inline))  // a lambda of an inner loop
#define SEPARATE __attribute__((noinline))      // loops of a width: the compiler has registers for one width at a time

namespace {

template <int N>
struct Fixed {
    constexpr Fixed() = default;
    explicit constexpr Fixed(int) {}
    constexpr operator int() const { return N; }
};

template <typename N>
constexpr bool is_fixed = false;
template <int N>
constexpr bool is_fixed<Fixed<N>> = true;

template <int N>
struct Lanes {
    typedef float Type __attribute__((vector_size(4 * N)));
};
template <>
struct Lanes<1> {
    using Type = float;
};

// N floats in registers.
template <int N>
class Floats {
  public:
    __forceinline__ void load(const float* from) {
        memcpy(&head_, from, sizeof(head_));
        if constexpr (N > HEAD) rest_.load(from + HEAD);
    }
    __forceinline__ void add(const float* from) {
        Head more;
        memcpy(&more, from, sizeof(more));
        head_ += more;
        if constexpr (N > HEAD) rest_.add(from + HEAD);
    }
    __forceinline__ void store(float* to) const {
        memcpy(to, &head_, sizeof(head_));
        if constexpr (N > HEAD) rest_.store(to + HEAD);
    }

  private:
    struct None {};
    static constexpr int HEAD = N >= 8 ? 8 : N >= 4 ? 4 : N >= 2 ? 2 : 1;
    using Head = typename Lanes<HEAD>::Type;
    Head head_;
    [[no_unique_address]] std::conditional_t<(N > HEAD), Floats<N - HEAD>, None> rest_;
};

// to[n] = the sum of the vectors float[n] at vector(first), ..., vector(last - 1), added in this order; first < last. A
// vector may be overwritten by the next call.
template <int N, typename I, typename Vector>
__forceinline__ void add_vectors(Fixed<N>, float* to, I first, I last, Vector&& vector) {
    Floats<N> sum;
    sum.load(vector(first));
    for (I i = first + 1; i < last; ++i) sum.add(vector(i));
    sum.store(to);
}
template <typename I, typename Vector>
__forceinline__ void add_vectors(int n, float* to, I first, I last, Vector&& vector) {
    memcpy(to, vector(first), sizeof(float) * n);
    for (I i = first + 1; i < last; ++i) {
        const float* const more = vector(i);
        VECTOR_LOOP
        for (int d = 0; d < n; ++d) to[d] += more[d];
    }
}

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
