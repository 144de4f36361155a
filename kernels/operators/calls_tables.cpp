// Operators over blocks of rows: tables. Written by `python -m livectr.ingest.extract.library_source`.
#include "extract/call.hpp"
#include "operators/operators.cuh"

namespace livectr {
namespace {

void tables_0(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const Keywords*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { keywords(in0.at(row), resource, sink); });
}
void tables_1(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto* const state = static_cast<const double*>(call.state);
    block.values(out, [&](int64_t row) { return float(minmax_of(in0.at(row), state)); });
}
void tables_2(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto* const state = static_cast<const double*>(call.state);
    block.values(out, [&](int64_t row) { return int32_t(quantile_bin(in0.at(row), state)); });
}
void tables_3(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    const auto a1 = argument<int32_t>(call, 1);
    const auto* const state = static_cast<const int64_t*>(call.state);
    block.values(out, [&](int64_t row) { return int64_t(sketch_count(in0.at(row), state, a0, a1)); });
}
void tables_4(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<bool>(call, 0);
    const auto& resource = *static_cast<const WordVectors*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { word_embedding(resource, in0.at(row), a0, sink); });
}
void tables_5(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto a0 = argument<bool>(call, 0);
    const auto& resource = *static_cast<const WordVectors*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { word_embedding(resource, in0.row(row), a0, sink); });
}
void tables_6(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto a0 = argument<bool>(call, 0);
    const auto& resource = *static_cast<const WordVectors*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { word_embedding(resource, in0.row(row), a0, sink); });
}
void tables_7(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto a0 = argument<bool>(call, 0);
    const auto& resource = *static_cast<const WordVectors*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { word_embedding(resource, in0.at(row), a0, sink); });
}
void tables_8(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto* const state = static_cast<const double*>(call.state);
    block.values(out, [&](int64_t row) { return float(zscore_of(in0.at(row), state)); });
}
void tables_9(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<bool>*>(call.resource);
    block.values(out, [&](int64_t row) { return bool(resource.at(key(in0.at(row)))); });
}
void tables_10(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<float>*>(call.resource);
    block.values(out, [&](int64_t row) { return float(resource.at(key(in0.at(row)))); });
}
void tables_11(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<double>*>(call.resource);
    block.values(out, [&](int64_t row) { return double(resource.at(key(in0.at(row)))); });
}
void tables_12(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int32_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int32_t(resource.at(key(in0.at(row)))); });
}
void tables_13(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int64_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int64_t(resource.at(key(in0.at(row)))); });
}
void tables_14(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<bool>*>(call.resource);
    block.values(out, [&](int64_t row) { return bool(resource.at(key(in0.at(row)))); });
}
void tables_15(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<float>*>(call.resource);
    block.values(out, [&](int64_t row) { return float(resource.at(key(in0.at(row)))); });
}
void tables_16(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<double>*>(call.resource);
    block.values(out, [&](int64_t row) { return double(resource.at(key(in0.at(row)))); });
}
void tables_17(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int32_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int32_t(resource.at(key(in0.at(row)))); });
}
void tables_18(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int64_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int64_t(resource.at(key(in0.at(row)))); });
}
void tables_19(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<bool>*>(call.resource);
    block.values(out, [&](int64_t row) { return bool(resource.at(key(in0.at(row)))); });
}
void tables_20(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<float>*>(call.resource);
    block.values(out, [&](int64_t row) { return float(resource.at(key(in0.at(row)))); });
}
void tables_21(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<double>*>(call.resource);
    block.values(out, [&](int64_t row) { return double(resource.at(key(in0.at(row)))); });
}
void tables_22(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int32_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int32_t(resource.at(key(in0.at(row)))); });
}
void tables_23(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const NumberDictionary<int64_t>*>(call.resource);
    block.values(out, [&](int64_t row) { return int64_t(resource.at(key(in0.at(row)))); });
}
void tables_24(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<bool>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_25(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<float>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_26(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<double>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_27(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int32_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_28(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int64_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_29(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<bool>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_30(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<float>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_31(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<double>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_32(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int32_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_33(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int64_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_34(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<bool>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_35(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<float>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_36(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<double>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_37(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int32_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_38(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const ListDictionary<int64_t>*>(call.resource);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { resource.put(key(in0.at(row)), sink); });
}
void tables_39(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(resource.at(key(in0.at(row)))); });
}
void tables_40(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(resource.at(key(in0.at(row)))); });
}
void tables_41(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(resource.at(key(items.at(i)))); sink.next(); } });
}
void tables_42(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(resource.at(key(items.at(i)))); sink.next(); } });
}
void tables_43(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(resource.at(key(items.at(i)))); sink.next(); } });
}
void tables_44(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto& resource = *static_cast<const StringDictionary*>(call.resource);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(resource.at(key(in0.at(row)))); });
}

