// Operators over blocks of rows: lists. Written by `python -m livectr.ingest.extract.library_source`.
#include "extract/call.hpp"
#include "operators/operators.cuh"

namespace livectr {
namespace {

void lists_0(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.gram_keys(out, *call.pool, in0, a0);
}
void lists_1(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { byte_ngrams(in0.at(row), a0, sink); });
}
void lists_2(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { cast_bool_to_text(items.at(i), sink); sink.next(); } });
}
void lists_3(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { cast_to_text((int64_t)(items.at(i)), sink); sink.next(); } });
}
void lists_4(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { cast_to_text((int64_t)(items.at(i)), sink); sink.next(); } });
}
void lists_5(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { character_ngrams(in0.at(row), a0, sink); });
}
void lists_6(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row)); sink.next(); } });
}
void lists_7(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i)); sink.next(); } });
}
void lists_8(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row)); sink.next(); } });
}
void lists_9(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row)); sink.next(); } });
}
void lists_10(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i)); sink.next(); } });
}
void lists_11(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row), in3.at(row)); sink.next(); } });
}
void lists_12(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row), in3.at(row)); sink.next(); } });
}
void lists_13(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i), in3.at(row)); sink.next(); } });
}
void lists_14(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = lists_at<Str>(call.in[3]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in3.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), items.at(i)); sink.next(); } });
}
void lists_15(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row), in3.at(row), in4.at(row)); sink.next(); } });
}
void lists_16(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row), in3.at(row), in4.at(row)); sink.next(); } });
}
void lists_17(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i), in3.at(row), in4.at(row)); sink.next(); } });
}
void lists_18(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = lists_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in3.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), items.at(i), in4.at(row)); sink.next(); } });
}
void lists_19(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = lists_at<Str>(call.in[4]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in4.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), items.at(i)); sink.next(); } });
}
void lists_20(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row)); sink.next(); } });
}
void lists_21(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row), in3.at(row), in4.at(row), in5.at(row)); sink.next(); } });
}
void lists_22(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i), in3.at(row), in4.at(row), in5.at(row)); sink.next(); } });
}
void lists_23(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = lists_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in3.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), items.at(i), in4.at(row), in5.at(row)); sink.next(); } });
}
void lists_24(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = lists_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in4.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), items.at(i), in5.at(row)); sink.next(); } });
}
void lists_25(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = lists_at<Str>(call.in[5]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in5.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), items.at(i)); sink.next(); } });
}
void lists_26(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row)); sink.next(); } });
}
void lists_27(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row)); sink.next(); } });
}
void lists_28(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i), in3.at(row), in4.at(row), in5.at(row), in6.at(row)); sink.next(); } });
}
void lists_29(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = lists_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in3.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), items.at(i), in4.at(row), in5.at(row), in6.at(row)); sink.next(); } });
}
void lists_30(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = lists_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in4.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), items.at(i), in5.at(row), in6.at(row)); sink.next(); } });
}
void lists_31(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = lists_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in5.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), items.at(i), in6.at(row)); sink.next(); } });
}
void lists_32(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = lists_at<Str>(call.in[6]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in6.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), items.at(i)); sink.next(); } });
}
void lists_33(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, items.at(i), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_34(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), items.at(i), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_35(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), items.at(i), in3.at(row), in4.at(row), in5.at(row), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_36(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = lists_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in3.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), items.at(i), in4.at(row), in5.at(row), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_37(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = lists_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in4.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), items.at(i), in5.at(row), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_38(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = lists_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in5.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), items.at(i), in6.at(row), in7.at(row)); sink.next(); } });
}
void lists_39(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = lists_at<Str>(call.in[6]);
    const auto in7 = values_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in6.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), items.at(i), in7.at(row)); sink.next(); } });
}
void lists_40(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    const auto in3 = values_at<Str>(call.in[3]);
    const auto in4 = values_at<Str>(call.in[4]);
    const auto in5 = values_at<Str>(call.in[5]);
    const auto in6 = values_at<Str>(call.in[6]);
    const auto in7 = lists_at<Str>(call.in[7]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in7.row(row); for (int32_t i = 0; i < items.size(); ++i) { concat(sink, in0.at(row), in1.at(row), in2.at(row), in3.at(row), in4.at(row), in5.at(row), in6.at(row), items.at(i)); sink.next(); } });
}
void lists_41(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row)); });
}
void lists_42(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row)); });
}
void lists_43(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row)); });
}
void lists_44(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.at(row), in2.row(row)); });
}
void lists_45(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.at(row)); });
}
void lists_46(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.row(row)); });
}
void lists_47(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.at(row)); });
}
void lists_48(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.row(row)); });
}
void lists_49(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.at(row)); });
}
void lists_50(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.row(row)); });
}
void lists_51(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.at(row), in2.at(row), in3.row(row)); });
}
void lists_52(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.at(row), in2.row(row), in3.at(row)); });
}
void lists_53(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.at(row), in2.row(row), in3.row(row)); });
}
void lists_54(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.at(row), in3.at(row)); });
}
void lists_55(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.at(row), in3.row(row)); });
}
void lists_56(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.row(row), in3.at(row)); });
}
void lists_57(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.at(row), in1.row(row), in2.row(row), in3.row(row)); });
}
void lists_58(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.at(row), in3.at(row)); });
}
void lists_59(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.at(row), in3.row(row)); });
}
void lists_60(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.row(row), in3.at(row)); });
}
void lists_61(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.at(row), in2.row(row), in3.row(row)); });
}
void lists_62(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.at(row), in3.at(row)); });
}
void lists_63(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.at(row), in3.row(row)); });
}
void lists_64(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.row(row), in3.at(row)); });
}
void lists_65(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = lists_at<int64_t>(call.in[1]);
    const auto in2 = lists_at<int64_t>(call.in[2]);
    const auto in3 = lists_at<int64_t>(call.in[3]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { cross(sink, in0.row(row), in1.row(row), in2.row(row), in3.row(row)); });
}
void lists_66(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { json_text(items.at(i), in1.at(row), sink); sink.next(); } });
}
void lists_67(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<Str>(in0.row(row), in1.at(row))); });
}
void lists_68(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<double>(in0.row(row), in1.at(row))); });
}
void lists_69(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<double>(in0.row(row), in1.at(row))); });
}
void lists_70(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<double>(in0.row(row), in1.at(row))); });
}
void lists_71(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<double>(in0.row(row), in1.at(row))); });
}
void lists_72(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<double>(in0.row(row), in1.at(row))); });
}
void lists_73(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<float>(in0.row(row), in1.at(row))); });
}
void lists_74(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<int32_t>(in0.row(row), in1.at(row))); });
}
void lists_75(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<int32_t>(in0.row(row), in1.at(row))); });
}
void lists_76(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_77(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_78(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::contains<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_79(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<Str>(in0.row(row), in1.at(row))); });
}
void lists_80(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<double>(in0.row(row), in1.at(row))); });
}
void lists_81(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<double>(in0.row(row), in1.at(row))); });
}
void lists_82(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<double>(in0.row(row), in1.at(row))); });
}
void lists_83(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<double>(in0.row(row), in1.at(row))); });
}
void lists_84(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<double>(in0.row(row), in1.at(row))); });
}
void lists_85(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<float>(in0.row(row), in1.at(row))); });
}
void lists_86(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<int32_t>(in0.row(row), in1.at(row))); });
}
void lists_87(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<int32_t>(in0.row(row), in1.at(row))); });
}
void lists_88(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_89(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_90(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::count<int64_t>(in0.row(row), in1.at(row))); });
}
void lists_91(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(lists::extreme<false>(in0.row(row))); });
}
void lists_92(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::extreme<false>(in0.row(row))); });
}
void lists_93(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(lists::extreme<false>(in0.row(row))); });
}
void lists_94(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(lists::extreme<false>(in0.row(row))); });
}
void lists_95(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(lists::extreme<true>(in0.row(row))); });
}
void lists_96(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::extreme<true>(in0.row(row))); });
}
void lists_97(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(lists::extreme<true>(in0.row(row))); });
}
void lists_98(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(lists::extreme<true>(in0.row(row))); });
}
void lists_99(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_100(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_101(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_102(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_103(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_104(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::head(in0.row(row), a0, sink); });
}
void lists_105(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(lists::item(in0.row(row), in1.at(row))); });
}
void lists_106(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(lists::item(in0.row(row), in1.at(row))); });
}
void lists_107(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(lists::item(in0.row(row), in1.at(row))); });
}
void lists_108(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(lists::item(in0.row(row), in1.at(row))); });
}
void lists_109(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(lists::item(in0.row(row), in1.at(row))); });
}
void lists_110(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::mean(in0.row(row))); });
}
void lists_111(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::mean(in0.row(row))); });
}
void lists_112(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::mean(in0.row(row))); });
}
void lists_113(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::mean(in0.row(row))); });
}
void lists_114(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::mean(in0.row(row))); });
}
void lists_115(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_116(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_117(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_118(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_119(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_120(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::tail(in0.row(row), a0, sink); });
}
void lists_121(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::total<double>(in0.row(row))); });
}
void lists_122(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(lists::total<double>(in0.row(row))); });
}
void lists_123(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(lists::total<int64_t>(in0.row(row))); });
}
void lists_124(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(lists::total<int64_t>(in0.row(row))); });
}
void lists_125(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(lists::total<int64_t>(in0.row(row))); });
}
void lists_126(const Call& call, const RowBlock& block) {
    const auto out = lists_at<bool>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_127(const Call& call, const RowBlock& block) {
    const auto out = lists_at<float>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_128(const Call& call, const RowBlock& block) {
    const auto out = lists_at<double>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_129(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_130(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_131(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { lists::unique(in0.row(row), sink); });
}
void lists_132(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { lower(items.at(i), sink); sink.next(); } });
}
void lists_133(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { split(in0.at(row), in1.at(row), sink); });
}
void lists_134(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(token_overlap(in0.row(row), in1.row(row))); });
}
void lists_135(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { word_ngrams(in0.row(row), a0, sink); });
}
void lists_136(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = values_at<Str>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { words_of(in0.at(row), sink); });
}
void lists_137(const Call& call, const RowBlock& block) {
    const auto out = lists_at<int64_t>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    block.lists(out, *call.pool, [&](int64_t row, auto& sink) { words_of_each(in0.row(row), sink); });
}
void lists_138(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_139(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_140(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_141(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_142(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_143(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.row(row).size()); });
}
void lists_144(const Call& call, const RowBlock& block) {
    const auto out = values_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.strings(out, *call.pool, [&](int64_t row, auto& sink) { sink.append(lists::item(in0.row(row), in1.at(row))); });
}
void lists_145(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    const auto a0 = argument<int64_t>(call, 0);
    const auto a1 = argument<int64_t>(call, 1);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(substring_of(items.at(i), a0, a1)); sink.next(); } });
}
void lists_146(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<Str>(call.in[0]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(trimmed(items.at(i))); sink.next(); } });
}
void lists_147(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = lists_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in1.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(in0.at(row) ? items.at(i) : in2.at(row)); sink.next(); } });
}
void lists_148(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = lists_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in2.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(in0.at(row) ? in1.at(row) : items.at(i)); sink.next(); } });
}
void lists_149(const Call& call, const RowBlock& block) {
    const auto out = lists_at<Str>(call.out);
    const auto in0 = lists_at<bool>(call.in[0]);
    const auto in1 = values_at<Str>(call.in[1]);
    const auto in2 = values_at<Str>(call.in[2]);
    block.string_lists(out, *call.pool, [&](int64_t row, auto& sink) { const auto items = in0.row(row); for (int32_t i = 0; i < items.size(); ++i) { sink.append(items.at(i) ? in1.at(row) : in2.at(row)); sink.next(); } });
}

