// Enrich → extract, for other units of the library: columns of a request in, its features out.
#pragma once
#include "request/arena.hpp"

struct ArrowArray;
namespace livectr {
struct Sharing;
}

namespace livectr::request {

struct FeaturePlan;
struct FeatureMemory;

// Results of a call besides 0; features.py has the same. Failures of a plan are `Failure` of extract.hpp.
enum FeatureOutcome : int64_t { EXTRACTED, MISSING_INPUTS, FAILED_ROWS, FULL_MEMORY, BAD_HISTORY, BAD_COLUMN };

// Arguments and results, all of 8 bytes; features.py's `FeatureCall`. Results live in the memory until its next call.
struct FeatureCall {
    const FeaturePlan* plan;
    FeatureMemory* memory;
    const ArrowArray* const* context;     // arrays of 1 row by place; null: it is not there
    const ArrowArray* const* candidates;  // arrays of `rows` rows
    const int64_t* places;                // of the plan's columns; -1: none
    const uint8_t *shares, *fields;       // `Sharing` of extract.hpp
    int64_t own, shared;                  // fields that rows have of their own, and that all rows share
    int64_t rows, now_ms;
    void* const* tables;           // LookupTable by look-up
    double since;                  // rows that were read before are too old
    const int32_t* const* slots;   // by look-up; null: they are found
    const uint8_t* const* values;  // of histories; null: they were not read
    const int64_t* value_bytes;
    int64_t (*extract)(void*, const ArrowArray*, const int32_t*, void* const*, float*, int64_t*, uint8_t*, Sharing*);
    void (*gather)(void*, int32_t*, int64_t*, int64_t*, const Sharing*);
    void (*gather_shared)(void*, int32_t*, int64_t*, const Sharing*);
    void* context_of_plan;
    int64_t width;  // dense numbers of a row
    int64_t most_values, most_bytes, most_read;
    void* const* states;
    // Results of enrichment.
    const int64_t* const* keys;  // by look-up
    const int64_t* key_counts;
    const int64_t* items;  // keys of the items [rows]; null: the candidates have none
    int64_t user, has_user;
    double oldest;  // instant at which the oldest look-up row was read
    // Results of extraction: ragged keys, field-major, and dense numbers.
    int64_t outcome, extracted;
    const int32_t* own_offsets;  // [own * rows + 1]
    const int64_t* own_keys;
    const int32_t* shared_offsets;  // [shared + 1]
    const int64_t* shared_keys;
    int64_t own_count, shared_count;
    const float* dense;     // [rows, width]
    const uint8_t* failed;  // [rows that were extracted]
    int64_t shared_failed;
    double enriched_at, extracted_at;
};

// Memory that a call may use for its own results, too.
Arena& memory_of(const FeatureCall& call);

}  // namespace livectr::request

extern "C" {

// Features of a request, unless the call has them. Returns an outcome, which the call keeps, or a negative Failure.
int64_t features_answer(livectr::request::FeatureCall* call);

// Memory of calls, one at a time. Null: there was none.
livectr::request::FeatureMemory* features_memory_new();
void features_memory_delete(livectr::request::FeatureMemory* memory);
}
