// FTRL-proximal of a logit's first order, example by example (McMahan et al. 2013, Algorithm 1; host only).
#pragma once
#include <math.h>
#include <string.h>

#include <vector>

#include "table/optimisers.cuh"

namespace {

// Gradient of an example's loss by its logit: that of models/losses.py, cross entropy or, if `fake_negative`,
// models/fnw.py.
inline float slope(float logit, float label, bool fake_negative) {
    const float p = 1.0f / (1.0f + expf(-logit));
    if (!fake_negative) return p - fminf(label, 1.0f);
    return (1.0f + p) * (1.0f - p) * ((label < 2.0f ? p : 0.0f) - (label > 0.0f ? 1.0f : 0.0f));
}

}  // namespace

extern "C" {

// Examples in the order of sequence[B]. The key occurrences of example i in field f are slots[offsets[f * B + i] :
// offsets[f * B + i + 1]], numbers among the U rows of state[U, 4]: w, then FTRL<1>'s state; w is NaN where there is no
// row. logits[B]: with the weights w that the rows have; out[B]: with those that the examples before have left. `state`
// is learned in place. h: FTRL's. weight[B]: of the examples' losses, or null.
void ftrl_online(int64_t examples, const int64_t* sequence, int64_t fields, const int32_t* offsets, const uint32_t* slots,
                 int64_t unique, float* state, const float* h, const float* label, int32_t fake_negative,
                 const float* weight, const float* logits, float* out) {
    std::vector<float> start(unique);
    for (int64_t u = 0; u < unique; ++u) start[u] = state[4 * u];
    std::vector<int64_t> seen(unique, -1);
    std::vector<float> times(unique);
    std::vector<uint32_t> touched;
    for (int64_t e = 0; e < examples; ++e) {
        const int64_t i = sequence[e];
        float moved = 0.0f;
        touched.clear();
        for (int64_t f = 0; f < fields; ++f) {
            for (int32_t at = offsets[f * examples + i]; at < offsets[f * examples + i + 1]; ++at) {
                const uint32_t u = slots[at];
                if (isnan(start[u])) continue;
                moved += state[4 * u] - start[u];
                if (seen[u] != e) {
                    seen[u] = e;
                    times[u] = 0.0f;
                    touched.push_back(u);
                }
                times[u] += 1.0f;
            }
        }
        out[i] = logits[i] + moved;
        const float g = slope(out[i], label[i], fake_negative) * (weight ? weight[i] : 1.0f);
        for (const uint32_t u : touched) {
            const float gradient = g * times[u];
            FTRL<1>::update(state + 4 * u, state + 4 * u + 1, &gradient, h);
        }
    }
}

}  // extern "C"
