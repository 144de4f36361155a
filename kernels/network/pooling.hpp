// Inputs of a first layer that are pooled from lists of vectors, for other units of the library; pooling.cpp says how.
#pragma once
#include "network/attention.hpp"

namespace livectr::pooling {

enum Kind : int64_t { MEAN, SUM, MAX, NEWEST, ATTENTION, MEAN_ATTENTION };

// Channel of W numbers. An attention's query is a list's mean, or a field's vector, of which a matrix may make one of
// the list's space.
struct Channel {
    int64_t kind, list, width;
    int64_t length = 0;                         // of NEWEST
    int64_t query_list = -1, query_field = -1;  // -1: none
    int64_t depth = 0;                          // numbers of the query before the matrix; 0: there is none
    std::vector<float> project;                 // [depth, width of the list's vectors]
    std::shared_ptr<attention::Pooler> unit;
};

// Lists that channels read, and fields whose vectors are queries.
struct Pooling {
    std::vector<int64_t> widths;  // of the lists' vectors
    int64_t fields = 0;           // of the queries
    std::vector<Channel> channels;
};

// Ragged vectors [offsets[count], width]: of each row, or of a single one that all rows share.
struct List {
    const float* values;
    const int64_t* offsets;  // [rows + 1] or [2]
    bool shared;

    const int64_t* ends(int64_t row) const { return shared ? offsets : offsets + row; }
};

// Vectors of a field, `stride` floats from row to row.
struct Query {
    const float* data;
    int64_t stride;
    bool shared;
};

// True if all rows share a channel's results.
bool is_shared(const Channel& channel, const List* lists, const Query* fields);

// Numbers of scratch memory that `rows` rows of a channel take.
int64_t scratch(const Pooling& of, const Channel& channel, int64_t rows);

// Results of `rows` rows of a channel from row `first` on, out[rows, width]. Throws bad_alloc.
void pool(const Pooling& of, const Channel& channel, const List* lists, const Query* fields, int64_t first,
          int64_t rows, float* scratch, float* out);

}  // namespace livectr::pooling
