// Description of a plan of calls: what extract/program.hpp runs, read from words of 64 bits that
// ingest/extract/program.py writes.
//
//   columns    first the nodes in plan order, then constants: blocks of one repeated value
//   steps      one for each computed node, in plan order: its function, its columns, conversions of its inputs
//   roots, recalled parts, outputs
#pragma once
#include "extract/call.hpp"

namespace livectr::calls {

// Type of a column, in the order of TYPES in ingest/extract/program.py.
enum Kind : int64_t { INT64, INT32, FLOAT32, FLOAT64, BOOL, TEXT, LIST = 8 };

// Calls use(Values<T>) or use(Lists<T>).
template <typename Use>
auto with_column(int64_t kind, void* column, Use use) {
    switch (kind) {
        case INT64: return use(values_at<int64_t>(column));
        case INT32: return use(values_at<int32_t>(column));
        case FLOAT32: return use(values_at<float>(column));
        case FLOAT64: return use(values_at<double>(column));
        case BOOL: return use(values_at<bool>(column));
        case TEXT: return use(values_at<Str>(column));
        case LIST + INT64: return use(lists_at<int64_t>(column));
        case LIST + INT32: return use(lists_at<int32_t>(column));
        case LIST + FLOAT32: return use(lists_at<float>(column));
        case LIST + FLOAT64: return use(lists_at<double>(column));
        case LIST + BOOL: return use(lists_at<bool>(column));
        default: return use(lists_at<Str>(column));
    }
}

struct Node {
    int64_t kind;
    int64_t slot;  // of the result, in bytes per row; -1: a root
    bool kept;     // keys, which outlive the block
    int64_t step;  // its number, or -1
};

struct Root {
    int64_t node;
    int64_t alone;  // part that alone reads it, or -1
    int64_t has_fill;
    bool kept;
    int64_t fill, fill_size;  // bytes of the number, or pointer and size of a text
};

struct Input {
    int64_t column;
    Function convert;  // null: it stays
    int64_t bytes;     // of a value before it is converted
};

struct Step {
    int64_t node;
    Function function;
    bool outputs;         // its results are in the pool of outputs
    int64_t list;         // input whose items the function is mapped over; -1: it runs over rows
    bool alone;           // no other input differs from row to row
    int64_t bytes;        // of an item of the result
    int64_t part, place;  // part that knows the result, and its place there; -1: none
    int64_t state;        // number of the statistic, or -1
    const int64_t* arguments;
    const void* resource;
    std::vector<Input> inputs;
};

// Part that is computed once for each different text.
struct Part {
    int64_t root;  // its number among the roots
    bool keeps_text;
    int64_t most_bytes;
    std::vector<int64_t> widths;  // of the kept values
    std::vector<int64_t> nodes;
};

struct Output {
    int64_t column, kind;
    int64_t place, width;  // of dense numbers; of an observed word: place is 1 for whole numbers
};

struct Description {
    std::vector<Node> nodes;
    std::vector<void*> constants;
    int64_t row_bytes = 0, scratch = 0;
    bool has_output_pool = false;
    std::vector<Root> roots;
    std::vector<Step> steps;
    std::vector<Part> parts;
    std::vector<Output> fields, numbers, observed;
    int64_t dense = 0;

    Description() = default;
    explicit Description(const int64_t* words) {
        Reader read{words};
        for (int64_t n = read(); n > 0; --n) nodes.push_back({read(), read(), read() != 0, -1});
        for (int64_t n = read(); n > 0; --n) constants.push_back(read.pointer<void>());
        row_bytes = read(), scratch = read(), has_output_pool = read() != 0;
        for (int64_t n = read(); n > 0; --n) roots.push_back({read(), read(), read(), read() != 0, read(), read()});
        for (int64_t n = read(); n > 0; --n) steps.push_back(read_step(read));
        for (int64_t n = read(); n > 0; --n) parts.push_back(read_part(read));
        for (int64_t n = read(); n > 0; --n) fields.push_back({read(), read(), 0, 0});
        for (int64_t n = read(); n > 0; --n) numbers.push_back({read(), read(), read(), read()});
        for (int64_t n = read(); n > 0; --n) observed.push_back({read(), read(), read(), 0});
        dense = read();
        for (size_t i = 0; i < steps.size(); ++i) nodes[size_t(steps[i].node)].step = int64_t(i);
    }
    const Step& step_of(int64_t node) const { return steps[size_t(nodes[size_t(node)].step)]; }

  private:
    struct Reader {
        const int64_t* at;
        int64_t operator()() { return *at++; }
        template <typename T>
        T* pointer() {
            return reinterpret_cast<T*>(*at++);
        }
    };

    static Step read_step(Reader& read) {
        Step made{read(),
                  reinterpret_cast<Function>(read()),
                  read() != 0,
                  read(),
                  read() != 0,
                  read(),
                  read(),
                  read(),
                  read(),
                  read.pointer<int64_t>(),
                  read.pointer<void>(),
                  {}};
        for (int64_t n = read(); n > 0; --n)
            made.inputs.push_back({read(), reinterpret_cast<Function>(read()), read()});
        return made;
    }
    static Part read_part(Reader& read) {
        Part made{read(), read() != 0, read(), {}, {}};
        for (int64_t n = read(); n > 0; --n) made.widths.push_back(read());
        for (int64_t n = read(); n > 0; --n) made.nodes.push_back(read());
        return made;
    }
};

}  // namespace livectr::calls
