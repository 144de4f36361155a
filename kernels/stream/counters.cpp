// Windowed counters as a sequential state machine (host only): impressions and clicks of each key by time.
//
//     fine ring     a cell for each of the last `fine` grains of time, up to `head`, the key's newest
//     coarse rings  of each longer window COARSE cells of `span` grains: what has left the fine ring
//
// So a window ends at a grain and begins at a cell of its own ring. Cells of a key are 1, 2 or 4 bytes wide: all of them
// get wider when one would overflow. A row is what a window is computed from (operators/counts.cuh):
//
//     head int64, then for each cell that is not 0: ring u8, age u8, impressions and clicks as varints
//
// with `age` the number of cells before the one of `head`.
#include "stream/ages.hpp"
#include "stream/keyed_rows.hpp"

namespace {

constexpr int64_t COARSE = 7;  // a window's cells: the 6 of its length, and the one where it begins

class CounterTable final : public KeyedRows {
  public:
    CounterTable(int64_t grain_ms, int64_t fine, const int64_t* spans, int64_t rings, int64_t max_bytes)
        : KeyedRows(grain_ms, size_t(2 * (fine + COARSE * rings)), 3, max_bytes),
          fine_(fine),
          spans_(spans, spans + rings),
          cells_(size_t(2 * (fine + COARSE * rings))) {
        horizon_ = fine_ + (rings ? (COARSE + 1) * spans_.back() : 0);
    }

  private:
    void add(Key& key, const Event& event) override {
        advance(key, event.grain);
        const size_t cell = size_t(2 * (event.grain % fine_));
        if (event.shown) bump(key, cell, 1);
        if (event.clicked) bump(key, cell + 1, 1);
    }

    size_t coarse_cell(size_t ring, int64_t number) const {
        return size_t(2 * (fine_ + COARSE * int64_t(ring) + modulo(number, COARSE)));
    }

    // Lets time pass for a key: cells that leave the fine ring are added to the coarse ones.
    void advance(Key& key, int64_t grain) {
        const int64_t before = key.head;
        if (grain <= before) return;
        key.head = grain;
        for (size_t r = 0; r < spans_.size(); ++r) {
            const int64_t was = floor_divide(before - fine_, spans_[r]), is = floor_divide(grain - fine_, spans_[r]);
            for (int64_t c = std::max(was + 1, is - COARSE + 1); c <= is; ++c)
                put(key, coarse_cell(r, c), 0), put(key, coarse_cell(r, c) + 1, 0);
        }
        const int64_t last = std::min(grain - fine_, before);
        for (int64_t g = std::max<int64_t>(before - fine_ + 1, 0); g <= last; ++g) {
            const size_t cell = size_t(2 * (g % fine_));
            for (size_t kind = 0; kind < 2; ++kind) {
                const uint32_t n = get(key, cell + kind);
                if (!n) continue;
                for (size_t r = 0; r < spans_.size(); ++r) {
                    const int64_t c = floor_divide(g, spans_[r]);
                    if (c > floor_divide(grain - fine_, spans_[r]) - COARSE) bump(key, coarse_cell(r, c) + kind, n);
                }
                put(key, cell + kind, 0);
            }
        }
    }

    uint32_t get(const Key& key, size_t cell) const {
        const uint8_t* const at = block(key) + (cell << key.wide);
        if (key.wide == 0) return *at;
        if (key.wide == 1) {
            uint16_t n;
            memcpy(&n, at, 2);
            return n;
        }
        uint32_t n;
        memcpy(&n, at, 4);
        return n;
    }

    void put(Key& key, size_t cell, uint32_t n) {
        uint8_t* const at = block(key) + (cell << key.wide);
        memcpy(at, &n, size_t{1} << key.wide);  // little-endian
    }

    void bump(Key& key, size_t cell, uint32_t by) {
        const uint64_t n = std::min<uint64_t>(uint64_t(get(key, cell)) + by, UINT32_MAX);
        while (key.wide < 2 && n >> (8 << key.wide)) widen(key);
        put(key, cell, uint32_t(n));
    }

    void widen(Key& key) {
        wider_.resize(cells_);
        for (size_t cell = 0; cell < cells_; ++cell) wider_[cell] = get(key, cell);
        resize(key, key.wide + 1);
        for (size_t cell = 0; cell < cells_; ++cell) put(key, cell, wider_[cell]);
    }

    void write(const Key& key) override {
        const auto* const head = reinterpret_cast<const uint8_t*>(&key.head);
        bytes.insert(bytes.end(), head, head + 8);
        for (int64_t age = 0; age < fine_ && age <= key.head; ++age)
            entry(key, 0, age, size_t(2 * ((key.head - age) % fine_)));
        for (size_t r = 0; r < spans_.size(); ++r) {
            const int64_t newest = floor_divide(key.head - fine_, spans_[r]);
            for (int64_t c = newest; c > newest - COARSE; --c)
                entry(key, r + 1, floor_divide(key.head, spans_[r]) - c, coarse_cell(r, c));
        }
    }

