// Operators over blocks of rows: numbers. Written by `python -m livectr.ingest.extract.library_source`.
#include "extract/call.hpp"
#include "operators/operators.cuh"

namespace livectr {
namespace {

void numbers_0(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return double((double)in0.at(row)); });
}
void numbers_1(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return double((double)in0.at(row)); });
}
void numbers_2(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return double((double)in0.at(row)); });
}
void numbers_3(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return double((double)in0.at(row)); });
}
void numbers_4(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto a0 = argument<double>(call, 0);
    block.values(out, [&](int64_t row) { return float((float)((double)subtract(in0.at(row), in1.at(row)) / a0)); });
}
void numbers_5(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t((int32_t)in0.at(row)); });
}
void numbers_6(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t((int64_t)in0.at(row)); });
}
void numbers_7(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t((int64_t)in0.at(row)); });
}
void numbers_8(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<bool>(call.in[1]);
    const auto in2 = values_at<bool>(call.in[2]);
    block.values(out, [&](int64_t row) { return bool((in0.at(row) ? in1.at(row) : in2.at(row))); });
}
void numbers_9(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    const auto in2 = values_at<float>(call.in[2]);
    block.values(out, [&](int64_t row) { return float((in0.at(row) ? in1.at(row) : in2.at(row))); });
}
void numbers_10(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    const auto in2 = values_at<double>(call.in[2]);
    block.values(out, [&](int64_t row) { return double((in0.at(row) ? in1.at(row) : in2.at(row))); });
}
void numbers_11(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    const auto in2 = values_at<int32_t>(call.in[2]);
    block.values(out, [&](int64_t row) { return int32_t((in0.at(row) ? in1.at(row) : in2.at(row))); });
}
void numbers_12(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    block.values(out, [&](int64_t row) { return int64_t((in0.at(row) ? in1.at(row) : in2.at(row))); });
}
void numbers_13(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return bool(Cast<bool>::of(in0.at(row))); });
}
void numbers_14(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return bool(Cast<bool>::of(in0.at(row))); });
}
void numbers_15(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(Cast<double>::of(in0.at(row))); });
}
void numbers_16(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(Cast<double>::of(in0.at(row))); });
}
void numbers_17(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(Cast<float>::of(in0.at(row))); });
}
void numbers_18(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(Cast<float>::of(in0.at(row))); });
}
void numbers_19(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(Cast<int32_t>::of(in0.at(row))); });
}
void numbers_20(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(Cast<int32_t>::of(in0.at(row))); });
}
void numbers_21(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(Cast<int64_t>::of(in0.at(row))); });
}
void numbers_22(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(Cast<int64_t>::of(in0.at(row))); });
}
void numbers_23(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(add(in0.at(row), in1.at(row))); });
}
void numbers_24(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(add(in0.at(row), in1.at(row))); });
}
void numbers_25(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(add(in0.at(row), in1.at(row))); });
}
void numbers_26(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(add(in0.at(row), in1.at(row))); });
}
void numbers_27(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto a0 = argument<double>(call, 0);
    block.values(out, [&](int64_t row) { return double(at_least<double>(in0.at(row), a0)); });
}
void numbers_28(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto a0 = argument<float>(call, 0);
    block.values(out, [&](int64_t row) { return float(at_least<float>(in0.at(row), a0)); });
}
void numbers_29(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.values(out, [&](int64_t row) { return int32_t(at_least<int32_t>(in0.at(row), a0)); });
}
void numbers_30(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<int64_t>(call, 0);
    block.values(out, [&](int64_t row) { return int64_t(at_least<int64_t>(in0.at(row), a0)); });
}
void numbers_31(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto a0 = argument<double>(call, 0);
    const auto a1 = argument<double>(call, 1);
    block.values(out, [&](int64_t row) { return double(at_most<double>(at_least<double>(in0.at(row), a0), a1)); });
}
void numbers_32(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto a0 = argument<double>(call, 0);
    block.values(out, [&](int64_t row) { return double(at_most<double>(in0.at(row), a0)); });
}
void numbers_33(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto a0 = argument<float>(call, 0);
    const auto a1 = argument<float>(call, 1);
    block.values(out, [&](int64_t row) { return float(at_most<float>(at_least<float>(in0.at(row), a0), a1)); });
}
void numbers_34(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto a0 = argument<float>(call, 0);
    block.values(out, [&](int64_t row) { return float(at_most<float>(in0.at(row), a0)); });
}
void numbers_35(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    const auto a1 = argument<int32_t>(call, 1);
    block.values(out, [&](int64_t row) { return int32_t(at_most<int32_t>(at_least<int32_t>(in0.at(row), a0), a1)); });
}
void numbers_36(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto a0 = argument<int32_t>(call, 0);
    block.values(out, [&](int64_t row) { return int32_t(at_most<int32_t>(in0.at(row), a0)); });
}
void numbers_37(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<int64_t>(call, 0);
    const auto a1 = argument<int64_t>(call, 1);
    block.values(out, [&](int64_t row) { return int64_t(at_most<int64_t>(at_least<int64_t>(in0.at(row), a0), a1)); });
}
void numbers_38(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<int64_t>(call, 0);
    block.values(out, [&](int64_t row) { return int64_t(at_most<int64_t>(in0.at(row), a0)); });
}
void numbers_39(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(bits_of(in0.at(row))); });
}
void numbers_40(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(bits_of(in0.at(row))); });
}
void numbers_41(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto a0 = argument<const double*>(call, 0);
    const auto a1 = argument<int32_t>(call, 1);
    block.values(out, [&](int64_t row) { return int32_t(bucketize<double>(in0.at(row), a0, a1)); });
}
void numbers_42(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto a0 = argument<const int64_t*>(call, 0);
    const auto a1 = argument<int32_t>(call, 1);
    block.values(out, [&](int64_t row) { return int32_t(bucketize<int64_t>(in0.at(row), a0, a1)); });
}
void numbers_43(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(cross_keys(in0.at(row), in1.at(row))); });
}
void numbers_44(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    block.values(out, [&](int64_t row) { return int64_t(cross_keys(in0.at(row), in1.at(row), in2.at(row))); });
}
void numbers_45(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    const auto in2 = values_at<int64_t>(call.in[2]);
    const auto in3 = values_at<int64_t>(call.in[3]);
    block.values(out, [&](int64_t row) { return int64_t(cross_keys(in0.at(row), in1.at(row), in2.at(row), in3.at(row))); });
}
void numbers_46(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(divide(in0.at(row), in1.at(row))); });
}
void numbers_47(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(divide(in0.at(row), in1.at(row))); });
}
void numbers_48(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(equal(in0.at(row), in1.at(row))); });
}
void numbers_49(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(equal(in0.at(row), in1.at(row))); });
}
void numbers_50(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(equal(in0.at(row), in1.at(row))); });
}
void numbers_51(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(equal(in0.at(row), in1.at(row))); });
}
void numbers_52(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(floor_divide(in0.at(row), in1.at(row))); });
}
void numbers_53(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(floor_divide(in0.at(row), in1.at(row))); });
}
void numbers_54(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(floor_divide(in0.at(row), in1.at(row))); });
}
void numbers_55(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(floor_divide(in0.at(row), in1.at(row))); });
}
void numbers_56(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater(in0.at(row), in1.at(row))); });
}
void numbers_57(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater(in0.at(row), in1.at(row))); });
}
void numbers_58(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater(in0.at(row), in1.at(row))); });
}
void numbers_59(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater(in0.at(row), in1.at(row))); });
}
void numbers_60(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater_equal(in0.at(row), in1.at(row))); });
}
void numbers_61(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater_equal(in0.at(row), in1.at(row))); });
}
void numbers_62(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater_equal(in0.at(row), in1.at(row))); });
}
void numbers_63(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(greater_equal(in0.at(row), in1.at(row))); });
}
void numbers_64(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(hour_of(in0.at(row), in1.at(row))); });
}
void numbers_65(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(key(in0.at(row))); });
}
void numbers_66(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(key(in0.at(row))); });
}
void numbers_67(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less(in0.at(row), in1.at(row))); });
}
void numbers_68(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less(in0.at(row), in1.at(row))); });
}
void numbers_69(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less(in0.at(row), in1.at(row))); });
}
void numbers_70(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less(in0.at(row), in1.at(row))); });
}
void numbers_71(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less_equal(in0.at(row), in1.at(row))); });
}
void numbers_72(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less_equal(in0.at(row), in1.at(row))); });
}
void numbers_73(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less_equal(in0.at(row), in1.at(row))); });
}
void numbers_74(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(less_equal(in0.at(row), in1.at(row))); });
}
void numbers_75(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(log1p_of(in0.at(row))); });
}
void numbers_76(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<bool>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(logical_and(in0.at(row), in1.at(row))); });
}
void numbers_77(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    block.values(out, [&](int64_t row) { return bool(logical_not(in0.at(row))); });
}
void numbers_78(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<bool>(call.in[0]);
    const auto in1 = values_at<bool>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(logical_or(in0.at(row), in1.at(row))); });
}
void numbers_79(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(modulo(in0.at(row), in1.at(row))); });
}
void numbers_80(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(modulo(in0.at(row), in1.at(row))); });
}
void numbers_81(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(modulo(in0.at(row), in1.at(row))); });
}
void numbers_82(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(modulo(in0.at(row), in1.at(row))); });
}
void numbers_83(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(multiply(in0.at(row), in1.at(row))); });
}
void numbers_84(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(multiply(in0.at(row), in1.at(row))); });
}
void numbers_85(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(multiply(in0.at(row), in1.at(row))); });
}
void numbers_86(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(multiply(in0.at(row), in1.at(row))); });
}
void numbers_87(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    const auto in2 = values_at<double>(call.in[2]);
    block.values(out, [&](int64_t row) { return float(normalise(in0.at(row), in1.at(row), in2.at(row))); });
}
void numbers_88(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(not_equal(in0.at(row), in1.at(row))); });
}
void numbers_89(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(not_equal(in0.at(row), in1.at(row))); });
}
void numbers_90(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(not_equal(in0.at(row), in1.at(row))); });
}
void numbers_91(const Call& call, const RowBlock& block) {
    const auto out = values_at<bool>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return bool(not_equal(in0.at(row), in1.at(row))); });
}
void numbers_92(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    const auto in1 = values_at<float>(call.in[1]);
    block.values(out, [&](int64_t row) { return float(subtract(in0.at(row), in1.at(row))); });
}
void numbers_93(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    const auto in1 = values_at<double>(call.in[1]);
    block.values(out, [&](int64_t row) { return double(subtract(in0.at(row), in1.at(row))); });
}
void numbers_94(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    const auto in1 = values_at<int32_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(subtract(in0.at(row), in1.at(row))); });
}
void numbers_95(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int64_t(subtract(in0.at(row), in1.at(row))); });
}
void numbers_96(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    const auto in1 = values_at<int64_t>(call.in[1]);
    block.values(out, [&](int64_t row) { return int32_t(weekday_of(in0.at(row), in1.at(row))); });
}
void numbers_97(const Call& call, const RowBlock& block) {
    const auto out = values_at<float>(call.out);
    const auto in0 = values_at<float>(call.in[0]);
    block.values(out, [&](int64_t row) { return float(in0.at(row)); });
}
void numbers_98(const Call& call, const RowBlock& block) {
    const auto out = values_at<double>(call.out);
    const auto in0 = values_at<double>(call.in[0]);
    block.values(out, [&](int64_t row) { return double(in0.at(row)); });
}
void numbers_99(const Call& call, const RowBlock& block) {
    const auto out = values_at<int32_t>(call.out);
    const auto in0 = values_at<int32_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int32_t(in0.at(row)); });
}
void numbers_100(const Call& call, const RowBlock& block) {
    const auto out = values_at<int64_t>(call.out);
    const auto in0 = values_at<int64_t>(call.in[0]);
    block.values(out, [&](int64_t row) { return int64_t(in0.at(row)); });
}

