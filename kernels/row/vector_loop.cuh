// VECTOR_LOOP stands before a loop whose steps are independent of each other. GCC would unroll a short loop of constant
// length before it looks for vectors, and then find none.
#pragma once
#include "runtime/shim.cuh"

#ifdef LIVECTR_HOST
#define VECTOR_LOOP _Pragma("GCC unroll 1") _Pragma("GCC ivdep")
#else
#define VECTOR_LOOP
#endif
