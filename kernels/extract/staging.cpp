// Root columns of a batch in the device's layout (runtime/columns.cuh), copied from Arrow's buffers into one buffer:
// nulls filled, bits unpacked, dictionaries resolved, offsets from 0. Parts begin at multiples of 128 bytes.
//
//   numbers, bools    values                                    Values<T>
//   strings           offsets int32[B + 1], bytes               Strings
//   lists             offsets int32[B + 1], items as above      List<X>
//
// Two passes over chunks of a column's rows, on all threads: sizes of what is ragged, then the copies.
#include "extract/extract.hpp"

namespace livectr::staging {
namespace {

constexpr int64_t ALIGNMENT = 128, CHUNK_ROWS = 1 << 15, MOST = INT32_MAX;

// The fields are those of ingest/extract/staging.py.
struct Root {
    int64_t width;  // bytes of a value: 8, 4, 1 (a bool, whose source is a bit), or 0: a string
    int64_t is_list;
    const uint8_t* fill;  // value of a null
    int64_t fill_size;
};

struct Sizes {
    int64_t items = 0, bytes = 0;  // of lists; of strings
};

// Visits the rows of lists or strings. Calls copy(begin, end) for items, or bytes, that lie side by side, and
// copy(-1, -1) for a null that has a fill. ends: where to write the sum of the sizes up to each row, from `at` on; or
// null. Returns the sum of the sizes.
template <typename Copy>
int64_t visit(const Places& place, int64_t rows, int64_t length, int64_t fill, int32_t* ends, int64_t at, Copy copy) {
    const int32_t* const offsets = buffer<int32_t>(place.source, 1);
    if (const int64_t run = place.run(rows); run >= 0) {
        const int32_t* const here = offsets + run;
        const int64_t begin = here[0], end = here[rows];
        if (begin < 0 || end < begin || end > length) throw BadArray();
        if (ends != nullptr) {
            const uint32_t shift = uint32_t(at - begin);
            int32_t wrong = 0;
            for (int64_t i = 0; i < rows; ++i) {
                wrong |= int32_t(uint32_t(here[i + 1]) - uint32_t(here[i]));
                ends[i] = int32_t(uint32_t(here[i + 1]) + shift);
            }
            if (wrong < 0) throw BadArray();
        }
        if (end > begin) copy(begin, end);
        return end - begin;
    }
    int64_t total = 0, begin = 0, end = 0;  // begin, end: found, and not copied
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = place(i);
        if (row >= 0) {
            const int32_t first = offsets[row], last = offsets[row + 1];
            if (first < 0 || last < first || last > length) throw BadArray();
            if (first != end) {
                if (end > begin) copy(begin, end);
                begin = first;
            }
            end = last;
            total += last - first;
        } else if (fill > 0) {
            if (end > begin) copy(begin, end);
            copy(int64_t(-1), int64_t(-1));
            begin = end = 0;
            total += fill;
        }
        if (ends != nullptr) ends[i] = int32_t(at + total);
    }
    if (end > begin) copy(begin, end);
    return total;
}

template <typename T>
void copy_numbers(const Places& place, int64_t rows, const uint8_t* fill, T* out) {
    T filled;
    memcpy(&filled, fill, sizeof(T));
    int32_t wrong = 0;
    if (!place.consecutive()) return place.gather(out, rows, values_of<T>(place.source, wrong), filled);
    memcpy(out, buffer<T>(place.source, 1) + place.first(), size_t(rows) * sizeof(T));
    place.each_null(rows, [&](int64_t i) { out[i] = filled; });
}

void copy_bits(const Places& place, int64_t rows, const uint8_t* fill, bool* out) {
    int32_t wrong = 0;
    if (!place.consecutive()) return place.gather(out, rows, values_of<bool>(place.source, wrong), *fill != 0);
    const uint8_t* const bits = buffer<uint8_t>(place.source, 1);
    for (int64_t i = 0; i < rows; i += 64) {
        const int64_t count = std::min<int64_t>(64, rows - i);
        const uint64_t word = bits_of(bits, place.first() + i, count);
        uint8_t unpacked[64];
        for (int64_t k = 0; k < 64; ++k) unpacked[k] = word >> k & 1;
        memcpy(out + i, unpacked, size_t(count));
    }
    place.each_null(rows, [&](int64_t i) { out[i] = *fill != 0; });
}

class Column {
  public:
    // Bytes from the beginning of the buffer: of lists' offsets, of values or strings' offsets, of strings' bytes.
    int64_t lists_at = 0, values_at = 0, bytes_at = 0;

    Column(const Root& root, const ArrowArray& array, int64_t first) : root_(root), array_(array), first_(first) {}

    bool is_list() const { return root_.is_list != 0; }
    bool is_text() const { return root_.width == 0; }
    int64_t values_bytes(int64_t count) const { return is_text() ? 4 * (count + 1) : root_.width * count; }

