// Request messages of livectr.proto, read as protobuf reads them: fields that are not known are passed over, the last
// value of a field counts, messages in a oneof are merged unless another member came between, and text is UTF-8.
//
// One pass over the bytes finds where columns are and how many values they have; nothing is copied. Values are read
// from there once their number and type are known to be right.
#pragma once
#include "protobuf/wire.hpp"

#include <algorithm>
#include <cstdint>

namespace livectr::request {

using protobuf::FIXED64;
using protobuf::GROUPS;  // of unknown groups in a request; one less for each message around them
using protobuf::LENGTH;
using protobuf::VARINT;

// Fields of the requests, by their role. A message has some of them, under numbers of its own.
enum Role : int32_t {
    REQUEST_ID,
    CONTEXT,
    CANDIDATES,
    BIDS,
    CONTENT,
    VERSION,
    SIDE,
    EXPLAIN,
    TOP_K,
    PRERANK_K,
    BID_COLUMN,
    IDS,
    NAMES,
    EXCLUDED_IDS,
    EXCLUDED_NAMES,
    ROLES
};

constexpr uint32_t NUMBERS = 64;  // of fields, which are below

struct Slice {
    const uint8_t* at = nullptr;
    int64_t size = 0;
};

// Members of the oneof of a Column, in the order of their numbers.
enum Kind : int32_t { NONE = -1, INTS, DOUBLES, BOOLS, STRINGS, BYTES };

inline bool is_text(Kind kind) { return kind >= STRINGS; }

inline bool valid_text(const uint8_t* at, int64_t size) { return json::valid_utf8(at, at + size); }

inline uint64_t word_at(const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);  // little-endian, as this machine
    return word;
}

// Calls each(word) for the numbers of repeated field `number`, packed or not; passes over other fields. False: damaged.
template <typename Each>
bool numbers(const uint8_t* p, const uint8_t* end, uint32_t number, bool wide, int groups, Each each) {
    uint32_t tag;
    uint64_t word;
    int64_t size;
    while (p < end) {
        if (!protobuf::read_tag(p, end, tag)) return false;
        if (tag == (number << 3 | LENGTH)) {
            if (!protobuf::read_size(p, end, size) || (wide && size % 8)) return false;
            const uint8_t* const stop = p + size;
            if (wide) {
                for (; p < stop; p += 8) each(word_at(p));
            } else {
                while (p < stop) {
                    if (!protobuf::read_varint(p, stop, word)) return false;
                    each(word);
                }
            }
        } else if (tag == (number << 3 | (wide ? FIXED64 : VARINT))) {
            if (!protobuf::read_word(p, end, wide ? protobuf::WORD64 : protobuf::INT64, word)) return false;
            each(word);
        } else if (!protobuf::skip(p, end, tag, groups)) {
            return false;
        }
    }
    return true;
}

// The same for strings and bytes: each(span).
template <typename Each>
bool texts(const uint8_t* p, const uint8_t* end, uint32_t number, int groups, Each each) {
    uint32_t tag;
    int64_t size;
    while (p < end) {
        if (!protobuf::read_tag(p, end, tag)) return false;
        if (tag != (number << 3 | LENGTH)) {
            if (!protobuf::skip(p, end, tag, groups)) return false;
            continue;
        }
        if (!protobuf::read_size(p, end, size)) return false;
        each(Slice{p, size});
        p += size;
    }
    return true;
}

// Values of a oneof of Int64s, Doubles, Bools, Strings and Bytes, each with a repeated field 1.
struct Values {
    Kind kind = NONE;
    const uint8_t *from = nullptr, *end = nullptr;  // fields from the first of this member on
    uint32_t tag = 0;                               // of the member
    int64_t size = 0, chars = 0, longest = 0;

    // Adds an occurrence [p, stop) of a member, whose field begins at `field`. False: damaged.
    bool add(Kind member, uint32_t member_tag, const uint8_t* field, const uint8_t* p, const uint8_t* stop,
             int groups) {
        if (member != kind) *this = Values{member, field, end, member_tag};
        if (!is_text(kind)) return numbers(p, stop, 1, kind == DOUBLES, groups, [&](uint64_t) { ++size; });
        bool valid = true;
        const bool framed = texts(p, stop, 1, groups, [&](Slice text) {
            ++size, chars += text.size, longest = std::max(longest, text.size);
            if (kind == STRINGS) valid = valid && valid_text(text.at, text.size);
        });
        return framed && valid;
    }

    // Calls each(word) or each(span) for the values, in order. They were read before, so that nothing is damaged.
    template <typename Each>
    void each_number(Each each) const {
        members([&](Slice member) { numbers(member.at, member.at + member.size, 1, kind == DOUBLES, GROUPS, each); });
    }
    template <typename Each>
    void each_text(Each each) const {
        members([&](Slice member) { texts(member.at, member.at + member.size, 1, GROUPS, each); });
    }

  private:
    template <typename Each>
    void members(Each each) const {
        texts(from, end, tag >> 3, GROUPS, each);
    }
};

struct Column {
    Slice name;
    Values values;
    const uint8_t* begin = nullptr;
    int64_t offsets = 0, nulls = 0;

