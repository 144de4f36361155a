// Values as 64-bit words, for the transfer from CPU workers to the device (ingest/extract/transfer.py).
#pragma once
#include "runtime/sinks.cuh"

static __device__ __forceinline__ int64_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static __device__ __forceinline__ int64_t bits_of(double x) {
    int64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

template <typename Sink>
static __device__ __forceinline__ void words_of(Str s, Sink& sink) {
    ROLLED for (int32_t i = 0; i < s.size; i += 8) {
        int64_t word = 0;
        memcpy(&word, s.data + i, size_t(s.size - i < 8 ? s.size - i : 8));
        sink.push(word);
    }
}

template <typename Items, typename Sink>
static __device__ __forceinline__ void words_of_each(const Row<Items>& row, Sink& sink) {
    ROLLED for (int32_t i = 0; i < row.size(); ++i) words_of(row.at(i), sink);
}
