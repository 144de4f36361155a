// Protobuf messages into columns. A message that is damaged gives an error and no row. What the columns do not need is
// passed over, as a parser passes over unknown fields: it must be framed well, and its content is not looked at.
// A field whose wire type is not that of its declaration is unknown, too.
#include "protobuf/wire.hpp"
#include "extract/values.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace livectr::protobuf {

// PLAIN: a value. WRAPPED: a message whose field 1 is the value. MICROS, NANOS: seconds and nanoseconds as one number.
enum Shape : int32_t { PLAIN, WRAPPED, MICROS, NANOS };

// Kinds of errors of a message; the lowest byte of its error. The number of the column is above it.
enum Error : int32_t { GOOD, DAMAGED, NOT_TEXT, BAD_TIME };

constexpr int64_t FIRST_S = -62'135'596'800, LAST_S = 253'402'300'799;  // years 1 to 9999, as Timestamp allows

// Field of a message that is wanted, or that ends a field of its oneof.
struct Field : stream::Values {
    uint32_t number = 0;
    Kind kind = INT64;
    Shape shape = PLAIN;
    int32_t oneof = -1;
    bool wanted = false, presence = false;  // presence: null where it is absent
    uint64_t absent = 0;                    // value where it is absent
    std::string absent_chars;
    bool closed = false;  // an enum that knows no other numbers
    std::vector<int32_t> known;

    // The message being read: its number, the value of the field, and of a time seconds and nanoseconds.
    int64_t seen = -1;
    uint64_t value = 0;
    int64_t seconds = 0;
    int32_t nanos = 0;
    const uint8_t* at = nullptr;
    int64_t length = 0;

    bool is_known(uint64_t number_) const {
        return !closed || std::binary_search(known.begin(), known.end(), int32_t(number_));
    }

    void reset() { value = 0, seconds = 0, nanos = 0, at = nullptr, length = 0; }
};

class Reader {
  public:
    std::vector<std::unique_ptr<Field>> columns, others;
    int64_t rows = 0;

    void add(std::unique_ptr<Field> field) {
        const uint32_t number = field->number;
        if (field->oneof >= int32_t(members_.size())) members_.resize(size_t(field->oneof) + 1);
        if (number < FEW) {
            few_[number] = field.get();
        } else {
            const auto place = std::lower_bound(many_.begin(), many_.end(), number, before);
            many_.insert(place, field.get());
        }
        (field->wanted ? columns : others).push_back(std::move(field));
    }

    void clear(int64_t messages) {
        rows = 0;
        for (const auto& column : columns) column->clear(messages), column->seen = -1;
        for (auto& member : members_) member = nullptr;
    }

    // Adds a message as a row; returns its error. number: of the message.
    int32_t message(const uint8_t* begin, const uint8_t* end, int64_t number) {
        for (auto& member : members_) member = nullptr;
        int32_t error = fields(begin, end, number);
        for (size_t i = 0; i < columns.size() && !error; ++i) error = checked(*columns[i], int32_t(i), number);
        for (const auto& column : columns) {
            if (error) column->rewind(rows);
            else finish(*column, number);
        }
        rows += !error;
        return error;
    }

  private:
    static constexpr uint32_t FEW = 512;
    Field* few_[FEW] = {};
    std::vector<Field*> many_;     // by number
    std::vector<Field*> members_;  // oneof → its member that the message has

    static bool before(const Field* field, uint32_t number) { return field->number < number; }

    Field* find(uint32_t number) const {
        if (number < FEW) return few_[number];
        const auto place = std::lower_bound(many_.begin(), many_.end(), number, before);
        return place != many_.end() && (*place)->number == number ? *place : nullptr;
    }

    static int32_t error_of(Error error, size_t column) { return int32_t(error) | int32_t(column << 8); }

    bool present(const Field& field, int64_t number) const {
        return field.seen == number && (field.oneof < 0 || members_[size_t(field.oneof)] == &field);
    }

