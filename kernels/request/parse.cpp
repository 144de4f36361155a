// A request's bytes into Arrow columns, or an error: the first step of a request, without the interpreter's lock.
//
//   1  the whole message is read as protobuf reads it (message.hpp); a damaged one ends here
//   2  columns are checked and become arrays in the request's memory (columns.hpp)
//   3  compiled calls read the arrays where they lie; others get them by Arrow's C data interface: a batch of the
//      context, and one of the candidates
//
// The memory returns to the schema's pool when the caller and the last array that was handed over release it.
#include "request/parse.hpp"
#include "runtime/hash.cuh"

namespace livectr::request {

// Bytes of a request by which samples are chosen: its id and its context mostly come first.
constexpr int64_t SAMPLED_BYTES = 256;

class Parser {
  public:
    Parser(const Schema& schema, Arena& arena, Arrays& arrays)
        : schema_(schema), arena_(arena), arrays_(arrays), reader_(schema.limits, arrays, problem) {}

    Message message;
    Problem problem;
    int64_t size = 0, time = 0;
    bool timed = false;
    ArrowArray *context = nullptr, *candidates = nullptr, *items = nullptr, *excluded = nullptr;
    struct Found {
        ArrowArray **context, **candidates;
    };
    Found found{};
    const double* bids = nullptr;

    // parts: the Part that each column of the schema was in.
    bool parse(const uint8_t* data, int64_t bytes, uint8_t* parts) {
        message.context.most = message.candidates.most = schema_.names() + 1;
        message.context.columns = arena_.take<Column>(message.context.most);
        message.candidates.columns = arena_.take<Column>(message.candidates.most);
        if (bytes > protobuf::MOST_BYTES || !message.read(data, data + bytes, schema_.roles))
            return reader_.refuse(DAMAGED);
        if (message.request_id.size > schema_.limits.string_bytes)
            return reader_.refuse(LONG_STRING, message.request_id.size);
        size = 1;
        const bool listed = schema_.settings.candidate_columns;
        if (listed && !count_candidates()) return false;
        const size_t n = schema_.specs.size();
        found = {arena_.take<ArrowArray*>(int64_t(n)), arena_.take<ArrowArray*>(int64_t(n))};
        std::fill_n(found.context, n, nullptr);
        std::fill_n(found.candidates, n, nullptr);
        if (!read_part(IN_THE_CONTEXT, message.context, 1, found.context)) return false;
        if (listed &&
            (!read_part(IN_THE_CANDIDATES, message.candidates, size, found.candidates) || !are_apart(found.context)))
            return false;
        if (!are_complete()) return false;
        if (listed && !(bids = read_bids(size))) return false;
        if (!listed && message.bids && !(bids = read_bids(message.items.size))) return false;
        context = batch(found.context, 1);
        candidates = batch(found.candidates, size);
        items = array_of(message.items);
        excluded = array_of(message.excluded);
        for (size_t i = 0; i < n; ++i)
            parts[i] = uint8_t(found.context[i] ? IN_THE_CONTEXT : found.candidates[i] ? IN_THE_CANDIDATES : OUTSIDE);
        return true;
    }

  private:
    const Schema& schema_;
    Arena& arena_;
    Arrays& arrays_;
    Reader reader_;

    bool refuse_column(Code code, Part part, Slice name, int64_t a = 0, int64_t b = 0) {
        problem.part = part, problem.name = name;
        return reader_.refuse(code, a, b);
    }

    bool count_candidates() {
        if (!message.candidates.size) return reader_.refuse(NO_CANDIDATES);
        const Column& first = message.candidates.columns[0];
        size = first.values.kind == NONE ? 0 : first.offsets ? first.offsets - 1 : first.values.size;
        if (size == 0) return refuse_column(EMPTY_CANDIDATES, IN_THE_CANDIDATES, first.name);
        if (size > schema_.limits.candidates)
            return refuse_column(MANY_CANDIDATES, IN_THE_CANDIDATES, first.name, size);
        return true;
    }

