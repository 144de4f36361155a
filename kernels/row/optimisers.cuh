// Optimisers of a segment of a row: n weights `w`, their state `s` (state(n) floats), gradient `g` and
// hyper-parameters `h`, of which the first is the learning rate: it may change between two steps. A row is
// updated once per step, with the sum of its gradients. The functions are inlined: loops over a constant n are unrolled.
#pragma once
#include "row/vector_loop.cuh"

// Gradient of a weight by the loss, or by the loss and a regularisation that pulls it to 0 (`Adaptive`, below).
struct Unregularised {};
static __device__ __forceinline__ float regularised(float g, float, Unregularised) { return g; }
static __device__ __forceinline__ float regularised(float g, float w, float decay) { return g + decay * w; }

// h: lr
struct SGD {
    static __device__ __forceinline__ constexpr int state(int) { return 0; }
    static __device__ __forceinline__ void init(int, const float*, float*, const float*) {}
    template <typename Decay = Unregularised>
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float*, const float* __restrict__ g,
                                                  const float* __restrict__ h, Decay decay = {}) {
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) w[i] -= h[0] * regularised(g[i], w[i], decay);
    }
};

// Duchi, Hazan, Singer 2011, diagonal form. s: sum of squared gradients; h: lr, eps, initial sum
struct AdaGrad {
    static __device__ __forceinline__ constexpr int state(int n) { return n; }
    static __device__ __forceinline__ void init(int n, const float*, float* s, const float* h) {
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) s[i] = h[2];
    }
    template <typename Decay = Unregularised>
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h,
                                                  Decay decay = {}) {
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) {
            const float d = regularised(g[i], w[i], decay);
            s[i] += d * d;
            w[i] -= h[0] * d / (sqrtf(s[i]) + h[1]);
        }
    }
};

// Row-wise AdaGrad, as FBGEMM's "exact" Adagrad (Gupta et al. 2014 keep a sum per row): s: the sum of the means of
// squared gradients; h: lr, eps, initial sum. The squares are added in eight lanes, i % 8, and these in pairs:
// an order that vectorises, the same on every target.
struct RowAdaGrad {
    static constexpr int LANES = 8;
    static __device__ __forceinline__ constexpr int state(int) { return 1; }
    static __device__ __forceinline__ void init(int, const float*, float* s, const float* h) { s[0] = h[2]; }
    template <typename Decay = Unregularised>
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h,
                                                  Decay decay = {}) {
        float lanes[LANES] = {};
        for (int i = 0; i < n; ++i) {
            const float d = regularised(g[i], w[i], decay);
            lanes[i % LANES] += d * d;
        }
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        }
        s[0] += lanes[0] / n;
        const float rate = h[0] / (sqrtf(s[0]) + h[1]);
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) w[i] -= rate * regularised(g[i], w[i], decay);
    }
};

// Kingma, Ba 2015, Algorithm 1, with a step count per row, so that the bias terms are
// right for rare keys. s: m[n], v[n], 1-beta1^t, 1-beta2^t (kept instead of t: no pow, no cancellation);
// h: lr, eps, beta1, beta2, 1-beta1, 1-beta2
struct Adam {
    static __device__ __forceinline__ constexpr int state(int n) { return 2 * n + 2; }
    static __device__ __forceinline__ void init(int n, const float*, float* s, const float*) {
        for (int i = 0; i < state(n); ++i) s[i] = 0.0f;
    }
    template <typename Decay = Unregularised>
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h,
                                                  Decay decay = {}) {
        float* const m = s;
        float* const v = s + n;
        const float c1 = s[2 * n] = h[2] * s[2 * n] + h[4];
        const float c2 = s[2 * n + 1] = h[3] * s[2 * n + 1] + h[5];
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) {
            const float d = regularised(g[i], w[i], decay);
            m[i] = h[2] * m[i] + h[4] * d;
            v[i] = h[3] * v[i] + h[5] * d * d;
            w[i] -= h[0] * (m[i] / c1) / (sqrtf(v[i] / c2) + h[1]);
        }
    }
};

// FTRL-proximal: McMahan et al. 2013, Algorithm 1: w = 0 exactly where |z| <= l1.
// s: z[n], sums of squared gradients [n], alpha of the last update; h: alpha, beta, l1, l2
//
// The paper's sigma_t = 1/eta_t - 1/eta_(t-1) is taken with the alpha of each step, so that a rate that was
// lowered since the row's last update slows its steps down and does not shrink its weights.
struct FTRL {
    static __device__ __forceinline__ constexpr int state(int n) { return 2 * n + 1; }
    // The paper starts at w = 0. A non-zero initial weight is written into z, as the z that gives it.
    static __device__ __forceinline__ void init(int n, const float* w, float* s, const float* h) {
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) {
            const float l1 = w[i] > 0.0f ? h[2] : w[i] < 0.0f ? -h[2] : 0.0f;
            s[i] = -w[i] * (h[1] / h[0] + h[3]) - l1;
            s[n + i] = 0.0f;
        }
        s[2 * n] = h[0];
    }
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float* const z = s;
        float* const squares = s + n;
        // 0 unless the rate has changed
        const float step = s[2 * n] == h[0] ? 0.0f : 1.0f / h[0] - 1.0f / s[2 * n];
        s[2 * n] = h[0];
        VECTOR_LOOP
        for (int i = 0; i < n; ++i) {
            const float root = sqrtf(squares[i]);
            squares[i] += g[i] * g[i];
            const float next_root = sqrtf(squares[i]);
            z[i] += g[i] - ((next_root - root) / h[0] + (h[1] + root) * step) * w[i];
            const float l1 = z[i] < 0.0f ? -h[2] : h[2];
            const float weight = -(z[i] - l1) / ((h[1] + next_root) / h[0] + h[3]);
            w[i] = fabsf(z[i]) <= h[2] ? 0.0f : weight;
        }
    }
};

// Adaptive regularisation (Zhou et al. 2017, arXiv 1706.06978v1; "mini-batch aware" in its KDD 2018 version, 5.1) of a
// weight w_i that occurs in the batch: w_i <- w_i - eta (g_i + l2 w_i / n_i). The term in brackets is the gradient of
// `Base`. n_i: batches that the row occurred in, this one included, up to 2^24: layout.py says why not samples.
// s: Base's, then n_i; h: Base's, then l2 at L2
template <typename Base>
struct Adaptive {
    static constexpr int L2 = 6;  // after the most that a Base has; layout.py pads up to it
    static __device__ __forceinline__ constexpr int state(int n) { return Base::state(n) + 1; }
    static __device__ __forceinline__ void init(int n, const float* w, float* s, const float* h) {
        Base::init(n, w, s, h);
        s[Base::state(n)] = 0.0f;
    }
    static __device__ __forceinline__ void update(int n, float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float& batches = s[Base::state(n)];
        batches += batches < 16777216.0f ? 1.0f : 0.0f;
        Base::update(n, w, s, g, h, h[L2] / batches);
    }
};