    int32_t fields(const uint8_t* p, const uint8_t* end, int64_t number) {
        while (p < end) {
            uint32_t tag;
            if (!read_tag(p, end, tag)) return DAMAGED;
            Field* const field = find(tag >> 3);
            const uint32_t wire = tag & 7;
            if (!field || !takes(*field, wire)) {
                if (!skip(p, end, tag, GROUPS)) return DAMAGED;
                continue;
            }
            if (const int32_t error = occurrence(*field, wire, tag, p, end, number)) return error;
        }
        return GOOD;
    }

    static bool takes(const Field& field, uint32_t wire) {
        if (field.shape != PLAIN) return wire == LENGTH;
        if (field.kind == GROUP) return wire == GROUP_BEGIN;
        return wire == wire_of(field.kind) || (wire == LENGTH && field.list);
    }

    // A field again: the last value counts, and messages are merged, unless another member of the oneof came between.
    void begin(Field& field, int64_t number) {
        const bool continues = present(field, number);
        field.seen = number;
        if (!continues) field.reset();
        if (field.oneof >= 0) members_[size_t(field.oneof)] = &field;
    }

    int32_t occurrence(Field& field, uint32_t wire, uint32_t tag, const uint8_t*& p, const uint8_t* end,
                       int64_t number) {
        if (!field.wanted) {
            if (wire == VARINT && field.closed) {
                uint64_t word;
                if (!read_varint(p, end, word)) return DAMAGED;
                if (field.is_known(word)) begin(field, number);
                return GOOD;
            }
            if (!skip(p, end, tag, GROUPS)) return DAMAGED;
            begin(field, number);
            return GOOD;
        }
        if (wire != LENGTH) {
            uint64_t word;
            if (!read_word(p, end, field.kind, word)) return DAMAGED;
            set(field, word, number);
            return GOOD;
        }
        int64_t size;
        if (!read_size(p, end, size)) return DAMAGED;
        const uint8_t* const inner = p;
        p += size;
        if (field.shape == WRAPPED) return begin(field, number), wrapped(field, inner, p) ? GOOD : DAMAGED;
        if (field.shape != PLAIN) return begin(field, number), time(field, inner, p) ? GOOD : DAMAGED;
        if (field.text()) return chars(field, inner, size, number);
        for (const uint8_t* at = inner; at < p;) {  // packed
            uint64_t word;
            if (!read_word(at, p, field.kind, word)) return DAMAGED;
            set(field, word, number);
        }
        return GOOD;
    }

    void set(Field& field, uint64_t word, int64_t number) {
        if (!field.is_known(word)) return;
        if (field.list) {
            field.word(rows, word);
            ++field.items;
        } else {
            begin(field, number);
            field.value = word;
        }
    }

    int32_t chars(Field& field, const uint8_t* at, int64_t size, int64_t number) {
        if (!field.list) {
            begin(field, number);
            field.at = at, field.length = size;
            return GOOD;
        }
        if (field.kind == STRING && !json::valid_utf8(at, at + size)) return error_of(NOT_TEXT, place(field));
        append(field, at, size);
        field.item_ends.push_back(int32_t(field.size));
        ++field.items;
        return GOOD;
    }

    size_t place(const Field& field) const {
        size_t i = 0;
        while (columns[i].get() != &field) ++i;
        return i;
    }

    static void append(Field& field, const uint8_t* at, int64_t size) {
        if (field.size + size > stream::MOST) throw std::bad_alloc();
        if (size) std::memcpy(field.room(size), at, size_t(size));
        field.size += size;
    }

    bool wrapped(Field& field, const uint8_t* p, const uint8_t* end) {
        while (p < end) {
            uint32_t tag;
            if (!read_tag(p, end, tag)) return false;
            if (tag != ((1u << 3) | wire_of(field.kind))) {
                if (!skip(p, end, tag, GROUPS)) return false;
            } else if (!field.text()) {
                if (!read_word(p, end, field.kind, field.value)) return false;
            } else {
                if (!read_size(p, end, field.length)) return false;
                field.at = p;
                p += field.length;
            }
        }
        return true;
    }

    bool time(Field& field, const uint8_t* p, const uint8_t* end) {
        while (p < end) {
            uint32_t tag;
            uint64_t word;
            if (!read_tag(p, end, tag)) return false;
            if (tag != ((1u << 3) | VARINT) && tag != ((2u << 3) | VARINT)) {
                if (!skip(p, end, tag, GROUPS)) return false;
                continue;
            }
            if (!read_varint(p, end, word)) return false;
            if (tag >> 3 == 1) field.seconds = int64_t(word);
            else field.nanos = int32_t(uint32_t(word));
        }
        return true;
    }