    bool read_part(Part part, const Columns& columns, int64_t rows, ArrowArray** found) {
        auto* const seen = arena_.take<uint8_t>(schema_.names());
        std::memset(seen, 0, size_t(schema_.names()));
        for (int64_t i = 0; i < columns.size; ++i) {
            const Column& column = columns.columns[i];
            const int64_t place = schema_.find(column.name);
            problem.part = part, problem.name = column.name;
            if (place >= 0 && seen[place]) return reader_.refuse(TWICE);
            if (place < 0) return reader_.refuse(is_item(column.name) ? NAMES_ITEMS : UNKNOWN);
            seen[place] = 1;
            if (size_t(place) >= schema_.specs.size()) continue;  // no feature reads it
            const Spec& spec = schema_.specs[size_t(place)];
            if (!(spec.parts & part)) return reader_.refuse(WRONG_PART);
            if (!(found[place] = reader_.column(column, spec, rows))) return false;
            if (spec.anchor && !is_anchor(*found[place], spec)) return false;
        }
        return true;
    }

    bool is_item(Slice name) const {
        return !schema_.item_column.empty() &&
               schema_.item_column == std::string_view(reinterpret_cast<const char*>(name.at), size_t(name.size));
    }

    // Checks the key, or the time, which no request may have as null.
    bool is_anchor(const ArrowArray& array, const Spec& spec) {
        if (array.null_count) return reader_.refuse(NULL_ANCHOR);
        if (!spec.time) return true;
        const Settings& settings = schema_.settings;
        time = buffer<int64_t>(array, 1)[0], timed = true;
        if (time < settings.earliest || time > settings.latest) return reader_.refuse(NO_TIME, time);
        for (int64_t i = 0; i < settings.units; ++i)
            if (settings.unit[i].least <= time && time <= settings.unit[i].most) return reader_.refuse(WRONG_UNIT, i);
        return true;
    }

    // Checks that no column of the candidates is in the context, too.
    bool are_apart(ArrowArray* const* context_) {
        for (int64_t i = 0; i < message.candidates.size; ++i) {
            const int64_t place = schema_.find(message.candidates.columns[i].name);
            if (size_t(place) < schema_.specs.size() && context_[place])
                return refuse_column(IN_CONTEXT, IN_THE_CANDIDATES, message.candidates.columns[i].name);
        }
        return true;
    }

    bool are_complete() {
        for (size_t i = 0; i < schema_.specs.size(); ++i)
            if (schema_.specs[i].required && !found.context[i] && !found.candidates[i])
                return refuse_column(MISSING, OUTSIDE, {}, int64_t(i));
        return true;
    }

    // Bids of the candidates, 1 if there are none; null: refused.
    const double* read_bids(int64_t count) {
        if (message.bids && message.bids != count) {
            refuse_column(BIDS_LENGTH, OUTSIDE, {}, message.bids, count);
            return nullptr;
        }
        auto* const found_bids = arena_.take<double>(count);
        if (message.bids) {
            double* to = found_bids;
            numbers(message.begin, message.end, uint32_t(schema_.settings.numbers[BIDS]), true, GROUPS,
                    [&](uint64_t word) { std::memcpy(to++, &word, 8); });
        } else {
            std::fill_n(found_bids, count, 1.0);
        }
        int64_t negative = -1;
        for (int64_t i = 0; i < count; ++i) {
            if (!std::isfinite(found_bids[i])) return refuse_column(NOT_FINITE, OUTSIDE, {}, i), nullptr;
            if (negative < 0 && found_bids[i] < 0) negative = i;
        }
        if (negative >= 0) return refuse_column(NEGATIVE_BID, OUTSIDE, {}, negative), nullptr;
        return found_bids;
    }

    // Batch of the columns that were found, in the schema's order; null: none.
    ArrowArray* batch(ArrowArray* const* columns, int64_t rows) {
        const int64_t all = int64_t(schema_.specs.size()), count = all - std::count(columns, columns + all, nullptr);
        if (!count) return nullptr;
        ArrowArray* const array = arrays_.make(rows, nullptr, 1, count);
        std::copy_if(columns, columns + all, array->children, [](const ArrowArray* column) { return column; });
        return array;
    }