    void entry(const Key& key, size_t ring, int64_t age, size_t cell) {
        const uint32_t shown = get(key, cell), clicked = get(key, cell + 1);
        if (!shown && !clicked) return;
        bytes.push_back(uint8_t(ring));
        bytes.push_back(uint8_t(age));
        varint(shown);
        varint(clicked);
    }

    void varint(uint32_t n) {
        for (; n >= 128; n >>= 7) bytes.push_back(uint8_t(n | 128));
        bytes.push_back(uint8_t(n));
    }

    const int64_t fine_;
    const std::vector<int64_t> spans_;
    const size_t cells_;
    std::vector<uint32_t> wider_;
};

KeyedRows& of(void* table) { return *static_cast<KeyedRows*>(table); }

}  // namespace

// ── the calls of counters.py and ages.py ────────────────────────────────────────────────────────────────────────────────

extern "C" {

void* counters_new(int64_t grain_ms, int64_t fine, const int64_t* spans, int64_t rings, int64_t max_bytes) {
    return static_cast<KeyedRows*>(new CounterTable(grain_ms, fine, spans, rings, max_bytes));
}
// Times of the last events; lag and within in grains. The other calls are those of counters.
void* ages_new(int64_t grain_ms, int64_t lag, int64_t within, int64_t max_bytes) {
    return static_cast<KeyedRows*>(new AgeTable(grain_ms, lag, within, max_bytes));
}
void counters_free(void* table) { delete static_cast<KeyedRows*>(table); }

// facts int64[6]: keys, bytes, keys that expired, keys that were evicted, keys listed as left, time of the sequence.
void counters_facts(void* table, int64_t* facts) {
    const KeyedRows& t = of(table);
    const int64_t found[] = {t.size(), t.bytes_held(), t.expired, t.evicted, t.listed(), t.now_ms};
    std::copy(found, found + 6, facts);
}

// Returns the bytes of the rows of the wanted.
int64_t counters_push(void* table, int64_t m, const int64_t* key, const int64_t* time_ms, const int64_t* event_ms,
                      const uint8_t* shown, const uint8_t* clicked, const uint8_t* wanted) {
    of(table).push(m, key, time_ms, event_ms, shown, clicked, wanted);
    return int64_t(of(table).bytes.size());
}

// Rows of the last call that made any.
void counters_rows(void* table, int64_t* offsets, uint8_t* bytes) {
    std::copy(of(table).offsets.begin(), of(table).offsets.end(), offsets);
    std::copy(of(table).bytes.begin(), of(table).bytes.end(), bytes);
}

// sizes int64[2]: rows and their bytes, for counters_rows; `keys` has room for all keys.
void counters_changed(void* table, int64_t since, int64_t* keys, int64_t* sizes) {
    std::vector<int64_t> found;
    of(table).changed(since, found);
    std::copy(found.begin(), found.end(), keys);
    sizes[0] = int64_t(found.size()), sizes[1] = int64_t(of(table).bytes.size());
}

int64_t counters_mark(void* table) { return of(table).mark(); }
void counters_track(void* table) { of(table).tracks = true; }
void counters_forget_left(void* table, int64_t until) { of(table).forget_left(until); }
int64_t counters_left_size(void* table, int64_t since) { return int64_t(of(table).left(since).size()); }
void counters_left(void* table, int64_t since, int64_t* keys) {
    const auto found = of(table).left(since);
    std::copy(found.begin(), found.end(), keys);
}

int64_t counters_export_bytes(void* table) {
    int64_t bytes = 0;
    of(table).each([&](const Key& key) { bytes += int64_t(of(table).block_bytes(key.wide)); });
    return bytes;
}
void counters_export(void* table, int64_t* keys, int64_t* heads, uint8_t* wide, uint8_t* blocks) {
    of(table).each([&](const Key& key) {
        *keys++ = key.key, *heads++ = key.head, *wide++ = key.wide;
        const size_t size = of(table).block_bytes(key.wide);
        memcpy(blocks, of(table).block(key), size);
        blocks += size;
    });
}

// Fills an empty table. Returns the bytes of the blocks that were read; -1: they are fewer, or a width is none.
int64_t counters_assign(void* table, int64_t now_ms, int64_t m, const int64_t* keys, const int64_t* heads,
                        const uint8_t* wide, const uint8_t* blocks, int64_t bytes) {
    KeyedRows& t = of(table);
    t.now_ms = now_ms;
    int64_t read = 0;
    for (int64_t i = 0; i < m; ++i) {
        if (wide[i] >= t.classes() || read + int64_t(t.block_bytes(wide[i])) > bytes) return -1;
        t.assign(keys[i], heads[i], wide[i], blocks + read);
        read += int64_t(t.block_bytes(wide[i]));
    }
    return read;
}

}  // extern "C"