    int32_t checked(Field& field, int32_t column, int64_t number) const {
        if (field.list || !present(field, number)) return GOOD;
        if (field.kind == STRING && !json::valid_utf8(field.at, field.at + field.length))
            return error_of(NOT_TEXT, size_t(column));
        if (field.shape != MICROS && field.shape != NANOS) return GOOD;
        if (field.seconds < FIRST_S || field.seconds > LAST_S || field.nanos < 0 || field.nanos > 999'999'999)
            return error_of(BAD_TIME, size_t(column));
        int64_t word;
        const int64_t per_second = field.shape == NANOS ? 1'000'000'000 : 1'000'000;
        if (__builtin_mul_overflow(field.seconds, per_second, &word) ||
            __builtin_add_overflow(word, field.shape == NANOS ? field.nanos : field.nanos / 1000, &word))
            return error_of(BAD_TIME, size_t(column));
        field.value = uint64_t(word);
        return GOOD;
    }

    void finish(Field& field, int64_t number) {
        const bool here = field.list || present(field, number);
        field.valid[size_t(rows)] = here || !field.presence;
        if (!field.list && field.text()) {
            if (here) append(field, field.at, field.length);
            else if (!field.presence)
                append(field, reinterpret_cast<const uint8_t*>(field.absent_chars.data()),
                       int64_t(field.absent_chars.size()));
        } else if (!field.list) {
            field.words[size_t(rows)] = here ? field.value : field.presence ? 0 : field.absent;
        }
        stream::Values& values = field;
        values.finish(rows);
    }
};

}  // namespace livectr::protobuf

using livectr::protobuf::Field;
using livectr::protobuf::Reader;

extern "C" {

Reader* protobuf_new() { return new Reader; }

void protobuf_delete(Reader* reader) { delete reader; }

// Options of a field, as `columns.py` packs them.
struct ProtobufField {
    int32_t number, kind, shape, oneof;
    uint8_t list, wanted, presence, closed;
    int32_t known_size, absent_size;
    uint64_t absent;
};

// Adds a field; the wanted ones are the columns, in this order. known: ascending numbers of a closed enum.
void protobuf_field(Reader* reader, const ProtobufField* options, const int32_t* known, const char* absent) {
    using namespace livectr::protobuf;
    auto field = std::make_unique<Field>();
    field->number = uint32_t(options->number), field->kind = static_cast<Kind>(options->kind);
    field->shape = static_cast<Shape>(options->shape), field->oneof = options->oneof;
    field->list = options->list, field->wanted = options->wanted, field->presence = options->presence;
    field->closed = options->closed, field->absent = options->absent;
    field->known.assign(known, known + options->known_size);
    field->absent_chars.assign(absent, size_t(options->absent_size));
    field->form = field->shape == MICROS || field->shape == NANOS ? livectr::stream::WORD8 : form_of(field->kind);
    reader->add(std::move(field));
}

// Reads data[starts[i], stops[i]). errors[n]: 0 for a row, else the kind and, above its 8 bits, the column.
// Returns the number of rows, or -1 where memory or Arrow's offsets do not suffice.
int64_t protobuf_read(Reader* reader, const uint8_t* data, const int64_t* starts, const int64_t* stops, int64_t n,
                      int32_t* errors) {
    try {
        reader->clear(n);
        for (int64_t i = 0; i < n; ++i) errors[i] = reader->message(data + starts[i], data + stops[i], i);
        return reader->rows;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

// Sizes of a column's results, as `Values::sizes`.
void protobuf_sizes(const Reader* reader, int64_t column, int64_t* sizes) {
    reader->columns[size_t(column)]->sizes(sizes);
}

// Copies a column's results, as `Values::take`.
void protobuf_take(const Reader* reader, int64_t column, uint8_t* valid, int32_t* ends, int32_t* item_ends,
                   void* numbers, uint8_t* chars) {
    reader->columns[size_t(column)]->take(reader->rows, valid, ends, item_ends, numbers, chars);
}
}
