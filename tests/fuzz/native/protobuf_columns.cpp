// Protobuf messages, each behind a byte with its length, into columns of all kinds and shapes.
#include "columns.hpp"
#include "protobuf/columns.cpp"

namespace {

using namespace livectr::protobuf;

struct Wanted {
    Kind kind;
    Shape shape;
    int32_t oneof;
    bool list, presence, closed;
    int32_t number;
};

const Wanted WANTED[] = {
    {INT64, PLAIN, -1, false, false, false, 1},    {INT32, PLAIN, -1, false, true, false, 2},
    {SINT64, PLAIN, -1, false, false, false, 3},   {SINT32, PLAIN, -1, false, false, false, 4},
    {BOOL, PLAIN, -1, false, false, false, 5},     {WORD64, PLAIN, -1, false, true, false, 6},
    {WORD32, PLAIN, -1, false, false, false, 7},   {STRING, PLAIN, -1, false, false, false, 8},
    {BYTES, PLAIN, -1, false, true, false, 9},     {INT64, PLAIN, -1, true, false, false, 10},
    {SINT32, PLAIN, -1, true, false, false, 11},   {BOOL, PLAIN, -1, true, false, false, 12},
    {WORD64, PLAIN, -1, true, false, false, 13},   {STRING, PLAIN, -1, true, false, false, 14},
    {BYTES, PLAIN, -1, true, false, false, 15},    {INT32, PLAIN, -1, true, false, true, 16},
    {INT64, WRAPPED, -1, false, true, false, 17},  {STRING, WRAPPED, -1, false, true, false, 18},
    {MESSAGE, MICROS, -1, false, true, false, 19}, {MESSAGE, NANOS, -1, false, true, false, 20},
    {INT32, PLAIN, 0, false, true, true, 21},      {STRING, PLAIN, 0, false, true, false, 22},
    {MESSAGE, NANOS, 0, false, true, false, 23},   {STRING, PLAIN, 1, false, false, false, 600},
};
constexpr int64_t COUNT = sizeof WANTED / sizeof WANTED[0];

}  // namespace

FUZZ_TARGET(protobuf_columns) {
    const std::unique_ptr<Reader, decltype(&protobuf_delete)> reader(protobuf_new(), protobuf_delete);
    const int32_t known[] = {-1, 0, 5};
    for (const Wanted& one : WANTED) {
        const char absent[] = "absent";
        const ProtobufField field{
            one.number, one.kind,     one.shape,  one.oneof,          one.list,
            true,       one.presence, one.closed, one.closed ? 3 : 0, one.kind == STRING && !one.list ? 6 : 0,
            0};
        protobuf_field(reader.get(), &field, known, absent);
    }
    for (const Kind kind : {MESSAGE, GROUP, INT32}) {  // other members of the oneofs, which end a wanted one
        const ProtobufField field{
            30 + kind, kind, PLAIN, kind == INT32 ? 0 : 1, 0, 0, 0, kind == INT32, kind == INT32 ? 3 : 0, 0, 0};
        protobuf_field(reader.get(), &field, known, "");
    }
    std::vector<int64_t> starts, stops;
    std::vector<uint8_t> data;
    while (!input.empty()) {
        const fuzz::Exact message = input.piece(input.number<uint8_t>());
        starts.push_back(int64_t(data.size()));
        data.insert(data.end(), message.data(), message.data() + message.size);
        stops.push_back(int64_t(data.size()));
    }
    const fuzz::Exact exact(data.data(), int64_t(data.size()));
    const int64_t n = int64_t(starts.size());
    std::vector<int32_t> errors(size_t(n), -1);
    const int64_t rows = protobuf_read(reader.get(), exact.data(), starts.data(), stops.data(), n, errors.data());
    REQUIRE(rows == std::count(errors.begin(), errors.end(), 0));
    for (const int32_t error : errors) REQUIRE((error & 0xFF) <= BAD_TIME && (error >> 8) >= 0 && (error >> 8) < COUNT);
    for (int64_t i = 0; i < COUNT; ++i) {
        const Wanted& one = WANTED[i];
        const bool time = one.shape == MICROS || one.shape == NANOS,
                   text = !time && (one.kind == STRING || one.kind == BYTES);
        const int64_t width = time                                                            ? 8
                              : one.kind == BOOL                                              ? 0
                              : one.kind == INT32 || one.kind == SINT32 || one.kind == WORD32 ? 4
                                                                                              : 8;
        fuzz::check_column(
            rows, one.list, text, one.kind == STRING, width, [&](int64_t* to) { protobuf_sizes(reader.get(), i, to); },
            [&](auto... to) { protobuf_take(reader.get(), i, to...); });
    }
}
