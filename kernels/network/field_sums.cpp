// First layer and FM over fields (models/fused.py, `field_sums`): sums and products of the same rows, a cache's worth
// of rows at a time.
//
// values f32[B, F, W] are rows [w | v], W = 1 + K; x f32[B, D] are dense features, and s f32[B, D] those that the first
// layer takes (network/symlog.hpp). A row of out is
//
//     [Σ_f v_f W_f + s U | Σ_f s_f w_f + x u − ½ Σ_f ‖v_f‖² | Σ_f v_f]    f32[H + W]
//
// Sums run over fields in order, and those over examples by chunks of GRAIN: bits do not depend on the threads, nor,
// with float32 factors, on the CPU.
#include "network/packed.hpp"

namespace livectr::fields {

using product::Matrix;
using product::with;

constexpr int64_t GRAIN = 264;  // examples; whole tiles of either size

struct Sizes {
    int64_t examples, fields, width, dense, hidden;
};

inline void sums_of_row(const Sizes& of, const float* values, const float* scale, const float* x, const float* u,
                        float* squares, float* out) {
    const int64_t k = of.width - 1;
    float first = 0;
    std::fill_n(out, of.width, 0.0f);
    std::fill_n(squares, k, 0.0f);
    for (int64_t f = 0; f < of.fields; ++f, values += of.width) {
        first = std::fma(scale[f], values[0], first);
        for (int64_t i = 0; i < k; ++i) {
            out[1 + i] += values[1 + i];
            squares[i] = std::fma(values[1 + i], values[1 + i], squares[i]);
        }
    }
    for (int64_t d = 0; d < of.dense; ++d) first = std::fma(x[d], u[d], first);
    float square = 0;
    for (int64_t i = 0; i < k; ++i) square += squares[i];
    out[0] = std::fma(-0.5f, square, first);
}

// Gradients of a row without the products': g s_f of w_f, g₃ − g v_f of v_f; adds g w_f to that of s_f.
inline void gradients_of_row(const Sizes& of, const float* values, const float* scale, const float* grad, float* out,
                             float* of_scale) {
    const float g = grad[0];
    for (int64_t f = 0; f < of.fields; ++f, values += of.width, out += of.width) {
        out[0] = g * scale[f];
        of_scale[f] = std::fma(g, values[0], of_scale[f]);
        for (int64_t i = 1; i < of.width; ++i) out[i] = std::fma(-g, values[i], grad[i]);
    }
}

template <typename T>
std::unique_ptr<uint32_t[]> packed(int kind, const Matrix<T>& b, int64_t n, int64_t k) {
    std::unique_ptr<uint32_t[]> panels;
    with(kind, [&](auto factors) { panels = product::packed<decltype(factors)>(b, n, k); });
    return panels;
}

inline void multiply(int kind, const Matrix<float>& a, const uint32_t* panels, int64_t first, int64_t last, int64_t n,
                     int64_t k, float* c, int64_t ldc, bool add) {
    with(kind,
         [&](auto factors) { product::multiply_rows<decltype(factors)>(a, panels, first, last, n, k, c, ldc, add); });
}

}  // namespace livectr::fields

// Writes out f32[B, H + W] with rows `ld` apart; its products only where `kind` (of rows) and `of_s` (of dense
// features) have factors: else the caller multiplies. weight f32[F · W, H] has zeros for w; s_weight is U, f32[D, H].
// Returns false without memory.
extern "C" bool field_sums(const int64_t* sizes, const float* values, const float* scale, const float* weight,
                           const float* x, const float* s, const float* s_weight, const float* u, float* out,
                           int64_t ld, int kind, int of_s) {
    using namespace livectr;
    using namespace livectr::fields;
    const Sizes of{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    const int64_t row = of.fields * of.width, k = std::max<int64_t>(of.width - 1, 0);
    try {
        const auto panels = packed(kind, Matrix<float>{weight, of.hidden, 1}, of.hidden, row);
        const auto s_panels = packed(of_s, Matrix<float>{s_weight, of.hidden, 1}, of.hidden, of.dense);
        parallel_chunks(of.examples, GRAIN, [&](int64_t first, int64_t last) {
            std::unique_ptr<float[]> squares(new float[k]);
            for (int64_t b = first; b < last; ++b)
                sums_of_row(of, values + b * row, scale, x + b * of.dense, u, squares.get(), out + b * ld + of.hidden);
            multiply(kind, {values, row, 1}, panels.get(), first, last, of.hidden, row, out, ld, false);
            multiply(of_s, {s, of.dense, 1}, s_panels.get(), first, last, of.hidden, of.dense, out, ld, true);
        });
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Writes the gradients of values f32[B, F, W] and scale f32[F] from those of out, `grad` with rows `ld` apart; those of
// the products are added where `kind` has factors. Returns false without memory.
extern "C" bool field_gradients(const int64_t* sizes, const float* values, const float* scale, const float* weight,
                                const float* grad, int64_t ld, float* of_values, float* of_scale, int kind) {
    using namespace livectr;
    using namespace livectr::fields;
    const Sizes of{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    const int64_t row = of.fields * of.width, chunks = (of.examples + GRAIN - 1) / GRAIN;
    try {
        const auto panels = packed(kind, Matrix<float>{weight, 1, of.hidden}, row, of.hidden);
        std::unique_ptr<float[]> partial(new float[chunks * of.fields]());
        parallel_chunks(of.examples, GRAIN, [&](int64_t first, int64_t last) {
            for (int64_t b = first; b < last; ++b)
                gradients_of_row(of, values + b * row, scale, grad + b * ld + of.hidden, of_values + b * row,
                                 &partial[first / GRAIN * of.fields]);
            multiply(kind, {grad, ld, 1}, panels.get(), first, last, row, of.hidden, of_values, row, true);
        });
        std::fill_n(of_scale, of.fields, 0.0f);
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
            for (int64_t f = 0; f < of.fields; ++f) of_scale[f] += partial[chunk * of.fields + f];
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
