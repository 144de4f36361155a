// Schema of a pipeline's requests: their columns and limits, and the codes of what may be wrong with a request.
#pragma once
#include "request/message.hpp"

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace livectr::request {

// Codes of errors; `Code` of parse.py, whose users have a sentence for each.
enum Code : int64_t {
    GOOD,
    NO_ROOM,
    DAMAGED,
    LONG_STRING,
    NO_CANDIDATES,
    EMPTY_CANDIDATES,
    MANY_CANDIDATES,
    TWICE,
    NAMES_ITEMS,
    UNKNOWN,
    WRONG_PART,
    NO_VALUES,
    WRONG_KIND,
    BAD_NULLS,
    NO_LIST,
    WRONG_LENGTH,
    BAD_OFFSETS,
    LONG_LIST,
    NO_INT32,
    NOT_FINITE,
    NO_FLOAT32,
    NULL_ANCHOR,
    NO_TIME,
    WRONG_UNIT,
    IN_CONTEXT,
    MISSING,
    BIDS_LENGTH,
    NEGATIVE_BID
};

// Parts of a request: bits of the parts that may have a column, and of the part that an error is in.
enum Part : int64_t { OUTSIDE, IN_THE_CONTEXT, IN_THE_CANDIDATES };

enum Element : int64_t { INT64, INT32, FLOAT64, FLOAT32, BOOL, STRING, BINARY };

inline Kind kind_of(Element element) {
    constexpr Kind KINDS[] = {INTS, INTS, DOUBLES, DOUBLES, BOOLS, STRINGS, BYTES};
    return KINDS[element];
}

struct Limits {
    int64_t candidates, list, string_bytes;
};

struct Unit {
    int64_t least, most;
};

// The caller's settings, all of 8 bytes; `_Settings` of parse.py.
struct Settings {
    int64_t most_candidates, most_list, most_string_bytes;
    int64_t candidate_columns;  // whether the request has columns of candidates, and bids
    int64_t earliest, latest;   // of times
    int64_t units;              // number of ranges of times that are in another unit
    Unit unit[4];
    int64_t numbers[ROLES];  // of the fields; 0: the message has no such field
};

// A column's options, all of 8 bytes; `_Column` of parse.py.
struct ColumnOptions {
    int64_t element, listed, parts, required, filled, anchor, time;
    uint64_t fill;
    int64_t fill_bytes;
};

// Column that features read. fill: bits of the value of a null, or its text.
struct Spec {
    Element element;
    bool listed, required, filled, anchor, time;
    int64_t parts;
    uint64_t fill;
    std::string fill_text;

    static Spec of(const ColumnOptions& options, const char* fill) {
        return {static_cast<Element>(options.element),
                options.listed != 0,
                options.required != 0,
                options.filled != 0,
                options.anchor != 0,
                options.time != 0,
                options.parts,
                options.fill,
                std::string(fill, size_t(options.fill_bytes))};
    }
};

struct Schema {
    Settings settings;
    Limits limits;
    uint8_t roles[NUMBERS];
    std::vector<Spec> specs;
    std::string item_column;

    explicit Schema(const Settings& given)
        : settings(given), limits{given.most_candidates, given.most_list, given.most_string_bytes} {
        std::fill_n(roles, NUMBERS, uint8_t(ROLES));
        for (int32_t role = 0; role < ROLES; ++role)
            if (const int64_t number = given.numbers[role]; number > 0 && number < NUMBERS)
                roles[number] = uint8_t(role);
    }

    // Adds a name that requests may have. Those of `specs` come first, and in their order.
    void add_name(std::string_view name) {
        names_.emplace_back(name);
        places_.emplace(names_.back(), int64_t(places_.size()));
    }

    int64_t names() const { return int64_t(names_.size()); }

    // Place of a name; -1: unknown.
    int64_t find(Slice name) const {
        const auto found = places_.find({reinterpret_cast<const char*>(name.at), size_t(name.size)});
        return found == places_.end() ? -1 : found->second;
    }

  private:
    std::deque<std::string> names_;
    std::unordered_map<std::string_view, int64_t> places_;
};

}  // namespace livectr::request
