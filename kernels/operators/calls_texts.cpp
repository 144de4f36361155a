// Operators over blocks of rows: texts. Written by `python -m livectr.ingest.extract.library_source`.
#include "extract/call.hpp"
#include "operators/operators.cuh"

namespace livectr {
namespace {

void texts_0(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { cast_bool_to_text(in0.at(row), sink); });
}
void texts_1(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(cast_text<double>(in0.at(row))); });
}
void texts_2(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(cast_text<float>(in0.at(row))); });
}
void texts_3(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(cast_text<int32_t>(in0.at(row))); });
}
void texts_4(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(cast_text<int64_t>(in0.at(row))); });
}
void texts_5(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { cast_to_text((int64_t)(in0.at(row)), sink); });
}
void texts_6(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { cast_to_text((int64_t)(in0.at(row)), sink); });
}
void texts_7(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(characters(in0.at(row))); });
}
void texts_8(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row)); });
}
void texts_9(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row)); });
}
void texts_10(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row)); });
}
void texts_11(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row)); });
}
void texts_12(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row)); });
}
void texts_13(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row)); });
}
void texts_14(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row), in7.at(row)); });
}
void texts_15(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(contains(in0.at(row), in1.at(row))); });
}
void texts_16(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(edit_distance(in0.at(row), in1.at(row))); });
}
void texts_17(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(equal(in0.at(row), in1.at(row))); });
}
void texts_18(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater(in0.at(row), in1.at(row))); });
}
void texts_19(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater_equal(in0.at(row), in1.at(row))); });
}
void texts_20(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(int64_t(in0.at(row).size)); });
}
void texts_21(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(json_bool(in0.at(row), in1.at(row))); });
}
void texts_22(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(json_number<double>(in0.at(row), in1.at(row))); });
}
void texts_23(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(json_number<float>(in0.at(row), in1.at(row))); });
}
void texts_24(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(json_number<int32_t>(in0.at(row), in1.at(row))); });
}
void texts_25(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(json_number<int64_t>(in0.at(row), in1.at(row))); });
}
void texts_26(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { json_text(in0.at(row), in1.at(row), sink); });
}
void texts_27(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.keys(in0.values, block.rows, out.values);
}
void texts_28(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto a0 = argument<int64_t>(call, 0);
    const auto a1 = argument<int64_t>(call, 1);
    const auto a2 = argument<int32_t>(call, 2);
    const auto a3 = argument<double>(call, 3);
    block.values(out, [&](int64_t row) { return double(last_age(in0.at(row), in1.at(row), a0, a1, a2, a3)); });
}
void texts_29(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less(in0.at(row), in1.at(row))); });
}
void texts_30(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less_equal(in0.at(row), in1.at(row))); });
}
void texts_31(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { lower(in0.at(row), sink); });
}
void texts_32(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(not_equal(in0.at(row), in1.at(row))); });
}
void texts_33(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(starts_with(in0.at(row), in1.at(row))); });
}
void texts_34(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto a0 = argument<int64_t>(call, 0);
    const auto a1 = argument<int32_t>(call, 1);
    const auto a2 = argument<int64_t>(call, 2);
    const auto a3 = argument<int64_t>(call, 3);
    const auto a4 = argument<int32_t>(call, 4);
    block.values(out, [&](int64_t row) { return int64_t(window_count(in0.at(row), in1.at(row), a0, a1, a2, a3, a4 != 0)); });
}
void texts_35(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto a0 = argument<int64_t>(call, 0);
    const auto a1 = argument<int64_t>(call, 1);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(substring_of(in0.at(row), a0, a1)); });
}
void texts_36(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(trimmed(in0.at(row))); });
}
void texts_37(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(in0.at(row) ? in1.at(row) : in2.at(row)); });
}

constexpr NamedFunction TEXTS[] = {
    {"cast_bool_to_text({0}, {sink}) bool -> string", texts_0},
    {"cast_text<double>({0}) string -> float64", texts_1},
    {"cast_text<float>({0}) string -> float32", texts_2},
    {"cast_text<int32_t>({0}) string -> int32", texts_3},
    {"cast_text<int64_t>({0}) string -> int64", texts_4},
    {"cast_to_text((int64_t)({0}), {sink}) int32 -> string", texts_5},
    {"cast_to_text((int64_t)({0}), {sink}) int64 -> string", texts_6},
    {"characters({0}) string -> int32", texts_7},
    {"concat({sink}, {0}, {1}) string string -> string", texts_8},
    {"concat({sink}, {0}, {1}, {2}) string string string -> string", texts_9},
    {"concat({sink}, {0}, {1}, {2}, {3}) string string string string -> string", texts_10},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) string string string string string -> string", texts_11},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string string string string string string -> string", texts_12},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string string string string string string -> string", texts_13},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string string string string string string -> string", texts_14},
    {"contains({0}, {1}) string string -> bool", texts_15},
    {"edit_distance({0}, {1}) string string -> int32", texts_16},
    {"equal({0}, {1}) string string -> bool", texts_17},
    {"greater({0}, {1}) string string -> bool", texts_18},
    {"greater_equal({0}, {1}) string string -> bool", texts_19},
    {"int64_t({0}.size) string -> int64", texts_20},
    {"json_bool({0}, {1}) string string -> bool", texts_21},
    {"json_number<double>({0}, {1}) string string -> float64", texts_22},
    {"json_number<float>({0}, {1}) string string -> float32", texts_23},
    {"json_number<int32_t>({0}, {1}) string string -> int32", texts_24},
    {"json_number<int64_t>({0}, {1}) string string -> int64", texts_25},
    {"json_text({0}, {1}, {sink}) string string -> string", texts_26},
    {"key({0}) string -> int64", texts_27},
    {"last_age({0}, {1}, {a[0]}, {a[1]}, {a[2]}, {a[3]}) string int64 -> float64 int64 int64 int32 float64", texts_28},
    {"less({0}, {1}) string string -> bool", texts_29},
    {"less_equal({0}, {1}) string string -> bool", texts_30},
    {"lower({0}, {sink}) string -> string", texts_31},
    {"not_equal({0}, {1}) string string -> bool", texts_32},
    {"starts_with({0}, {1}) string string -> bool", texts_33},
    {"window_count({0}, {1}, {a[0]}, {a[1]}, {a[2]}, {a[3]}, {a[4]} != 0) string int64 -> int64 int64 int32 int64 int64 int32", texts_34},
    {"{sink}.append(substring_of({0}, {a[0]}, {a[1]})) string -> string int64 int64", texts_35},
    {"{sink}.append(trimmed({0})) string -> string", texts_36},
    {"{sink}.append({0} ? {1} : {2}) bool string string -> string", texts_37},
};

}  // namespace

FunctionTable calls_texts() { return {TEXTS, 38}; }

}  // namespace livectr
