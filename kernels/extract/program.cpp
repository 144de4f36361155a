// C interface of plans of calls. That of fused plans is the same, without the prefix.
#include "extract/program.hpp"

namespace livectr::calls {
namespace {

struct Extraction {
    Context<Program::Plan, Program> context;
    explicit Extraction(const int64_t* words) : context(Program(words)) { context.plan = context.generated.plan(); }
};

}  // namespace

extern "C" Extraction* program_create(const int64_t* words) { return new Extraction(words); }
extern "C" void program_destroy(Extraction* extraction) { delete extraction; }
extern "C" int64_t program_extract(Extraction* extraction, const ArrowArray* batch, const int32_t* columns,
                                   void* const* states, float* dense, int64_t* observed, uint8_t* failed,
                                   Sharing* sharing) {
    try {
        extraction->context.plan.states = states;
        return extraction->context.extract(*batch, columns, dense, observed, failed, sharing);
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}
extern "C" void program_gather(Extraction* extraction, int32_t* offsets, int64_t* keys, int64_t* counters,
                               const Sharing* sharing) {
    extraction->context.gather(offsets, keys, sharing);
    counters[0] = extraction->context.replaced;
    counters[1] = extraction->context.reruns;
}
extern "C" void program_gather_shared(Extraction* extraction, int32_t* offsets, int64_t* keys, const Sharing* sharing) {
    extraction->context.gather_shared(offsets, keys, *sharing);
}

}  // namespace livectr::calls
