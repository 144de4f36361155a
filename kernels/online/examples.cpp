// C function of the first and second order of a logit, learned example by example (host only).
#include "online/examples.hpp"

extern "C" {

// See Occurrences, Scales, Bias, Rows and Labels; logits[B] and out[B] as of ExamplesPass::learn.
void learn_examples(int64_t examples, const int64_t* sequence, int64_t fields, const int32_t* offsets,
                    const uint32_t* slots, float* scale, float rate, bool settles, float* bias, int64_t unique,
                    float* state, const float* ftrl, int64_t dim, float* vectors, const float* adagrad,
                    const float* label, const float* weight, const float* logits, float* out) {
    const Occurrences of{examples, sequence, fields, offsets, slots};
    ExamplesPass().learn(of, {scale, rate, settles}, {bias}, unique, {state, ftrl, dim, vectors, adagrad},
                         {label, weight}, logits, out);
}

}  // extern "C"