constexpr NamedFunction TABLES[] = {
    {"keywords({0}, {resource}, {sink}) string -> list<int32> Keywords", tables_0},
    {"minmax_of({0}, {state}) float64 -> float32 double", tables_1},
    {"quantile_bin({0}, {state}) float64 -> int32 double", tables_2},
    {"sketch_count({0}, {state}, {a[0]}, {a[1]}) int64 -> int64 int32 int32 int64_t", tables_3},
    {"word_embedding({resource}, {0}, {a[0]}, {sink}) int64 -> list<float32> bool WordVectors", tables_4},
    {"word_embedding({resource}, {0}, {a[0]}, {sink}) list<int64> -> list<float32> bool WordVectors", tables_5},
    {"word_embedding({resource}, {0}, {a[0]}, {sink}) list<string> -> list<float32> bool WordVectors", tables_6},
    {"word_embedding({resource}, {0}, {a[0]}, {sink}) string -> list<float32> bool WordVectors", tables_7},
    {"zscore_of({0}, {state}) float64 -> float32 double", tables_8},
    {"{resource}.at(key({0})) int32 -> bool NumberDictionary<bool>", tables_9},
    {"{resource}.at(key({0})) int32 -> float32 NumberDictionary<float>", tables_10},
    {"{resource}.at(key({0})) int32 -> float64 NumberDictionary<double>", tables_11},
    {"{resource}.at(key({0})) int32 -> int32 NumberDictionary<int32_t>", tables_12},
    {"{resource}.at(key({0})) int32 -> int64 NumberDictionary<int64_t>", tables_13},
    {"{resource}.at(key({0})) int64 -> bool NumberDictionary<bool>", tables_14},
    {"{resource}.at(key({0})) int64 -> float32 NumberDictionary<float>", tables_15},
    {"{resource}.at(key({0})) int64 -> float64 NumberDictionary<double>", tables_16},
    {"{resource}.at(key({0})) int64 -> int32 NumberDictionary<int32_t>", tables_17},
    {"{resource}.at(key({0})) int64 -> int64 NumberDictionary<int64_t>", tables_18},
    {"{resource}.at(key({0})) string -> bool NumberDictionary<bool>", tables_19},
    {"{resource}.at(key({0})) string -> float32 NumberDictionary<float>", tables_20},
    {"{resource}.at(key({0})) string -> float64 NumberDictionary<double>", tables_21},
    {"{resource}.at(key({0})) string -> int32 NumberDictionary<int32_t>", tables_22},
    {"{resource}.at(key({0})) string -> int64 NumberDictionary<int64_t>", tables_23},
    {"{resource}.put(key({0}), {sink}) int32 -> list<bool> ListDictionary<bool>", tables_24},
    {"{resource}.put(key({0}), {sink}) int32 -> list<float32> ListDictionary<float>", tables_25},
    {"{resource}.put(key({0}), {sink}) int32 -> list<float64> ListDictionary<double>", tables_26},
    {"{resource}.put(key({0}), {sink}) int32 -> list<int32> ListDictionary<int32_t>", tables_27},
    {"{resource}.put(key({0}), {sink}) int32 -> list<int64> ListDictionary<int64_t>", tables_28},
    {"{resource}.put(key({0}), {sink}) int64 -> list<bool> ListDictionary<bool>", tables_29},
    {"{resource}.put(key({0}), {sink}) int64 -> list<float32> ListDictionary<float>", tables_30},
    {"{resource}.put(key({0}), {sink}) int64 -> list<float64> ListDictionary<double>", tables_31},
    {"{resource}.put(key({0}), {sink}) int64 -> list<int32> ListDictionary<int32_t>", tables_32},
    {"{resource}.put(key({0}), {sink}) int64 -> list<int64> ListDictionary<int64_t>", tables_33},
    {"{resource}.put(key({0}), {sink}) string -> list<bool> ListDictionary<bool>", tables_34},
    {"{resource}.put(key({0}), {sink}) string -> list<float32> ListDictionary<float>", tables_35},
    {"{resource}.put(key({0}), {sink}) string -> list<float64> ListDictionary<double>", tables_36},
    {"{resource}.put(key({0}), {sink}) string -> list<int32> ListDictionary<int32_t>", tables_37},
    {"{resource}.put(key({0}), {sink}) string -> list<int64> ListDictionary<int64_t>", tables_38},
    {"{sink}.append({resource}.at(key({0}))) int32 -> string StringDictionary", tables_39},
    {"{sink}.append({resource}.at(key({0}))) int64 -> string StringDictionary", tables_40},
    {"{sink}.append({resource}.at(key({0}))) list<int32> -> list<string> StringDictionary", tables_41},
    {"{sink}.append({resource}.at(key({0}))) list<int64> -> list<string> StringDictionary", tables_42},
    {"{sink}.append({resource}.at(key({0}))) list<string> -> list<string> StringDictionary", tables_43},
    {"{sink}.append({resource}.at(key({0}))) string -> string StringDictionary", tables_44},
};

}  // namespace

FunctionTable calls_tables() { return {TABLES, 45}; }

}  // namespace livectr
