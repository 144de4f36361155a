// Inner products of a query with rows of a matrix, and the best of them, for other units of the library; retrieval.cpp
// says in which order. Functions return a number of results, or −1 without memory.
#pragma once
#include <cstdint>

extern "C" {

// Best k of the products of vector[dim] with matrix[n, dim], plus a bias, without excluded[m], ascending →
// positions[min(k, n)], best[min(k, n)]. With worths[n] (not null) the order is that of worth * logistic(product), in
// float32 → values[min(k, n)]; best are the products.
int64_t retrieval_scan(const float* matrix, int64_t n, int64_t dim, const float* vector, float bias,
                       const uint32_t* excluded, int64_t m, const float* worths, int64_t k, int64_t* positions,
                       float* best, float* values);

// Worths of keys; all null: none.
struct RetrievalWorths {
    const double* bids;  // [n], of the keys; null: they are those of their rows
    const float* rows;   // of all rows
    const float* cold;   // of the unknown keys, one behind the other
};

// Rows[n] of keys[n] by `numbers` (keys/numbers.hpp) and their scores[n]. The vectors of the unknown keys are cold[·,
// dim], one behind the other; null: their scores are NaN. Unless scores are missing, also the best k of them →
// positions[min(k, n)], best[min(k, n)]; by worths, if there are some, as `retrieval_scan`. The result is the number of
// unknown keys.
int64_t retrieval_find(const void* numbers, const int64_t* keys, int64_t n, const float* matrix, const float* cold,
                       int64_t dim, const float* vector, float bias, const RetrievalWorths* worths, int64_t k,
                       uint32_t* rows, float* scores, int64_t* positions, float* best, float* values);
}