constexpr NamedFunction LISTS[] = {
    {"block.gram_keys({out}, {pool}, {0}, {a[0]}) string -> list<int64> int32", lists_0},
    {"byte_ngrams({0}, {a[0]}, {sink}) string -> list<string> int32", lists_1},
    {"cast_bool_to_text({0}, {sink}) list<bool> -> list<string>", lists_2},
    {"cast_to_text((int64_t)({0}), {sink}) list<int32> -> list<string>", lists_3},
    {"cast_to_text((int64_t)({0}), {sink}) list<int64> -> list<string>", lists_4},
    {"character_ngrams({0}, {a[0]}, {sink}) string -> list<string> int32", lists_5},
    {"concat({sink}, {0}, {1}) list<string> string -> list<string>", lists_6},
    {"concat({sink}, {0}, {1}) string list<string> -> list<string>", lists_7},
    {"concat({sink}, {0}, {1}, {2}) list<string> string string -> list<string>", lists_8},
    {"concat({sink}, {0}, {1}, {2}) string list<string> string -> list<string>", lists_9},
    {"concat({sink}, {0}, {1}, {2}) string string list<string> -> list<string>", lists_10},
    {"concat({sink}, {0}, {1}, {2}, {3}) list<string> string string string -> list<string>", lists_11},
    {"concat({sink}, {0}, {1}, {2}, {3}) string list<string> string string -> list<string>", lists_12},
    {"concat({sink}, {0}, {1}, {2}, {3}) string string list<string> string -> list<string>", lists_13},
    {"concat({sink}, {0}, {1}, {2}, {3}) string string string list<string> -> list<string>", lists_14},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) list<string> string string string string -> list<string>", lists_15},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) string list<string> string string string -> list<string>", lists_16},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) string string list<string> string string -> list<string>", lists_17},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) string string string list<string> string -> list<string>", lists_18},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}) string string string string list<string> -> list<string>", lists_19},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) list<string> string string string string string -> list<string>", lists_20},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string list<string> string string string string -> list<string>", lists_21},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string string list<string> string string string -> list<string>", lists_22},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string string string list<string> string string -> list<string>", lists_23},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string string string string list<string> string -> list<string>", lists_24},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}) string string string string string list<string> -> list<string>", lists_25},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) list<string> string string string string string string -> list<string>", lists_26},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string list<string> string string string string string -> list<string>", lists_27},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string list<string> string string string string -> list<string>", lists_28},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string string list<string> string string string -> list<string>", lists_29},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string string string list<string> string string -> list<string>", lists_30},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string string string string list<string> string -> list<string>", lists_31},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}) string string string string string string list<string> -> list<string>", lists_32},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) list<string> string string string string string string string -> list<string>", lists_33},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string list<string> string string string string string string -> list<string>", lists_34},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string list<string> string string string string string -> list<string>", lists_35},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string list<string> string string string string -> list<string>", lists_36},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string string list<string> string string string -> list<string>", lists_37},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string string string list<string> string string -> list<string>", lists_38},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string string string string list<string> string -> list<string>", lists_39},
    {"concat({sink}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) string string string string string string string list<string> -> list<string>", lists_40},
    {"cross({sink}, {0}, {1}) int64 list<int64> -> list<int64>", lists_41},
    {"cross({sink}, {0}, {1}) list<int64> int64 -> list<int64>", lists_42},
    {"cross({sink}, {0}, {1}) list<int64> list<int64> -> list<int64>", lists_43},
    {"cross({sink}, {0}, {1}, {2}) int64 int64 list<int64> -> list<int64>", lists_44},
    {"cross({sink}, {0}, {1}, {2}) int64 list<int64> int64 -> list<int64>", lists_45},
    {"cross({sink}, {0}, {1}, {2}) int64 list<int64> list<int64> -> list<int64>", lists_46},
    {"cross({sink}, {0}, {1}, {2}) list<int64> int64 int64 -> list<int64>", lists_47},
    {"cross({sink}, {0}, {1}, {2}) list<int64> int64 list<int64> -> list<int64>", lists_48},
    {"cross({sink}, {0}, {1}, {2}) list<int64> list<int64> int64 -> list<int64>", lists_49},
    {"cross({sink}, {0}, {1}, {2}) list<int64> list<int64> list<int64> -> list<int64>", lists_50},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 int64 int64 list<int64> -> list<int64>", lists_51},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 int64 list<int64> int64 -> list<int64>", lists_52},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 int64 list<int64> list<int64> -> list<int64>", lists_53},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 list<int64> int64 int64 -> list<int64>", lists_54},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 list<int64> int64 list<int64> -> list<int64>", lists_55},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 list<int64> list<int64> int64 -> list<int64>", lists_56},
    {"cross({sink}, {0}, {1}, {2}, {3}) int64 list<int64> list<int64> list<int64> -> list<int64>", lists_57},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> int64 int64 int64 -> list<int64>", lists_58},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> int64 int64 list<int64> -> list<int64>", lists_59},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> int64 list<int64> int64 -> list<int64>", lists_60},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> int64 list<int64> list<int64> -> list<int64>", lists_61},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> list<int64> int64 int64 -> list<int64>", lists_62},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> list<int64> int64 list<int64> -> list<int64>", lists_63},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> list<int64> list<int64> int64 -> list<int64>", lists_64},
    {"cross({sink}, {0}, {1}, {2}, {3}) list<int64> list<int64> list<int64> list<int64> -> list<int64>", lists_65},
    {"json_text({0}, {1}, {sink}) list<string> string -> list<string>", lists_66},
    {"lists::contains<Str>({0}, {1}) list<string> string -> bool", lists_67},
    {"lists::contains<double>({0}, {1}) list<bool> float64 -> bool", lists_68},
    {"lists::contains<double>({0}, {1}) list<float32> float64 -> bool", lists_69},
    {"lists::contains<double>({0}, {1}) list<float64> float64 -> bool", lists_70},
    {"lists::contains<double>({0}, {1}) list<int32> float64 -> bool", lists_71},
    {"lists::contains<double>({0}, {1}) list<int64> float64 -> bool", lists_72},
    {"lists::contains<float>({0}, {1}) list<float32> float32 -> bool", lists_73},
    {"lists::contains<int32_t>({0}, {1}) list<bool> int32 -> bool", lists_74},
    {"lists::contains<int32_t>({0}, {1}) list<int32> int32 -> bool", lists_75},
    {"lists::contains<int64_t>({0}, {1}) list<bool> int64 -> bool", lists_76},
    {"lists::contains<int64_t>({0}, {1}) list<int32> int64 -> bool", lists_77},
    {"lists::contains<int64_t>({0}, {1}) list<int64> int64 -> bool", lists_78},
    {"lists::count<Str>({0}, {1}) list<string> string -> int32", lists_79},
    {"lists::count<double>({0}, {1}) list<bool> float64 -> int32", lists_80},
    {"lists::count<double>({0}, {1}) list<float32> float64 -> int32", lists_81},
    {"lists::count<double>({0}, {1}) list<float64> float64 -> int32", lists_82},
    {"lists::count<double>({0}, {1}) list<int32> float64 -> int32", lists_83},
    {"lists::count<double>({0}, {1}) list<int64> float64 -> int32", lists_84},
    {"lists::count<float>({0}, {1}) list<float32> float32 -> int32", lists_85},
    {"lists::count<int32_t>({0}, {1}) list<bool> int32 -> int32", lists_86},
    {"lists::count<int32_t>({0}, {1}) list<int32> int32 -> int32", lists_87},
    {"lists::count<int64_t>({0}, {1}) list<bool> int64 -> int32", lists_88},
    {"lists::count<int64_t>({0}, {1}) list<int32> int64 -> int32", lists_89},
    {"lists::count<int64_t>({0}, {1}) list<int64> int64 -> int32", lists_90},
    {"lists::extreme<false>({0}) list<float32> -> float32", lists_91},
    {"lists::extreme<false>({0}) list<float64> -> float64", lists_92},
    {"lists::extreme<false>({0}) list<int32> -> int32", lists_93},
    {"lists::extreme<false>({0}) list<int64> -> int64", lists_94},
    {"lists::extreme<true>({0}) list<float32> -> float32", lists_95},
    {"lists::extreme<true>({0}) list<float64> -> float64", lists_96},
    {"lists::extreme<true>({0}) list<int32> -> int32", lists_97},
    {"lists::extreme<true>({0}) list<int64> -> int64", lists_98},
    {"lists::head({0}, {a[0]}, {sink}) list<bool> -> list<bool> int32", lists_99},
    {"lists::head({0}, {a[0]}, {sink}) list<float32> -> list<float32> int32", lists_100},
    {"lists::head({0}, {a[0]}, {sink}) list<float64> -> list<float64> int32", lists_101},
    {"lists::head({0}, {a[0]}, {sink}) list<int32> -> list<int32> int32", lists_102},
    {"lists::head({0}, {a[0]}, {sink}) list<int64> -> list<int64> int32", lists_103},
    {"lists::head({0}, {a[0]}, {sink}) list<string> -> list<string> int32", lists_104},
    {"lists::item({0}, {1}) list<bool> int64 -> bool", lists_105},
    {"lists::item({0}, {1}) list<float32> int64 -> float32", lists_106},
    {"lists::item({0}, {1}) list<float64> int64 -> float64", lists_107},
    {"lists::item({0}, {1}) list<int32> int64 -> int32", lists_108},
    {"lists::item({0}, {1}) list<int64> int64 -> int64", lists_109},
    {"lists::mean({0}) list<bool> -> float64", lists_110},
    {"lists::mean({0}) list<float32> -> float64", lists_111},
    {"lists::mean({0}) list<float64> -> float64", lists_112},
    {"lists::mean({0}) list<int32> -> float64", lists_113},
    {"lists::mean({0}) list<int64> -> float64", lists_114},
    {"lists::tail({0}, {a[0]}, {sink}) list<bool> -> list<bool> int32", lists_115},
    {"lists::tail({0}, {a[0]}, {sink}) list<float32> -> list<float32> int32", lists_116},
    {"lists::tail({0}, {a[0]}, {sink}) list<float64> -> list<float64> int32", lists_117},
    {"lists::tail({0}, {a[0]}, {sink}) list<int32> -> list<int32> int32", lists_118},
    {"lists::tail({0}, {a[0]}, {sink}) list<int64> -> list<int64> int32", lists_119},
    {"lists::tail({0}, {a[0]}, {sink}) list<string> -> list<string> int32", lists_120},
    {"lists::total<double>({0}) list<float32> -> float64", lists_121},
    {"lists::total<double>({0}) list<float64> -> float64", lists_122},
    {"lists::total<int64_t>({0}) list<bool> -> int64", lists_123},
    {"lists::total<int64_t>({0}) list<int32> -> int64", lists_124},
    {"lists::total<int64_t>({0}) list<int64> -> int64", lists_125},
    {"lists::unique({0}, {sink}) list<bool> -> list<bool>", lists_126},
    {"lists::unique({0}, {sink}) list<float32> -> list<float32>", lists_127},
    {"lists::unique({0}, {sink}) list<float64> -> list<float64>", lists_128},
    {"lists::unique({0}, {sink}) list<int32> -> list<int32>", lists_129},
    {"lists::unique({0}, {sink}) list<int64> -> list<int64>", lists_130},
    {"lists::unique({0}, {sink}) list<string> -> list<string>", lists_131},
    {"lower({0}, {sink}) list<string> -> list<string>", lists_132},
    {"split({0}, {1}, {sink}) string string -> list<string>", lists_133},
    {"token_overlap({0}, {1}) list<string> list<string> -> float32", lists_134},
    {"word_ngrams({0}, {a[0]}, {sink}) list<string> -> list<string> int32", lists_135},
    {"words_of({0}, {sink}) string -> list<int64>", lists_136},
    {"words_of_each({0}, {sink}) list<string> -> list<int64>", lists_137},
    {"{0}.size() list<bool> -> int32", lists_138},
    {"{0}.size() list<float32> -> int32", lists_139},
    {"{0}.size() list<float64> -> int32", lists_140},
    {"{0}.size() list<int32> -> int32", lists_141},
    {"{0}.size() list<int64> -> int32", lists_142},
    {"{0}.size() list<string> -> int32", lists_143},
    {"{sink}.append(lists::item({0}, {1})) list<string> int64 -> string", lists_144},
    {"{sink}.append(substring_of({0}, {a[0]}, {a[1]})) list<string> -> list<string> int64 int64", lists_145},
    {"{sink}.append(trimmed({0})) list<string> -> list<string>", lists_146},
    {"{sink}.append({0} ? {1} : {2}) bool list<string> string -> list<string>", lists_147},
    {"{sink}.append({0} ? {1} : {2}) bool string list<string> -> list<string>", lists_148},
    {"{sink}.append({0} ? {1} : {2}) list<bool> string string -> list<string>", lists_149},
};

}  // namespace

FunctionTable calls_lists() { return {LISTS, 150}; }

}  // namespace livectr
