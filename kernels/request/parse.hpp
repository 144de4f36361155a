// Parse of requests, for other units of the library; parse.cpp says how.
#pragma once
#include "request/memory.hpp"

struct RequestParser;

namespace livectr::request {

// Result of a request, all of 8 bytes; `_Head` of parse.py. Places count from the first byte of the request.
struct Head {
    int64_t code, part, name_at, name_size, a, b;
    int64_t id_at, id_size, side_at, side_size, bid_column_at, bid_column_size;
    uint64_t version;
    int64_t explain, top_k, prerank_k, contents;
    int64_t size, time, timed;  // candidates; time of the request, if it has one
    int64_t items_kind, items_size, items_longest, excluded_kind, excluded_size, excluded_longest;
    ArrowArray *context, *candidates, *items, *excluded;  // null: no columns
    ArrowArray **context_columns, **candidate_columns;    // of the schema's columns; null: it is not there
    const double* bids;  // of the candidates or items, 1 where the request has none; null: it has no candidates
    int64_t bids_size;   // bids that the request has
    Lent* memory;        // of all arrays, the caller's to drop; null after an error
    uint64_t sample;     // hash of the first bytes: samples of requests are chosen by it
};

}  // namespace livectr::request

extern "C" {

// Parses data[0, bytes). parts: uint8[columns], the Part that each column is in. The head's memory is the caller's to
// drop; arrays do not point into the data.
void request_parse(const RequestParser* parser, const uint8_t* data, int64_t bytes, livectr::request::Head* head,
                   uint8_t* parts);
void request_drop(livectr::request::Lent* memory);
}
