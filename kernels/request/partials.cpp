// Calls of kernels/request/partials.py.
#include "request/partials.hpp"

#include <new>

extern "C" {

// Returns null without memory.
Partials* partials_new(float* values, uint32_t* uses, int64_t most, int64_t size) {
    try {
        return new Partials(values, uses, most, size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void partials_delete(Partials* partials) { delete partials; }
int64_t partials_find(Partials* partials, const int64_t* keys, int64_t n, const float** out) {
    return partials->find(keys, n, out);
}
// Returns -1 without memory.
int64_t partials_add(Partials* partials, const int64_t* keys, int64_t n, const float* rows, uint32_t uses,
                     int64_t* taken) {
    try {
        return partials->add(keys, n, rows, uses, taken);
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
void partials_uses(Partials* partials, int64_t n, uint32_t* out) { partials->uses(n, out); }
}
