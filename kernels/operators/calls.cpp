// Look-up of operators by name. Written by `python -m livectr.ingest.extract.library_source`.
#include "extract/call.hpp"

namespace livectr {
FunctionTable calls_numbers();
FunctionTable calls_texts();
FunctionTable calls_lists();
FunctionTable calls_tables();
}  // namespace livectr

// Address of an operator's function; null if there is none of that name.
extern "C" const void* calls_find(const char* name) {
    using namespace livectr;
    for (const FunctionTable& table : {calls_numbers(), calls_texts(), calls_lists(), calls_tables()}) {
        for (int64_t i = 0; i < table.size; ++i) {
            const NamedFunction& known = table.first[i];
            if (strcmp(known.name, name) == 0) return reinterpret_cast<const void*>(known.function);
        }
    }
    return nullptr;
}
