// Call of a library function: an operator over a block of rows, or over up to BLOCK_ROWS items of lists. A plan of
// calls (extract/program.hpp) is made of them; operators/calls_*.cpp hold the functions.
#pragma once
#include "extract/rowblock.hpp"

namespace livectr {

// Columns are what `values` of Values<T> and Lists<T> points to.
struct Call {
    void* out;
    void* const* in;
    const int64_t* arguments;  // a word each: the number's bytes, or a pointer
    const void* resource;
    const void* state;
    const ::Pool* pool;
};
using Function = void (*)(const Call&, const RowBlock&);

struct NamedFunction {
    const char* name;
    Function function;
};
// Functions of a file, sorted by name.
struct FunctionTable {
    const NamedFunction* first;
    int64_t size;
};

template <typename T>
Values<T> values_at(void* column) {
    return Values<T>{static_cast<T*>(column)};
}
template <typename T>
Lists<T> lists_at(void* column) {
    return Lists<T>{static_cast<Span<T>*>(column)};
}

template <typename T>
T argument(const Call& call, int64_t n) {
    T value;
    memcpy(&value, call.arguments + n, sizeof value);
    return value;
}

}  // namespace livectr
