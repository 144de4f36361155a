// Records of CSV text: where each begins and ends, and whether a parser may have it.
#include <cstdint>
#include <cstring>

namespace {

enum Verdict : int32_t { FITS = 0, COLUMNS = 1, QUOTE = 2, LONG = 3, ENCODING = 4, RETURN = 5 };

struct Dialect {
    uint8_t delimiter, quote, escape;  // quote, escape: 0 for none
};

struct Record {
    int64_t stop;  // after its line end
    int64_t fields;
    Verdict verdict;  // but COLUMNS
    bool whole;       // false: the text ends before the record does
};

// After the line end at `at`; `at` itself where there is none.
int64_t after_line_end(const uint8_t* text, int64_t size, int64_t at) {
    if (at < size && text[at] == '\r') ++at;
    return at < size && text[at] == '\n' ? at + 1 : at;
}

int64_t line_stop(const uint8_t* text, int64_t size, int64_t at) {
    const void* const end = memchr(text + at, '\n', size_t(size - at));
    return end == nullptr ? size : static_cast<const uint8_t*>(end) - text + 1;
}

bool ends_line(const uint8_t* text, int64_t size, int64_t at) {
    return at >= size || text[at] == '\n' || (text[at] == '\r' && (at + 1 >= size || text[at + 1] == '\n'));
}

// True for a carriage return that does not end a line: a parser may take it for one that does.
bool stands_alone(const uint8_t* text, int64_t size, int64_t at) {
    while (at < size && text[at] == '\r') ++at;
    return at < size && text[at] != '\n';
}

// Its first line alone, as a record that no parser may have.
Record spoiled(const uint8_t* text, int64_t size, int64_t begin, int64_t fields, Verdict verdict) {
    const int64_t stop = line_stop(text, size, begin);
    return {stop, fields, verdict, text[stop - 1] == '\n'};
}

// The record that begins at `begin`. A quote that nothing closes, or whose end is followed by text, spoils its first
// line alone: the record is that line, and the next begins behind it.
Record record_at(const uint8_t* text, int64_t size, int64_t begin, Dialect dialect, int64_t longest) {
    int64_t at = begin, fields = 1;
    bool returns = false;
    const int64_t limit = size - begin > longest ? begin + longest : size;
    bool starts = true;  // of a field
    while (at < limit) {
        const uint8_t byte = text[at];
        if (starts && dialect.quote != 0 && byte == dialect.quote) {
            for (++at; at < limit; ++at) {
                if (dialect.escape != 0 && text[at] == dialect.escape) {
                    ++at;
                } else if (text[at] == dialect.quote) {
                    if (at + 1 >= size || text[at + 1] != dialect.quote) break;
                    ++at;
                }
            }
            if (at >= limit) {  // not closed
                if (limit == size) return {size, fields, QUOTE, false};
                return spoiled(text, size, begin, fields, QUOTE);
            }
            ++at;
            if (at < size && text[at] != dialect.delimiter && !ends_line(text, size, at))
                return spoiled(text, size, begin, fields, QUOTE);
            starts = false;
        } else if (byte == dialect.delimiter) {
            ++fields;
            ++at;
            starts = true;
        } else if (byte == '\n' || (byte == '\r' && at + 1 < size && text[at + 1] == '\n')) {
            return {after_line_end(text, size, at), fields, returns ? RETURN : FITS, true};
        } else {
            returns |= byte == '\r' && at > begin && stands_alone(text, size, at);
            at += dialect.escape != 0 && byte == dialect.escape ? 2 : 1;
            starts = false;
        }
    }
    if (limit < size) return spoiled(text, size, begin, fields, LONG);
    return {size, fields, returns ? RETURN : FITS, false};
}

// True for text that is UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.
bool is_utf8(const uint8_t* text, int64_t size) {
    int64_t i = 0;
    while (i < size) {
        uint64_t word;
        if (size - i >= 8 && (memcpy(&word, text + i, 8), (word & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        const uint8_t lead = text[i++];
        if (lead < 0x80) continue;
        const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || size - i < more) return false;
        const uint8_t next = text[i];
        if ((lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F) || (lead == 0xF0 && next < 0x90) ||
            (lead == 0xF4 && next > 0x8F))
            return false;
        for (int k = 0; k < more; ++k)
            if ((text[i + k] & 0xC0) != 0x80) return false;
        i += more;
    }
    return true;
}

int64_t line_ends(const uint8_t* text, int64_t begin, int64_t stop) {
    int64_t count = 0;
    for (int64_t i = begin; i < stop; ++i) count += text[i] == '\n';
    return count;
}

}  // namespace

extern "C" {

// Writes up to `capacity` records: begin, end behind the line end, lines before it, fields, verdict. Empty lines are no
// records. `last`: nothing follows the text; else a record that it cuts is left. columns: fields that a record must have; 0: any.
// Returns the number of records; used[0] takes the bytes that were read, used[1] their lines.
int64_t csv_records(const uint8_t* text, int64_t size, int32_t last, uint8_t delimiter, uint8_t quote, uint8_t escape,
                    int64_t columns, int64_t longest, int64_t capacity, int64_t* begins, int64_t* stops, int64_t* lines,
                    int64_t* fields, int32_t* verdicts, int64_t* used) {
    const Dialect dialect{delimiter, quote, escape};
    int64_t at = 0, line = 0, count = 0;
    while (at < size && count < capacity) {
        const int64_t behind = after_line_end(text, size, at);
        if (behind > at && text[behind - 1] == '\n') {  // an empty line
            at = behind;
            ++line;
            continue;
        }
        Record record = record_at(text, size, at, dialect, longest);
        if (!record.whole) {
            if (last == 0) break;
            if (record.verdict == QUOTE) record.stop = line_stop(text, size, at);
        }
        if (record.verdict == FITS && columns != 0 && record.fields != columns) record.verdict = COLUMNS;
        if (record.verdict == FITS && !is_utf8(text + at, record.stop - at)) record.verdict = ENCODING;
        begins[count] = at;
        stops[count] = record.stop;
        lines[count] = line;
        fields[count] = record.fields;
        verdicts[count] = record.verdict;
        ++count;
        line += line_ends(text, at, record.stop);
        at = record.stop;
    }
    used[0] = at;
    used[1] = line;
    return count;
}
}
