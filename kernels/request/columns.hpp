// Columns of a request as Arrow arrays in the request's memory.
#pragma once
#include "extract/arrow.hpp"
#include "request/arena.hpp"
#include "request/schema.hpp"

#include <cmath>

namespace livectr::request {

// What is wrong: a code, the part and the name of the column, and two numbers of the sentence.
struct Problem {
    Code code = GOOD;
    Part part = OUTSIDE;
    Slice name;
    int64_t a = 0, b = 0;
};

// Validity of rows; without a bitmap all are valid.
class Validity {
  public:
    Validity(Arena& arena, int64_t rows) : arena_(arena), rows_(rows) {}

    int64_t nulls() const { return nulls_; }
    const uint8_t* bits() const { return bits_; }
    bool is_null(int64_t row) const { return bits_ && !bit_at(bits_, row); }

    void set_null(int64_t row) {
        if (!bits_) {
            bits_ = arena_.take<uint8_t>((rows_ + 7) / 8);
            std::memset(bits_, 0xFF, size_t((rows_ + 7) / 8));
        }
        if (!bit_at(bits_, row)) return;
        bits_[row >> 3] = uint8_t(bits_[row >> 3] & ~(1 << (row & 7)));
        ++nulls_;
    }

  private:
    Arena& arena_;
    int64_t rows_, nulls_ = 0;
    uint8_t* bits_ = nullptr;
};

// Arrays of a request. Each that is exported calls `release` once, by the rules of Arrow's C data interface.
struct Arrays {
    Arena& arena;
    void (*release)(ArrowArray*);
    void* owner;

    ArrowArray* make(int64_t length, const Validity* valid, int64_t buffers, int64_t children = 0) {
        auto* const array = arena.take<ArrowArray>(1);
        const bool nulls = valid && valid->nulls();
        *array = {length,
                  nulls ? valid->nulls() : 0,
                  0,
                  buffers,
                  children,
                  arena.take<const void*>(buffers),
                  children ? arena.take<ArrowArray*>(children) : nullptr,
                  nullptr,
                  release,
                  owner};
        array->buffers[0] = nulls ? valid->bits() : nullptr;
        return array;
    }
};

// Reads columns and checks them: Arrow arrays, or a problem.
class Reader {
  public:
    Reader(const Limits& limits, Arrays& arrays, Problem& problem)
        : limits_(limits), arrays_(arrays), arena_(arrays.arena), problem_(problem) {}

    bool refuse(Code code, int64_t a = 0, int64_t b = 0) {
        problem_.code = code, problem_.a = a, problem_.b = b;
        return false;
    }

    // Array of a column of `rows` rows; null: refused.
    ArrowArray* column(const Column& column, const Spec& spec, int64_t rows) {
        const Values& values = column.values;
        if (values.kind != kind_of(spec.element)) {
            refuse(values.kind == NONE ? NO_VALUES : WRONG_KIND, values.kind);
            return nullptr;
        }
        Validity valid(arena_, rows);
        if (!mark_nulls(column, rows, valid)) return nullptr;
        if (spec.listed) return lists(column, spec, rows, valid);
        if (column.offsets || values.size != rows) {
            column.offsets ? refuse(NO_LIST) : refuse(WRONG_LENGTH, values.size, rows);
            return nullptr;
        }
        ArrowArray* const array = flat(values, spec.element, &valid);
        return array && valid.nulls() && spec.filled ? filled(*array, spec, valid) : array;
    }

    // Array of n values. valid: takes NaN as null; null: of a list, where it is an error.
    ArrowArray* flat(const Values& values, Element element, Validity* valid) {
        switch (element) {
            case INT64: return fixed<int64_t>(values, valid, [](int64_t* to, uint64_t word) { *to = int64_t(word); });
            case INT32: return int32s(values, valid);
            case FLOAT64: return floats<double>(values, valid);
            case FLOAT32: return floats<float>(values, valid);
            case BOOL: return bools(values, valid);
            default: return texts(values, valid);
        }
    }

  private:
    const Limits& limits_;
    Arrays& arrays_;
    Arena& arena_;
    Problem& problem_;

    bool mark_nulls(const Column& column, int64_t rows, Validity& valid) {
        int64_t before = -1;
        bool rising = true;
        column.each_null([&](uint64_t word) {
            const int64_t row = uint32_t(word);
            rising = rising && row > before && row < rows;
            if (rising) valid.set_null(before = row);
        });
        return rising || refuse(BAD_NULLS, rows);
    }

    ArrowArray* lists(const Column& column, const Spec& spec, int64_t rows, const Validity& valid) {
        const Values& values = column.values;
        auto* const ends = arena_.take<int32_t>(rows + 1);
        bool rising = column.offsets == rows + 1;
        int64_t longest = 0;
        if (rising) {
            int64_t at = 0, before = 0;
            column.each_offset([&](uint64_t word) {
                const int64_t offset = uint32_t(word);
                rising = rising && offset >= before && offset <= values.size && (at > 0 || offset == 0);
                longest = std::max(longest, offset - before);
                ends[at++] = int32_t(before = offset);
            });
            rising = rising && before == values.size;
        }
        if (!rising) return refuse(BAD_OFFSETS, rows + 1, values.size), nullptr;
        if (longest > limits_.list) return refuse(LONG_LIST, longest), nullptr;
        ArrowArray* const items = flat(values, spec.element, nullptr);
        if (!items) return nullptr;
        ArrowArray* const array = arrays_.make(rows, &valid, 2, 1);
        array->buffers[1] = ends;
        array->children[0] = items;
        return array;
    }

