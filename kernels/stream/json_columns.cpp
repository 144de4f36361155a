// JSON objects into columns. An object that is plain gives a row; any other object is left to a slower reader, which
// knows what to make of it. Plain: strict JSON without line feeds between values, no name in use twice or with an
// escape, every value of its declared type and range, no null in a list, every required name there.
#include "stream/json_scan.hpp"
#include "extract/values.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace livectr::json {

using stream::MOST;
using stream::Values;

enum Type : int32_t { INT64, INT32, FLOAT64, FLOAT32, BOOL, STRING };

inline stream::Form form_of(Type type) {
    constexpr stream::Form FORMS[] = {stream::WORD8, stream::WORD4, stream::WORD8,
                                      stream::WORD4, stream::BIT,   stream::CHARS};
    return FORMS[type];
}

// Column of a JSON type; `seen`: last text that had it.
struct Column : Values {
    Type type = INT64;
    bool required = false;
    int64_t seen = -1;

    void clear(int64_t rows) {
        Values::clear(rows);
        seen = -1;
    }
};

// Object whose members are columns (leaf ≥ 0) or objects again.
struct Node {
    struct Member {
        std::string name;
        int32_t leaf = -1;
        std::unique_ptr<Node> inner;
    };
    struct Known {
        std::string name;
        Member* member = nullptr;  // null: not in use
    };
    std::vector<Member> members;
    std::vector<Known> known;  // names by their place in the object before; logs keep an order
    int64_t seen = -1;

    void clear() {
        seen = -1;
        for (Member& member : members)
            if (member.inner) member.inner->clear();
    }

    Member* find(const uint8_t* name, int64_t size, size_t place) {
        const auto equal = [=](const std::string& other) {
            return int64_t(other.size()) == size && std::memcmp(other.data(), name, size_t(size)) == 0;
        };
        if (place < known.size() && equal(known[place].name)) return known[place].member;
        Member* found = nullptr;
        for (Member& member : members)
            if (equal(member.name)) found = &member;
        if (place < 256) {
            if (place >= known.size()) known.resize(place + 1);
            known[place] = {std::string(reinterpret_cast<const char*>(name), size_t(size)), found};
        }
        return found;
    }
};

// Reads texts into rows of the columns.
class Reader : Scanner {
  public:
    std::vector<Column> columns;
    Node root;
    int64_t rows = 0;
    using Scanner::depth;

    void clear(int64_t texts) {
        rows = 0;
        root.clear();
        for (Column& column : columns) column.clear(texts);
    }

    // Adds a text as a row; returns false, and adds nothing, if it is not plain. number: of the text.
    bool add(const uint8_t* text, const uint8_t* stop, int64_t number) {
        p_ = text, end_ = stop, number_ = number;
        bool good = p_ < end_ && *p_ == '{' && object(root, 1) && p_ == end_;
        for (Column& column : columns) good = good && (column.seen == number || !column.required);
        for (Column& column : columns) {
            if (!good) {
                column.rewind(rows);
                continue;
            }
            if (column.seen != number) column.valid[size_t(rows)] = 0, column.word_if_scalar(rows);
            column.finish(rows);
        }
        rows += good;
        return good;
    }

  private:
    int64_t number_ = 0;

    bool string(Column& column) {
        bool high = false;
        const int64_t first = column.size;
        while (true) {
            const uint8_t* const begin = p_;
            if (!run(high)) return false;
            const int64_t size = p_ - begin;
            std::memcpy(column.room(size + 4), begin, size_t(size));
            column.size += size;
            if (*p_++ == '"') break;
            if (p_ >= end_ || !escape(column)) return false;
        }
        if (column.size > MOST) return false;
        return !high || valid_utf8(column.chars.data() + first, column.chars.data() + column.size);
    }

    bool escape(Column& column) {
        static constexpr char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
        uint8_t* const out = column.room(4);
        const uint8_t kind = *p_++;
        if (kind != 'u') {
            const char* const at = kind ? std::strchr(FROM, kind) : nullptr;
            if (!at) return false;
            *out = uint8_t(TO[at - FROM]);
            column.size += 1;
            return true;
        }
        uint32_t c;
        if (!hex(c) || (c >= 0xDC00 && c < 0xE000) || (c >= 0xD800 && c < 0xDC00 && !low(c))) return false;
        const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static constexpr uint8_t LEAD[] = {0x00, 0xC0, 0xE0, 0xF0};
        for (int i = more; i > 0; --i, c >>= 6) out[i] = uint8_t(0x80 | (c & 0x3F));
        out[0] = uint8_t(LEAD[more] | c);
        column.size += more + 1;
        return true;
    }