    Sizes sizes(int64_t begin, int64_t rows) const {
        const Places place(array_, first_ + begin);
        if (!is_list()) return Sizes{0, is_text() ? text(place, rows, root_.fill_size) : 0};
        const ArrowArray& items = *place.source.children[0];
        Sizes found;
        found.items = visit(place, rows, items.length, 0, nullptr, 0, [&](int64_t from, int64_t to) {
            if (is_text()) found.bytes += text(Places(items, from), to - from, 0);
        });
        return found;
    }
    // start: sizes of the rows before.
    void write(int64_t begin, int64_t rows, Sizes start, uint8_t* out) const {
        const Places place(array_, first_ + begin);
        if (!is_list()) {
            copy(place, rows, root_.fill, root_.fill_size, begin, start.bytes, out);
            return;
        }
        const ArrowArray& items = *place.source.children[0];
        int32_t* const ends = reinterpret_cast<int32_t*>(out + lists_at) + 1 + begin;
        visit(place, rows, items.length, 0, ends, start.items, [&](int64_t from, int64_t to) {
            start.bytes += copy(Places(items, from), to - from, EMPTY, 0, start.items, start.bytes, out);
            start.items += to - from;
        });
    }

  private:
    static constexpr uint8_t EMPTY[8] = {};
    const Root& root_;
    const ArrowArray& array_;
    int64_t first_;

    static int64_t text(const Places& place, int64_t rows, int64_t fill) {
        const uint8_t* const bytes = buffer<uint8_t>(place.source, 2);
        return visit(place, rows, MOST, fill, nullptr, 0, [&](int64_t from, int64_t) {
            if (from >= 0) __builtin_prefetch(bytes + from);  // rows of a table lie apart
        });
    }
    // Copies values to the places from `at` on. Returns the bytes of strings, which come from `byte` on.
    int64_t copy(const Places& place, int64_t rows, const uint8_t* fill, int64_t fill_size, int64_t at, int64_t byte,
                 uint8_t* out) const {
        uint8_t* const values = out + values_at + root_.width * at;
        if (root_.width == 8) return copy_numbers(place, rows, fill, reinterpret_cast<int64_t*>(values)), 0;
        if (root_.width == 4) return copy_numbers(place, rows, fill, reinterpret_cast<int32_t*>(values)), 0;
        if (root_.width == 1) return copy_bits(place, rows, fill, reinterpret_cast<bool*>(values)), 0;
        const uint8_t* const bytes = buffer<uint8_t>(place.source, 2);
        uint8_t* to = out + bytes_at + byte;
        int32_t* const ends = reinterpret_cast<int32_t*>(values) + 1 + at;
        return visit(place, rows, MOST, fill_size, ends, byte, [&](int64_t from, int64_t end) {
            const int64_t size = from < 0 ? fill_size : end - from;
            memcpy(to, from < 0 ? fill : bytes + from, size_t(size));
            to += size;
        });
    }
};

struct Chunk {
    const Column* column;
    int64_t begin, rows;
    Sizes sizes;  // then: of the chunks of the column before it
};

// Calls work(chunk) for all chunks. Throws BadArray if a call did.
template <typename Work>
void in_parallel(std::vector<Chunk>& chunks, Work work) {
    std::atomic<bool> bad{false};
    parallel_for(int64_t(chunks.size()), [&](int64_t i) {
        try {
            work(chunks[size_t(i)]);
        } catch (const BadArray&) {
            bad = true;
        }
    });
    if (bad) throw BadArray();
}

int64_t stage(const Root* roots, int64_t count, const ArrowArray& batch, const int32_t* columns, uint8_t* out,
              int64_t capacity, int64_t* starts) {
    const int64_t rows = batch.length;
    std::vector<Column> all;
    std::vector<Chunk> chunks;
    all.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) {
        all.emplace_back(roots[i], *batch.children[columns[i]], batch.offset);
        for (int64_t begin = 0; begin < rows; begin += CHUNK_ROWS)
            chunks.push_back(Chunk{&all.back(), begin, std::min(CHUNK_ROWS, rows - begin), Sizes{}});
    }
    in_parallel(chunks, [](Chunk& chunk) { chunk.sizes = chunk.column->sizes(chunk.begin, chunk.rows); });
    int64_t size = 0;
    const auto part = [&](int64_t bytes) {
        const int64_t at = *starts++ = size;
        size += (std::max<int64_t>(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return at;
    };
    size_t at = 0;
    for (Column& column : all) {
        Sizes total;
        for (; at < chunks.size() && chunks[at].column == &column; ++at) {
            const Sizes sizes = chunks[at].sizes;
            chunks[at].sizes = total;
            total.items += sizes.items;
            total.bytes += sizes.bytes;
        }
        if (total.items > MOST || total.bytes > MOST) return TOO_LONG;
        if (column.is_list()) column.lists_at = part(4 * (rows + 1));
        column.values_at = part(column.values_bytes(column.is_list() ? total.items : rows));
        if (column.is_text()) column.bytes_at = part(total.bytes);
    }
    if (size > capacity) return size;
    for (const Column& column : all) {
        if (column.is_list()) *reinterpret_cast<int32_t*>(out + column.lists_at) = 0;
        if (column.is_text()) *reinterpret_cast<int32_t*>(out + column.values_at) = 0;
    }
    in_parallel(chunks, [&](Chunk& chunk) { chunk.column->write(chunk.begin, chunk.rows, chunk.sizes, out); });
    return size;
}

}  // namespace

// starts: receives the beginning of each part, in the order of the roots. Returns the size of all parts, or a Failure.
// If the size exceeds the capacity, nothing is copied.
extern "C" int64_t stage_columns(const Root* roots, int64_t count, const ArrowArray* batch, const int32_t* columns,
                                 uint8_t* out, int64_t capacity, int64_t* starts) {
    try {
        return stage(roots, count, *batch, columns, out, capacity, starts);
    } catch (const BadArray&) {
        return BAD_ARRAY;
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}

}  // namespace livectr::staging
