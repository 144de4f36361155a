// Requests of the three kinds into Arrow columns. The first byte is the kind; the rest is the message.
#include "fuzz.hpp"
#include "request/parse.cpp"

namespace {

using namespace livectr::request;

constexpr int64_t RANK[ROLES] = {1, 2, 3, 4, 5, 25, 60, 30}, PRERANK[ROLES] = {1, 2, 0, 0, 6, 25, 60, 0, 5, 0, 0, 3, 4},
                  RECOMMEND[ROLES] = {1, 2, 0, 0, 10, 25, 60, 0, 8, 7, 9, 3, 4, 5, 6};
constexpr int64_t CANDIDATES_MOST = 50, LIST_MOST = 20, STRING_MOST = 100, COLUMNS = 16;

std::unique_ptr<RequestParser, decltype(&request_delete)> parser_of(const int64_t (&numbers)[ROLES], int64_t listed) {
    Settings settings{CANDIDATES_MOST, LIST_MOST, STRING_MOST, listed, -1000, 1'000'000, 1, {{500'000, 600'000}}, {}};
    std::copy_n(numbers, ROLES, settings.numbers);
    std::unique_ptr<RequestParser, decltype(&request_delete)> parser(request_new(&settings), request_delete);
    const auto add = [&](int64_t number, Element element, bool list, int64_t parts) {
        const bool key = number == 0, time = number == 1, filled = !list && number % 2;
        const ColumnOptions options{element, list,         parts,
                                    key,     filled,       key || time,
                                    time,    filled * 77u, filled && is_text(kind_of(element)) ? 3 : 0};
        const char name = char('a' + number);
        request_column(parser.get(), &name, 1, &options, "abc");
    };
    add(0, STRING, false, IN_THE_CONTEXT);
    add(1, INT64, false, IN_THE_CONTEXT);
    const int64_t either = IN_THE_CONTEXT | (listed ? IN_THE_CANDIDATES : 0);
    for (int64_t i = 0; i < 14; ++i) add(2 + i, static_cast<Element>(i % 7), i >= 7, either);
    request_name(parser.get(), "unread", 6);
    request_item_column(parser.get(), "item", 4);
    return parser;
}

// Reads all that an array of the column promises, as its next reader would.
void check_array(const ArrowArray& array, int64_t rows, Element element, bool list) {
    REQUIRE(array.release && array.length == rows && array.offset == 0 && array.null_count >= 0);
    int64_t nulls = 0;
    if (const auto* const bits = livectr::buffer<uint8_t>(array, 0))
        for (int64_t i = 0; i < rows; ++i) nulls += !bit_at(bits, i);
    REQUIRE(nulls == array.null_count);
    const auto rise = [&](int64_t count, int64_t end, int64_t longest) {
        const auto* const at = livectr::buffer<int32_t>(array, 1);
        REQUIRE(at[0] == 0 && (end < 0 || at[count] == end));
        for (int64_t i = 0; i < count; ++i) REQUIRE(at[i] <= at[i + 1] && at[i + 1] - at[i] <= longest);
        return int64_t(at[count]);
    };
    if (list) {
        REQUIRE(array.n_buffers == 2 && array.n_children == 1);
        const ArrowArray& items = *array.children[0];
        rise(rows, items.length, LIST_MOST);
        return check_array(items, items.length, element, false);
    }
    uint64_t sum = 0;
    if (is_text(kind_of(element))) {
        const int64_t bytes = rise(rows, -1, INT32_MAX);
        const auto* const chars = livectr::buffer<uint8_t>(array, 2);
        if (element == STRING) REQUIRE(valid_text(chars, bytes));
        for (int64_t i = 0; i < bytes; ++i) sum += chars[i];
    } else if (element == BOOL) {
        for (int64_t i = 0; i < rows; ++i) sum += bit_at(livectr::buffer<uint8_t>(array, 1), i);
    } else if (element == FLOAT64 || element == FLOAT32) {
        for (int64_t i = 0; i < rows; ++i)
            REQUIRE(std::isfinite(element == FLOAT64 ? livectr::buffer<double>(array, 1)[i]
                                                     : double(livectr::buffer<float>(array, 1)[i])));
    } else {
        const int64_t bytes = rows * (element == INT64 ? 8 : 4);
        for (int64_t i = 0; i < bytes; ++i) sum += livectr::buffer<uint8_t>(array, 1)[i];
    }
    static volatile uint64_t read;
    read = sum;
}

void check_inside(int64_t at, int64_t size, int64_t bytes) {
    REQUIRE(at >= 0 && size >= 0 && at <= bytes && size <= bytes - at);
}

void check_batch(ArrowArray* batch, const RequestParser& parser, const uint8_t* parts, Part part, int64_t rows) {
    int64_t place = 0;
    for (size_t i = 0; i < parser.schema.specs.size(); ++i) {
        if (parts[i] != part) continue;
        const Spec& spec = parser.schema.specs[i];
        REQUIRE(spec.parts & part);
        check_array(*batch->children[place++], rows, spec.element, spec.listed);
    }
    REQUIRE((batch == nullptr && place == 0) || (batch->n_children == place && batch->length == rows));
    if (batch) batch->release(batch);
}

}  // namespace

FUZZ_TARGET(request) {
    static const auto rank = parser_of(RANK, 1), prerank = parser_of(PRERANK, 0), recommend = parser_of(RECOMMEND, 0);
    const int64_t kind = input.below(3);
    const RequestParser& parser = *(kind == 0 ? rank : kind == 1 ? prerank : recommend);
    const fuzz::Exact message = input.rest();
    Head head;
    uint8_t parts[COLUMNS] = {};
    request_parse(&parser, message.data(), message.size, &head, parts);
    REQUIRE(head.code >= GOOD && head.code <= NEGATIVE_BID && head.code != NO_ROOM);
    check_inside(head.name_at, head.name_size, message.size);
    check_inside(head.id_at, head.id_size, message.size);
    check_inside(head.side_at, head.side_size, message.size);
    check_inside(head.bid_column_at, head.bid_column_size, message.size);
    if (head.code != GOOD) {
        REQUIRE(!head.context && !head.candidates && !head.items && !head.excluded);
        if (head.code == MISSING) REQUIRE(head.a >= 0 && head.a < COLUMNS);
        return;
    }
    REQUIRE(head.size >= 1 && head.size <= CANDIDATES_MOST && parts[0] == IN_THE_CONTEXT);
    check_batch(head.context, parser, parts, IN_THE_CONTEXT, 1);
    check_batch(head.candidates, parser, parts, IN_THE_CANDIDATES, head.size);
    REQUIRE((head.bids != nullptr) == (kind == 0));
    for (int64_t i = 0; i < head.size && head.bids; ++i) REQUIRE(head.bids[i] >= 0);
    for (const auto& [array, tag, rows] : {std::tuple(head.items, head.items_kind, head.items_size),
                                           std::tuple(head.excluded, head.excluded_kind, head.excluded_size)}) {
        REQUIRE((array != nullptr) == (tag != NONE));
        if (!array) continue;
        check_array(*array, rows, tag == INTS ? INT64 : STRING, false);
        array->release(array);
    }
}