    bool scalar(Column& column) {
        if (p_ >= end_) return false;
        uint64_t word = 0;
        if (column.type == STRING) {
            if (*p_++ != '"' || !string(column)) return false;
            if (column.list) column.item_ends.push_back(int32_t(column.size));
        } else if (column.type == BOOL) {
            word = *p_ == 't';
            if (!(word ? literal("true", 4) : literal("false", 5))) return false;
        } else {
            bool whole;
            const uint8_t* const stop = number_end(whole);
            if (!stop) return false;
            switch (column.type) {
                case INT64:
                    if (!whole || !number<int64_t>(stop, word)) return false;
                    break;
                case INT32:
                    if (!whole || !number<int32_t>(stop, word)) return false;
                    break;
                case FLOAT64:
                    if (!number<double>(stop, word)) return false;
                    break;
                default:
                    if (!number<float>(stop, word)) return false;
            }
        }
        if (column.type != STRING) column.word(rows, word);
        column.items += column.list;
        return column.items <= MOST;
    }

    bool leaf(Column& column, int64_t level) {
        if (column.seen == number_) return false;  // twice
        column.seen = number_;
        if (p_ < end_ && *p_ == 'n') {
            column.valid[size_t(rows)] = 0;
            column.word_if_scalar(rows);
            return literal("null", 4);
        }
        column.valid[size_t(rows)] = 1;
        if (!column.list) return scalar(column);
        if (p_ >= end_ || *p_++ != '[' || level > depth) return false;
        space();
        if (p_ < end_ && *p_ == ']') return ++p_, true;
        while (true) {
            space();
            if (!scalar(column)) return false;
            space();
            if (p_ >= end_) return false;
            if (*p_ == ']') return ++p_, true;
            if (*p_++ != ',') return false;
        }
    }

    bool object(Node& node, int64_t level) {
        if (level > depth || node.seen == number_) return false;
        node.seen = number_;
        ++p_;
        space();
        if (p_ < end_ && *p_ == '}') return ++p_, true;
        for (size_t place = 0;; ++place) {
            space();
            if (p_ >= end_ || *p_++ != '"') return false;
            const uint8_t* const name = p_;
            bool high = false;
            if (!run(high) || *p_ != '"') return false;
            Node::Member* const member = node.find(name, p_++ - name, place);
            space();
            if (p_ >= end_ || *p_++ != ':') return false;
            space();
            if (!member) {
                if (!skip(level + 1)) return false;
            } else if (member->leaf >= 0) {
                if (!leaf(columns[size_t(member->leaf)], level + 1)) return false;
            } else if (p_ < end_ && *p_ == 'n') {
                if (member->inner->seen == number_ || !literal("null", 4)) return false;
                member->inner->seen = number_;
            } else if (p_ >= end_ || *p_ != '{' || !object(*member->inner, level + 1)) {
                return false;
            }
            space();
            if (p_ >= end_) return false;
            if (*p_ == '}') return ++p_, true;
            if (*p_++ != ',') return false;
        }
    }
};

}  // namespace livectr::json

using livectr::json::Column;
using livectr::json::Node;
using livectr::json::Reader;

extern "C" {

Reader* json_new(int64_t depth) {
    auto* const reader = new Reader;
    reader->depth = depth;
    return reader;
}

void json_delete(Reader* reader) { delete reader; }

// Adds the next column. path: names, each with its length in sizes[count]. It is no prefix of another.
void json_column(Reader* reader, const char* path, const int64_t* sizes, int64_t count, int32_t type, bool list,
                 bool required) {
    Node* node = &reader->root;
    for (int64_t i = 0; i < count; ++i) {
        const std::string name(path, size_t(sizes[i]));
        path += sizes[i];
        Node::Member* member = nullptr;
        for (Node::Member& each : node->members)
            if (each.name == name) member = &each;
        if (!member) {
            node->members.push_back({name, -1, nullptr});
            member = &node->members.back();
            if (i + 1 == count) member->leaf = int32_t(reader->columns.size());
            else member->inner = std::make_unique<Node>();
        }
        node = member->inner.get();
    }
    Column column;
    column.type = static_cast<livectr::json::Type>(type), column.list = list, column.required = required;
    column.form = livectr::json::form_of(column.type);
    reader->columns.push_back(std::move(column));
}

// Reads texts[starts[i], stops[i]); plain[n] says which are rows. Returns the number of rows, or -1 without memory.
int64_t json_read(Reader* reader, const uint8_t* texts, const int64_t* starts, const int64_t* stops, int64_t n,
                  uint8_t* plain) {
    try {
        reader->clear(n);
        for (int64_t i = 0; i < n; ++i) plain[i] = reader->add(texts + starts[i], texts + stops[i], i);
        return reader->rows;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

// Sizes of a column's results, as `Values::sizes`.
void json_sizes(const Reader* reader, int64_t column, int64_t* sizes) { reader->columns[size_t(column)].sizes(sizes); }

// Copies a column's results, as `Values::take`.
void json_take(const Reader* reader, int64_t column, uint8_t* valid, int32_t* ends, int32_t* item_ends, void* numbers,
               uint8_t* chars) {
    reader->columns[size_t(column)].take(reader->rows, valid, ends, item_ends, numbers, chars);
}
}