    template <typename T, typename Put>
    ArrowArray* fixed(const Values& values, const Validity* valid, Put put) {
        auto* const numbers = arena_.take<T>(values.size);
        T* to = numbers;
        values.each_number([&](uint64_t word) { put(to++, word); });
        ArrowArray* const array = arrays_.make(values.size, valid, 2);
        array->buffers[1] = numbers;
        return array;
    }

    ArrowArray* int32s(const Values& values, const Validity* valid) {
        uint64_t beyond = 0;
        ArrowArray* const array = fixed<int32_t>(values, valid, [&](int32_t* to, uint64_t word) {
            *to = int32_t(uint32_t(word));
            beyond |= word ^ uint64_t(int64_t(*to));
        });
        return beyond ? refuse(NO_INT32), nullptr : array;
    }

    // An infinite number anywhere comes before one that float32 cannot hold.
    template <typename T>
    ArrowArray* floats(const Values& values, Validity* valid) {
        auto* const numbers = arena_.take<T>(values.size);
        int64_t i = 0, infinite = -1;
        bool fits = true;
        values.each_number([&](uint64_t word) {
            double value;
            std::memcpy(&value, &word, 8);
            if (valid && std::isnan(value)) {
                valid->set_null(i);
                value = 0;
            } else if (!std::isfinite(value)) {
                if (infinite < 0) infinite = i;
            } else if (sizeof(T) == 4 && std::fabs(value) >= 0x1.ffffffp127) {  // rounds to an infinite float
                fits = false;
                value = 0;
            }
            numbers[i++] = T(value);
        });
        if (infinite >= 0) return refuse(NOT_FINITE, infinite), nullptr;
        if (!fits) return refuse(NO_FLOAT32), nullptr;
        ArrowArray* const array = arrays_.make(values.size, valid, 2);
        array->buffers[1] = numbers;
        return array;
    }

    ArrowArray* bools(const Values& values, const Validity* valid) {
        auto* const bits = arena_.take<uint8_t>((values.size + 7) / 8);
        std::memset(bits, 0, size_t((values.size + 7) / 8));
        int64_t i = 0;
        values.each_number([&](uint64_t word) {
            bits[i >> 3] = uint8_t(bits[i >> 3] | (word != 0) << (i & 7));
            ++i;
        });
        ArrowArray* const array = arrays_.make(values.size, valid, 2);
        array->buffers[1] = bits;
        return array;
    }

    ArrowArray* texts(const Values& values, const Validity* valid) {
        if (values.longest > limits_.string_bytes) return refuse(LONG_STRING, values.longest), nullptr;
        auto* const ends = arena_.take<int32_t>(values.size + 1);
        auto* const chars = arena_.take<uint8_t>(values.chars);
        int32_t size = 0;
        int32_t* to = ends;
        *to = 0;
        values.each_text([&](Slice text) {
            if (text.size) std::memcpy(chars + size, text.at, size_t(text.size));
            *++to = size += int32_t(text.size);
        });
        ArrowArray* const array = arrays_.make(values.size, valid, 3);
        array->buffers[1] = ends, array->buffers[2] = chars;
        return array;
    }

    // The array with the stream's value in the place of nulls.
    ArrowArray* filled(ArrowArray& array, const Spec& spec, const Validity& valid) {
        array.null_count = 0;
        array.buffers[0] = nullptr;
        if (is_text(kind_of(spec.element))) return filled_texts(array, spec, valid);
        auto* const to = static_cast<uint8_t*>(const_cast<void*>(array.buffers[1]));
        for (int64_t i = 0; i < array.length; ++i) {
            if (!valid.is_null(i)) continue;
            switch (spec.element) {
                case INT64:
                case FLOAT64: std::memcpy(to + 8 * i, &spec.fill, 8); break;
                case INT32:
                case FLOAT32: std::memcpy(to + 4 * i, &spec.fill, 4); break;
                default: to[i >> 3] = uint8_t((to[i >> 3] & ~(1 << (i & 7))) | int(spec.fill != 0) << (i & 7));
            }
        }
        return &array;
    }

    ArrowArray* filled_texts(ArrowArray& array, const Spec& spec, const Validity& valid) {
        const int64_t fill = int64_t(spec.fill_text.size());
        const int32_t* const old = buffer<int32_t>(array, 1);
        const uint8_t* const from = buffer<uint8_t>(array, 2);
        const int64_t bytes = old[array.length] + valid.nulls() * fill;
        if (bytes > protobuf::MOST_BYTES) throw std::bad_alloc();
        auto* const ends = arena_.take<int32_t>(array.length + 1);
        auto* const chars = arena_.take<uint8_t>(bytes);
        int32_t size = 0;
        ends[0] = 0;
        for (int64_t i = 0; i < array.length; ++i) {
            const bool null = valid.is_null(i);
            const int64_t length = null ? fill : old[i + 1] - old[i];
            const void* const text = null ? static_cast<const void*>(spec.fill_text.data()) : from + old[i];
            if (length) std::memcpy(chars + size, text, size_t(length));
            ends[i + 1] = size += int32_t(length);
        }
        array.buffers[1] = ends, array.buffers[2] = chars;
        return &array;
    }
};

}  // namespace livectr::request
