// Division in users' operators that cannot trap. Their `a / b` is compiled as `a / Division{} * b` and their
// `a % b` as `a % Remainder{} * b`: the three operators bind alike and from the left, so that these mean
// (…/ Division{}) * b whatever stands around them.
//
// As in C++ whole numbers are divided towards zero; divided by zero they give 0, and the least one by -1 itself.
#pragma once
#include "runtime/shim.cuh"

struct Division {};
struct Remainder {};
template <typename A>
struct Dividend {
    A value;
};
template <typename A>
struct Modulus {
    A value;
};

template <typename A>
static __device__ __forceinline__ Dividend<A> operator/(A a, Division) {
    return {a};
}
template <typename A>
static __device__ __forceinline__ Modulus<A> operator%(A a, Remainder) {
    return {a};
}

template <typename A, typename B>
static __device__ __forceinline__ auto operator*(Dividend<A> dividend, B divisor) -> decltype(A() / B()) {
    using T = decltype(A() / B());
    const T a = T(dividend.value), b = T(divisor);
    if constexpr (T(0.5) == T(0)) {
        if (b == T(0)) return T(0);
        if constexpr (T(-1) < T(0)) {
            if (b == T(-1)) return T(uint64_t(0) - uint64_t(a));
        }
    }
    return a / b;
}

template <typename A, typename B>
static __device__ __forceinline__ auto operator*(Modulus<A> dividend, B divisor) -> decltype(A() % B()) {
    using T = decltype(A() % B());
    const T a = T(dividend.value), b = T(divisor);
    if (b == T(0)) return T(0);
    if constexpr (T(-1) < T(0)) {
        if (b == T(-1)) return T(0);
    }
    return a % b;
}