    // Ids or names, whatever their number and length: the caller's part checks them.
    ArrowArray* array_of(const Values& values) {
        if (values.kind == NONE) return nullptr;
        constexpr int64_t ANY = protobuf::MOST_BYTES;
        const Limits any{ANY, ANY, ANY};
        Problem none;
        return Reader(any, arrays_, none).flat(values, values.kind == INTS ? INT64 : STRING, nullptr);
    }
};

}  // namespace livectr::request

using livectr::request::ColumnOptions;
using livectr::request::Head;
using livectr::request::Schema;
using livectr::request::Settings;

// Schema with the memory of its requests, which outlives it as long as there are arrays.
struct RequestParser {
    Schema schema;
    std::shared_ptr<livectr::request::ArenaPool> pool = std::make_shared<livectr::request::ArenaPool>();
};

extern "C" {

RequestParser* request_new(const Settings* settings) { return new RequestParser{Schema(*settings)}; }

void request_delete(RequestParser* parser) { delete parser; }

// Adds a column that features read. Those come before other names.
void request_column(RequestParser* parser, const char* name, int64_t bytes, const ColumnOptions* options,
                    const char* fill) {
    using namespace livectr::request;
    parser->schema.add_name({name, size_t(bytes)});
    parser->schema.specs.push_back(Spec::of(*options, fill));
}

// Adds the name of a column that requests may have though no feature reads it.
void request_name(RequestParser* parser, const char* name, int64_t bytes) {
    parser->schema.add_name({name, size_t(bytes)});
}

// Sets the name of the column that the server fills in itself.
void request_item_column(RequestParser* parser, const char* name, int64_t bytes) {
    parser->schema.item_column.assign(name, size_t(bytes));
}

void request_parse(const RequestParser* parser, const uint8_t* data, int64_t bytes, Head* head, uint8_t* parts) {
    using namespace livectr::request;
    *head = {};
    const auto at = [&](Slice span) { return span.at ? span.at - data : 0; };
    try {
        std::unique_ptr<Lent> lent = ArenaPool::lend(parser->pool);
        Arrays arrays{lent->arena, release, lent.get()};
        Parser request(parser->schema, lent->arena, arrays);
        const bool good = request.parse(data, bytes, parts);
        const Problem& problem = request.problem;
        const Message& message = request.message;
        if (problem.code == DAMAGED) {  // texts may be no UTF-8
            head->code = DAMAGED;
            return ArenaPool::take_back(std::move(lent));
        }
        if (!good) {
            head->code = problem.code, head->part = problem.part, head->a = problem.a, head->b = problem.b;
            head->name_at = at(problem.name), head->name_size = problem.name.size;
        }
        head->id_at = at(message.request_id), head->id_size = message.request_id.size;
        head->side_at = at(message.side), head->side_size = message.side.size;
        head->bid_column_at = at(message.bid_column), head->bid_column_size = message.bid_column.size;
        head->sample = hash_bytes(data, std::min(bytes, SAMPLED_BYTES));
        head->version = message.version, head->explain = message.explain, head->contents = message.contents;
        head->top_k = message.top_k, head->prerank_k = message.prerank_k;
        head->size = request.size, head->time = request.time, head->timed = request.timed;
        head->items_kind = message.items.kind, head->items_size = message.items.size;
        head->items_longest = message.items.longest;
        head->excluded_kind = message.excluded.kind, head->excluded_size = message.excluded.size;
        head->excluded_longest = message.excluded.longest;
        if (!good) return ArenaPool::take_back(std::move(lent));
        head->context = request.context, head->candidates = request.candidates;
        head->items = request.items, head->excluded = request.excluded;
        head->context_columns = request.found.context, head->candidate_columns = request.found.candidates;
        head->bids = request.bids, head->bids_size = message.bids;
        head->memory = lent.release();
    } catch (const std::bad_alloc&) {
        *head = {};
        head->code = NO_ROOM;
    }
}

// Hands an array over by Arrow's C data interface, once.
void request_hand_over(const ArrowArray* array) { livectr::request::hand_over(*array); }
void request_drop(livectr::request::Lent* memory) { livectr::request::drop(memory); }
}
