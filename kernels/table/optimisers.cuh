// Optimisers of a segment of a row: N weights `w`, their state `s` (STATE floats), gradient `g` and
// hyper-parameters `h`, of which the first is the learning rate: it may change between two steps. A row is
// updated once per step, with the sum of its gradients.
#pragma once
#include "runtime/shim.cuh"

// h: lr
template <int N>
struct SGD {
    static constexpr int STATE = 0;
    static __device__ __forceinline__ void init(const float*, float*, const float*) {}
    static __device__ __forceinline__ void update(float* w, float*, const float* g, const float* h) {
        for (int i = 0; i < N; ++i) w[i] -= h[0] * g[i];
    }
};

// Duchi, Hazan, Singer 2011, diagonal form. s: sum of squared gradients; h: lr, eps, initial sum
template <int N>
struct AdaGrad {
    static constexpr int STATE = N;
    static __device__ __forceinline__ void init(const float*, float* s, const float* h) {
        for (int i = 0; i < N; ++i) s[i] = h[2];
    }
    static __device__ __forceinline__ void update(float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        for (int i = 0; i < N; ++i) {
            s[i] += g[i] * g[i];
            w[i] -= h[0] * g[i] / (sqrtf(s[i]) + h[1]);
        }
    }
};

// Row-wise AdaGrad, as FBGEMM's "exact" Adagrad (Gupta et al. 2014 keep a sum per row): s: the sum of the means of
// squared gradients; h: lr, eps, initial sum. The squares are added in eight lanes, i % 8, and these in pairs:
// an order that vectorises, the same on every target.
template <int N>
struct RowAdaGrad {
    static constexpr int STATE = 1;
    static constexpr int LANES = 8;
    static __device__ __forceinline__ void init(const float*, float* s, const float* h) { s[0] = h[2]; }
    static __device__ __forceinline__ void update(float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float lanes[LANES] = {};
        for (int i = 0; i < N; ++i) lanes[i % LANES] += g[i] * g[i];
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        }
        s[0] += lanes[0] / N;
        const float rate = h[0] / (sqrtf(s[0]) + h[1]);
        for (int i = 0; i < N; ++i) w[i] -= rate * g[i];
    }
};

// Kingma, Ba 2015, Algorithm 1, with a step count per row, so that the bias terms are
// right for rare keys. s: m[N], v[N], 1-beta1^t, 1-beta2^t (kept instead of t: no pow, no cancellation);
// h: lr, eps, beta1, beta2, 1-beta1, 1-beta2
template <int N>
struct Adam {
    static constexpr int STATE = 2 * N + 2;
    static __device__ __forceinline__ void init(const float*, float* s, const float*) {
        for (int i = 0; i < STATE; ++i) s[i] = 0.0f;
    }
    static __device__ __forceinline__ void update(float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float* const m = s;
        float* const v = s + N;
        const float c1 = s[2 * N] = h[2] * s[2 * N] + h[4];
        const float c2 = s[2 * N + 1] = h[3] * s[2 * N + 1] + h[5];
        for (int i = 0; i < N; ++i) {
            m[i] = h[2] * m[i] + h[4] * g[i];
            v[i] = h[3] * v[i] + h[5] * g[i] * g[i];
            w[i] -= h[0] * (m[i] / c1) / (sqrtf(v[i] / c2) + h[1]);
        }
    }
};

// FTRL-proximal: McMahan et al. 2013, Algorithm 1: w = 0 exactly where |z| <= l1.
// s: z[N], n[N], alpha of the last update; h: alpha, beta, l1, l2
//
// The paper's sigma_t = 1/eta_t - 1/eta_(t-1) is taken with the alpha of each step, so that a rate that was
// lowered since the row's last update slows its steps down and does not shrink its weights.
template <int N>
struct FTRL {
    static constexpr int STATE = 2 * N + 1;
    // The paper starts at w = 0. A non-zero initial weight is written into z, as the z that gives it.
    static __device__ __forceinline__ void init(const float* w, float* s, const float* h) {
        for (int i = 0; i < N; ++i) {
            const float l1 = w[i] > 0.0f ? h[2] : w[i] < 0.0f ? -h[2] : 0.0f;
            s[i] = -w[i] * (h[1] / h[0] + h[3]) - l1;
            s[N + i] = 0.0f;
        }
        s[2 * N] = h[0];
    }
    static __device__ __forceinline__ void update(float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float* const z = s;
        float* const n = s + N;
        // 0 unless the rate has changed
        const float step = s[2 * N] == h[0] ? 0.0f : 1.0f / h[0] - 1.0f / s[2 * N];
        s[2 * N] = h[0];
        for (int i = 0; i < N; ++i) {
            const float root = sqrtf(n[i]);
            n[i] += g[i] * g[i];
            const float next_root = sqrtf(n[i]);
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
// s: Base's, then n; h: Base's, then l2 at L2
template <template <int> class Base, int N>
struct Adaptive {
    static constexpr int STATE = Base<N>::STATE + 1;
    static constexpr int L2 = 6;  // after the most that a Base has; layout.py pads up to it
    static __device__ __forceinline__ void init(const float* w, float* s, const float* h) {
        Base<N>::init(w, s, h);
        s[STATE - 1] = 0.0f;
    }
    static __device__ __forceinline__ void update(float* __restrict__ w, float* __restrict__ s,
                                                  const float* __restrict__ g, const float* __restrict__ h) {
        float& n = s[STATE - 1];
        n += n < 16777216.0f ? 1.0f : 0.0f;
        const float decay = h[L2] / n;
        float regularised[N];
        for (int i = 0; i < N; ++i) regularised[i] = g[i] + decay * w[i];
        Base<N>::update(w, s, regularised, h);
    }
};
