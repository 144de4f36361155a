// Times of each key's last impression and click as a sequential state machine (host only).
//
// A row tells the last event as of any time of the lag before the sequence's. So it has for each kind the last event of
// each grain of the lag, and the last event before. Entries of a kind rise by time and by the grain in which they were
// known: an event that is not later than one known before changes nothing. A row is what an age is computed from
// (operators/ages.cuh), int64 for each entry:
//
//     event time in ms << 17 | grains from it until it was known << 2 | kind (0: impression, 1: click) << 1 | 1
#pragma once
#include "operators/ages.cuh"
#include "stream/keyed_rows.hpp"

namespace {

constexpr int64_t LATEST = int64_t{1} << 46;  // ms, the year 4199: an entry has 47 bits for its time
constexpr int64_t MOST_DELAY = 0x7fff;        // grains
constexpr uint32_t CLASSES = 5;               // blocks of 1, 2, 4, 8 and 16 entries
constexpr size_t MOST = 16;                   // for each kind: 6 grains of lag, the newest grain, the last before

class AgeTable final : public KeyedRows {
  public:
    AgeTable(int64_t grain_ms, int64_t lag, int64_t within, int64_t max_bytes)
        : KeyedRows(grain_ms, sizeof(int64_t), CLASSES, max_bytes), lag_(lag) {
        horizon_ = within + lag + 1;
    }

  private:
    void add(Key& key, const Event& event) override {
        int64_t entries[MOST + 2];
        size_t n = read(key, entries);
        key.head = event.grain;
        if (event.shown) n = put(entries, n, 0, event);
        if (event.clicked) n = put(entries, n, 1, event);
        uint32_t wide = 0;
        while (size_t{1} << wide < n) ++wide;
        if (wide != key.wide) resize(key, wide);
        std::fill(entries + n, entries + (size_t{1} << wide), 0);
        memcpy(block(key), entries, block_bytes(wide));
    }

    void write(const Key& key) override {
        int64_t entries[MOST];
        const auto* const from = reinterpret_cast<const uint8_t*>(entries);
        bytes.insert(bytes.end(), from, from + sizeof(int64_t) * read(key, entries));
    }

    // Copies the entries of a key and returns how many there are; slots that are free have 0.
    size_t read(const Key& key, int64_t* entries) const {
        memcpy(entries, block(key), block_bytes(key.wide));
        return size_t(std::find(entries, entries + (size_t{1} << key.wide), 0) - entries);
    }

    // Adds an event to the n entries of a key, leaves out those that no time of the lag sees, and returns how many stay.
    size_t put(int64_t* entries, size_t n, int64_t kind, const Event& event) {
        const int64_t time = std::clamp(event.time_ms, -LATEST, LATEST - 1);
        const int64_t delay = std::clamp<int64_t>(event.grain - floor_divide(time, grain_ms_), 0, MOST_DELAY);
        const int64_t entry = time * (1 << 17) + (delay << 2) + (kind << 1) + 1;
        const int64_t first = event.grain - lag_;
        int64_t seen = INT64_MIN;  // grain of the last entry that is known before all times of the lag
        for (size_t i = 0; i < n; ++i) {
            if (age_kind(entries[i]) != kind) continue;
            if (age_time(entries[i]) >= time) return n;
            if (const int64_t known = age_known(entries[i], grain_ms_); known < first) seen = std::max(seen, known);
        }
        const int64_t now = age_known(entry, grain_ms_);
        size_t kept = 0;
        for (size_t i = 0; i < n; ++i) {
            const int64_t known = age_known(entries[i], grain_ms_);
            if (age_kind(entries[i]) != kind || (known >= seen && known != now)) entries[kept++] = entries[i];
        }
        entries[kept++] = entry;
        return kept;
    }

    const int64_t lag_;
};

}  // namespace
