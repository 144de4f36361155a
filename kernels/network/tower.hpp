// Tower of a two-tower model on the host, for a single row: an MLP, whose result is scaled to a soft norm.
//
//     x₁ = b₁ + a W₁,  x_{l+1} = b_{l+1} + relu(x_l) W_{l+1},  vector = γ x_L / √(‖x_L‖² + soft²)
//
// A sum runs over its terms in order. A single row has nothing to share a block of weights with: each weight is read
// once, row after row of a matrix.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace livectr {

class Tower {
  public:
    // sizes[layers + 1]: numbers of the input and of each layer's results. numbers: W and b of each layer, in turn.
    Tower(const int64_t* sizes, int64_t layers, float gamma, float soft, const float* numbers)
        : sizes_(sizes, sizes + layers + 1), gamma_(gamma), soft_(soft) {
        int64_t count = 0;
        for (int64_t l = 0; l < layers; ++l) count += (sizes[l] + 1) * sizes[l + 1];
        numbers_.assign(numbers, numbers + count);
    }

    int64_t inputs() const { return sizes_.front(); }
    int64_t outputs() const { return sizes_.back(); }
    int64_t widest() const { return *std::max_element(sizes_.begin(), sizes_.end()); }

    // Vector of inputs a[inputs]; both are memory of `widest` numbers. Returns where of the two it is.
    float* vector(float* a, float* next) const {
        const float* at = numbers_.data();
        for (size_t l = 1; l < sizes_.size(); ++l) {
            const int64_t depth = sizes_[l - 1], width = sizes_[l];
            std::copy_n(at + depth * width, width, next);
            for (int64_t k = 0; k < depth; ++k) {
                const float value = l > 1 ? std::max(a[k], 0.0f) : a[k];
                const float* const row = at + k * width;
                for (int64_t j = 0; j < width; ++j) next[j] += value * row[j];
            }
            at += (depth + 1) * width;
            std::swap(a, next);
        }
        float square = 0;
        for (int64_t j = 0; j < outputs(); ++j) square += a[j] * a[j];
        const float scale = gamma_ / std::sqrt(square + soft_ * soft_);
        for (int64_t j = 0; j < outputs(); ++j) a[j] *= scale;
        return a;
    }

  private:
    const std::vector<int64_t> sizes_;
    const float gamma_, soft_;
    std::vector<float> numbers_;
};

}  // namespace livectr
