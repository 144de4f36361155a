// Dense numbers 0, 1, 2… of keys, in the order of first sight; the libraries that share a handle include this file.
#pragma once
#include "runtime/index.cuh"

namespace {

struct Numbers {
    Index index{0};
    uint32_t count = 0;
};

}  // namespace
