// Calls of kernels/network/packed.py.
#include "network/packed.hpp"

// c f32[m, n] = a [m, k] · b f32[k, n], added to what c has where `add` is set; `kind` of the factors: 0 float32,
// 1 float32 that are rounded to bfloat16, 2 as 1 with a stored as bfloat16, 3 as 0 with a stored as float16. Strides
// are in numbers. Returns false without memory.
extern "C" bool packed_product(int kind, const void* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                               int64_t b_column, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc, bool add) {
    using namespace livectr::product;
    const Matrix<float> left{static_cast<const float*>(a), a_row, a_column}, right{b, b_row, b_column};
    try {
        if (kind == 0) product<Singles>(left, right, m, n, k, c, ldc, add);
        else if (kind == 1) product<Pairs>(left, right, m, n, k, c, ldc, add);
        else if (kind == 3)
            product<Singles>(Matrix<Half>{static_cast<const Half*>(a), a_row, a_column}, right, m, n, k, c, ldc, add);
        else
            product<Pairs>(Matrix<uint16_t>{static_cast<const uint16_t*>(a), a_row, a_column}, right, m, n, k, c, ldc,
                           add);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Instructions that this library is compiled for: 3 AVX512-BF16, 2 AVX-512, 1 FMA, 0 none of them.
extern "C" int packed_level() {
#if defined(__AVX512BF16__)
    return 3;
#elif defined(__AVX512F__)
    return 2;
#elif defined(__FMA__)
    return 1;
#else
    return 0;
#endif
}