constexpr NamedFunction NUMBERS[] = {
    {"(double){0} bool -> float64", numbers_0},
    {"(double){0} float32 -> float64", numbers_1},
    {"(double){0} int32 -> float64", numbers_2},
    {"(double){0} int64 -> float64", numbers_3},
    {"(float)((double)subtract({0}, {1}) / {a[0]}) int64 int64 -> float32 float64", numbers_4},
    {"(int32_t){0} bool -> int32", numbers_5},
    {"(int64_t){0} bool -> int64", numbers_6},
    {"(int64_t){0} int32 -> int64", numbers_7},
    {"({0} ? {1} : {2}) bool bool bool -> bool", numbers_8},
    {"({0} ? {1} : {2}) bool float32 float32 -> float32", numbers_9},
    {"({0} ? {1} : {2}) bool float64 float64 -> float64", numbers_10},
    {"({0} ? {1} : {2}) bool int32 int32 -> int32", numbers_11},
    {"({0} ? {1} : {2}) bool int64 int64 -> int64", numbers_12},
    {"Cast<bool>::of({0}) float64 -> bool", numbers_13},
    {"Cast<bool>::of({0}) int64 -> bool", numbers_14},
    {"Cast<double>::of({0}) float64 -> float64", numbers_15},
    {"Cast<double>::of({0}) int64 -> float64", numbers_16},
    {"Cast<float>::of({0}) float64 -> float32", numbers_17},
    {"Cast<float>::of({0}) int64 -> float32", numbers_18},
    {"Cast<int32_t>::of({0}) float64 -> int32", numbers_19},
    {"Cast<int32_t>::of({0}) int64 -> int32", numbers_20},
    {"Cast<int64_t>::of({0}) float64 -> int64", numbers_21},
    {"Cast<int64_t>::of({0}) int64 -> int64", numbers_22},
    {"add({0}, {1}) float32 float32 -> float32", numbers_23},
    {"add({0}, {1}) float64 float64 -> float64", numbers_24},
    {"add({0}, {1}) int32 int32 -> int32", numbers_25},
    {"add({0}, {1}) int64 int64 -> int64", numbers_26},
    {"at_least<double>({0}, {a[0]}) float64 -> float64 float64", numbers_27},
    {"at_least<float>({0}, {a[0]}) float32 -> float32 float32", numbers_28},
    {"at_least<int32_t>({0}, {a[0]}) int32 -> int32 int32", numbers_29},
    {"at_least<int64_t>({0}, {a[0]}) int64 -> int64 int64", numbers_30},
    {"at_most<double>(at_least<double>({0}, {a[0]}), {a[1]}) float64 -> float64 float64 float64", numbers_31},
    {"at_most<double>({0}, {a[0]}) float64 -> float64 float64", numbers_32},
    {"at_most<float>(at_least<float>({0}, {a[0]}), {a[1]}) float32 -> float32 float32 float32", numbers_33},
    {"at_most<float>({0}, {a[0]}) float32 -> float32 float32", numbers_34},
    {"at_most<int32_t>(at_least<int32_t>({0}, {a[0]}), {a[1]}) int32 -> int32 int32 int32", numbers_35},
    {"at_most<int32_t>({0}, {a[0]}) int32 -> int32 int32", numbers_36},
    {"at_most<int64_t>(at_least<int64_t>({0}, {a[0]}), {a[1]}) int64 -> int64 int64 int64", numbers_37},
    {"at_most<int64_t>({0}, {a[0]}) int64 -> int64 int64", numbers_38},
    {"bits_of({0}) float32 -> int64", numbers_39},
    {"bits_of({0}) float64 -> int64", numbers_40},
    {"bucketize<double>({0}, {a[0]}, {a[1]}) float64 -> int32 float64[] int32", numbers_41},
    {"bucketize<int64_t>({0}, {a[0]}, {a[1]}) int64 -> int32 int64[] int32", numbers_42},
    {"cross_keys({0}, {1}) int64 int64 -> int64", numbers_43},
    {"cross_keys({0}, {1}, {2}) int64 int64 int64 -> int64", numbers_44},
    {"cross_keys({0}, {1}, {2}, {3}) int64 int64 int64 int64 -> int64", numbers_45},
    {"divide({0}, {1}) float32 float32 -> float32", numbers_46},
    {"divide({0}, {1}) float64 float64 -> float64", numbers_47},
    {"equal({0}, {1}) float32 float32 -> bool", numbers_48},
    {"equal({0}, {1}) float64 float64 -> bool", numbers_49},
    {"equal({0}, {1}) int32 int32 -> bool", numbers_50},
    {"equal({0}, {1}) int64 int64 -> bool", numbers_51},
    {"floor_divide({0}, {1}) float32 float32 -> float32", numbers_52},
    {"floor_divide({0}, {1}) float64 float64 -> float64", numbers_53},
    {"floor_divide({0}, {1}) int32 int32 -> int32", numbers_54},
    {"floor_divide({0}, {1}) int64 int64 -> int64", numbers_55},
    {"greater({0}, {1}) float32 float32 -> bool", numbers_56},
    {"greater({0}, {1}) float64 float64 -> bool", numbers_57},
    {"greater({0}, {1}) int32 int32 -> bool", numbers_58},
    {"greater({0}, {1}) int64 int64 -> bool", numbers_59},
    {"greater_equal({0}, {1}) float32 float32 -> bool", numbers_60},
    {"greater_equal({0}, {1}) float64 float64 -> bool", numbers_61},
    {"greater_equal({0}, {1}) int32 int32 -> bool", numbers_62},
    {"greater_equal({0}, {1}) int64 int64 -> bool", numbers_63},
    {"hour_of({0}, {1}) int64 int64 -> int32", numbers_64},
    {"key({0}) bool -> int64", numbers_65},
    {"key({0}) int32 -> int64", numbers_66},
    {"less({0}, {1}) float32 float32 -> bool", numbers_67},
    {"less({0}, {1}) float64 float64 -> bool", numbers_68},
    {"less({0}, {1}) int32 int32 -> bool", numbers_69},
    {"less({0}, {1}) int64 int64 -> bool", numbers_70},
    {"less_equal({0}, {1}) float32 float32 -> bool", numbers_71},
    {"less_equal({0}, {1}) float64 float64 -> bool", numbers_72},
    {"less_equal({0}, {1}) int32 int32 -> bool", numbers_73},
    {"less_equal({0}, {1}) int64 int64 -> bool", numbers_74},
    {"log1p_of({0}) float64 -> float32", numbers_75},
    {"logical_and({0}, {1}) bool bool -> bool", numbers_76},
    {"logical_not({0}) bool -> bool", numbers_77},
    {"logical_or({0}, {1}) bool bool -> bool", numbers_78},
    {"modulo({0}, {1}) float32 float32 -> float32", numbers_79},
    {"modulo({0}, {1}) float64 float64 -> float64", numbers_80},
    {"modulo({0}, {1}) int32 int32 -> int32", numbers_81},
    {"modulo({0}, {1}) int64 int64 -> int64", numbers_82},
    {"multiply({0}, {1}) float32 float32 -> float32", numbers_83},
    {"multiply({0}, {1}) float64 float64 -> float64", numbers_84},
    {"multiply({0}, {1}) int32 int32 -> int32", numbers_85},
    {"multiply({0}, {1}) int64 int64 -> int64", numbers_86},
    {"normalise({0}, {1}, {2}) float64 float64 float64 -> float32", numbers_87},
    {"not_equal({0}, {1}) float32 float32 -> bool", numbers_88},
    {"not_equal({0}, {1}) float64 float64 -> bool", numbers_89},
    {"not_equal({0}, {1}) int32 int32 -> bool", numbers_90},
    {"not_equal({0}, {1}) int64 int64 -> bool", numbers_91},
    {"subtract({0}, {1}) float32 float32 -> float32", numbers_92},
    {"subtract({0}, {1}) float64 float64 -> float64", numbers_93},
    {"subtract({0}, {1}) int32 int32 -> int32", numbers_94},
    {"subtract({0}, {1}) int64 int64 -> int64", numbers_95},
    {"weekday_of({0}, {1}) int64 int64 -> int32", numbers_96},
    {"{0} float32 -> float32", numbers_97},
    {"{0} float64 -> float64", numbers_98},
    {"{0} int32 -> int32", numbers_99},
    {"{0} int64 -> int64", numbers_100},
};

}  // namespace

FunctionTable calls_numbers() { return {NUMBERS, 101}; }

}  // namespace livectr
