// C functions of a network of small batches (host only).
#include "network/small_batch.hpp"

using small_batch::Crossed;
using small_batch::Layered;
using small_batch::Network;
using small_batch::OfVectors;
using small_batch::Parameter;
using small_batch::Products;

extern "C" {

// shape: the seven numbers of Layered::Shape. outputs: H, then those of each layer after the first; 0 without a first
// layer. parameters: addresses of value, mean, square and centre, of Layered's parameters. Returns null without memory.
void* small_batch_new(const int64_t* shape, const int64_t* outputs, const void* parameters) {
    try {
        const Layered::Shape of{shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6]};
        return static_cast<Network*>(new Layered(of, outputs, static_cast<const Parameter*>(parameters)));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// shape: the five numbers of OfVectors::Shape, then L. parameters: of Crossed.
void* small_batch_crossed(const int64_t* shape, const int64_t* outputs, const void* parameters) {
    try {
        const OfVectors::Shape of{shape[0], shape[1], shape[2], shape[3], shape[4]};
        return static_cast<Network*>(new Crossed(of, shape[5], outputs, static_cast<const Parameter*>(parameters)));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// shape: the five numbers of OfVectors::Shape, then 1 for the outer product. parameters: of Products.
void* small_batch_products(const int64_t* shape, const int64_t* outputs, const void* parameters) {
    try {
        const OfVectors::Shape of{shape[0], shape[1], shape[2], shape[3], shape[4]};
        return static_cast<Network*>(new Products(of, shape[5], outputs, static_cast<const Parameter*>(parameters)));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void small_batch_delete(void* network) { delete static_cast<Network*>(network); }

// Partial sums of n ≤ `most` examples, whose values are `stride` numbers apart → out f32[n, S], rows `ld` apart.
void small_batch_partial(void* network, int64_t n, const float* values, int64_t stride, const float* x, float* out,
                         int64_t ld) {
    Network& of = *static_cast<Network*>(network);
    of.read(n, values, stride, x);
    of.add_partial(out, ld);
}

// Logits f32[n] of the last batch from its sums over all ranks.
void small_batch_finish(void* network, const float* sums, int64_t ld, float* logits) {
    static_cast<Network*>(network)->finish(sums, ld, logits);
}

// Gradients of the last batch, from logits f32[n] that are moved by `shift`, targets and weights f32[n] (or null) →
// of_values, as values. first_learned, pairs_learned: w and FM's share of v are learned already, so that their
// gradients are zero. Returns the bound of Network::backward.
double small_batch_backward(void* network, const float* logits, float shift, const float* label, const float* weight,
                            bool first_learned, bool pairs_learned, float* of_values, int64_t stride) {
    return static_cast<Network*>(network)->backward({logits, shift, label, weight}, first_learned, pairs_learned,
                                                    of_values, stride);
}

// See small_batch::curvature_of.
double small_batch_curvature(int64_t n, const float* logits, float shift, const float* weight) {
    return small_batch::curvature_of(n, logits, shift, weight);
}

// Adam, and AdaGrad of bias, scales and dense features, by the last gradients. scale_rate 0: the scales are learned
// already. Returns as Network::update does.
float small_batch_update(void* network, float rate, float epsilon, float inverse, float bias_rate, float curvature,
                         float scale_rate, float number_rate, bool settles) {
    return static_cast<Network*>(network)->update({rate, epsilon, inverse},
                                                  {bias_rate, curvature, scale_rate, number_rate, settles});
}

}  // extern "C"