    bool read(const uint8_t* p, const uint8_t* end, int groups) {
        begin = p, values.end = end;
        uint32_t tag;
        int64_t size;
        const auto count = [](int64_t& n) { return [&n](uint64_t) { ++n; }; };
        while (p < end) {
            const uint8_t* const field = p;
            if (!protobuf::read_tag(p, end, tag)) return false;
            const uint32_t number = tag >> 3;
            if (number == 7 || number == 8) {
                if (!protobuf::skip(p, end, tag, groups)) return false;
                if (!numbers(field, p, number, false, groups, count(number == 7 ? offsets : nulls))) return false;
            } else if ((tag & 7) == LENGTH && number >= 1 && number <= 6) {
                if (!protobuf::read_size(p, end, size)) return false;
                const uint8_t* const at = p;
                p += size;
                if (number > 1) {
                    if (!values.add(static_cast<Kind>(number - 2), tag, field, at, p, groups - 1)) return false;
                } else if (valid_text(at, size)) {
                    name = {at, size};
                } else {
                    return false;
                }
            } else if (!protobuf::skip(p, end, tag, groups)) {
                return false;
            }
        }
        return true;
    }

    template <typename Each>
    void each_offset(Each each) const {
        numbers(begin, values.end, 7, false, GROUPS, each);
    }
    template <typename Each>
    void each_null(Each each) const {
        numbers(begin, values.end, 8, false, GROUPS, each);
    }
};

// Columns of a part of the request; those behind `most` are read and not kept, for one before them is wrong.
struct Columns {
    Column* columns = nullptr;
    int64_t size = 0, most = 0;

    bool add(const uint8_t* p, const uint8_t* end) {
        Column column;
        if (!column.read(p, end, GROUPS - 1)) return false;
        if (size < most) columns[size++] = column;
        return true;
    }
};

inline bool valid_content(const uint8_t* p, const uint8_t* end) {
    bool valid = true;
    const auto name = [&](Slice text) { valid = valid && valid_text(text.at, text.size); };
    return texts(p, end, 1, GROUPS - 1, name) && numbers(p, end, 2, false, GROUPS - 1, [](uint64_t) {}) && valid;
}

struct Message {
    Slice request_id, side, bid_column;
    uint64_t version = 0;
    uint32_t explain = 0, top_k = 0, prerank_k = 0;
    int64_t contents = 0, bids = 0;
    const uint8_t *begin = nullptr, *end = nullptr;
    Columns context, candidates;
    Values items, excluded;

    // roles: number of a field → its role, ROLES for none.
    bool read(const uint8_t* p, const uint8_t* stop, const uint8_t (&roles)[NUMBERS]) {
        begin = p, end = items.end = excluded.end = stop;
        uint32_t tag;
        while (p < end) {
            const uint8_t* const field = p;
            if (!protobuf::read_tag(p, end, tag)) return false;
            const uint32_t number = tag >> 3, wire = tag & 7;
            const uint8_t role = number < NUMBERS ? roles[number] : uint8_t(ROLES);
            if (role == BIDS) {
                if (!protobuf::skip(p, end, tag, GROUPS)) return false;
                if (!numbers(field, p, number, true, GROUPS, [&](uint64_t) { ++bids; })) return false;
            } else if (wire == LENGTH && takes_length(role)) {
                int64_t size;
                if (!protobuf::read_size(p, end, size)) return false;
                const uint8_t* const at = p;
                p += size;
                if (!part(role, tag, field, {at, size})) return false;
            } else if (wire == VARINT && takes_number(role)) {
                uint64_t word;
                if (!protobuf::read_varint(p, end, word)) return false;
                (role == EXPLAIN     ? explain
                 : role == TOP_K     ? top_k
                 : role == PRERANK_K ? prerank_k
                                     : ignored) = uint32_t(word);
                if (role == VERSION) version = word;
            } else if (!protobuf::skip(p, end, tag, GROUPS)) {
                return false;
            }
        }
        return true;
    }

  private:
    uint32_t ignored = 0;

    static bool takes_number(uint8_t role) {
        return role == VERSION || role == EXPLAIN || role == TOP_K || role == PRERANK_K;
    }
    static bool takes_length(uint8_t role) { return role < ROLES && !takes_number(role); }

    bool part(uint8_t role, uint32_t tag, const uint8_t* field, Slice inside) {
        const uint8_t *const p = inside.at, *const stop = p + inside.size;
        switch (role) {
            case CONTEXT: return context.add(p, stop);
            case CANDIDATES: return candidates.add(p, stop);
            case CONTENT: return ++contents, valid_content(p, stop);
            case IDS: return items.add(INTS, tag, field, p, stop, GROUPS - 1);
            case NAMES: return items.add(STRINGS, tag, field, p, stop, GROUPS - 1);
            case EXCLUDED_IDS: return excluded.add(INTS, tag, field, p, stop, GROUPS - 1);
            case EXCLUDED_NAMES: return excluded.add(STRINGS, tag, field, p, stop, GROUPS - 1);
            default: break;
        }
        (role == REQUEST_ID ? request_id : role == SIDE ? side : bid_column) = inside;
        return valid_text(p, inside.size);
    }
};

}  // namespace livectr::request
