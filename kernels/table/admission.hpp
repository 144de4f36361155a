// Admission of new keys to a table, by a count-min sketch (Cormode, Muthukrishnan 2005) of their sightings with
// conservative update (Estan, Varghese 2002): 4 rows of bytes, and only the least of a key's cells grow. An
// estimate is never below the sightings since the last halving, and above them only where all four cells are
// shared. After as many sightings as half a row has cells, all counts are halved, and again after half as many
// (the reset of TinyLFU: Einziger, Friedman, Manes 2017). So the rows stay sparse, old sightings fade, and the
// memory is fixed.
//
// A batch sights a key once, however often it occurs there, and counts its keys in rising order: the
// result depends on the batches alone, not on the order or the number of their sources.
#pragma once
#include "runtime/hash.cuh"
#ifdef LIVECTR_HOST
#include <algorithm>
#include <vector>

namespace {

class Admission {
  public:
    static constexpr int ROWS = 4;

    bool on() const { return after_ > 0; }
    int64_t bytes() const { return cells_.size(); }

    // after: sightings that let a key in, 2 to 127. width: cells of a row, a power of two.
    void start(uint32_t after, int64_t width, uint64_t salt) {
        after_ = after;
        width_ = width;
        salt_ = salt;
        cells_.assign(ROWS * width, 0);
    }

    // Counts a sighting of each of `keys`, and keeps the keys that may enter, each once and in rising order.
    void sift(std::vector<int64_t>& keys) {
        std::sort(keys.begin(), keys.end());
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        const size_t all = keys.size();
        const auto stays_out = [this](int64_t key) { return see(key) < after_; };
        keys.erase(std::remove_if(keys.begin(), keys.end(), stays_out), keys.end());
        admitted += keys.size();
        refused += all - keys.size();
    }

    uint8_t* cells() { return cells_.data(); }
    uint64_t seen = 0;      // sightings since the last halving, plus half of those before
    uint64_t admitted = 0;  // keys that entered
    uint64_t refused = 0;   // sightings of keys that did not enter

  private:
    uint32_t after_ = 0;
    int64_t width_ = 0;
    uint64_t salt_ = 0;
    std::vector<uint8_t> cells_;

    // Counts a sighting; returns the estimate with it.
    uint32_t see(int64_t key) {
        const uint64_t hash = mix64(static_cast<uint64_t>(key) ^ salt_), step = mix64(hash) | 1;
        uint8_t* cells[ROWS];
        uint32_t least = 255;
        for (int i = 0; i < ROWS; ++i) {
            cells[i] = cells_.data() + i * width_ + ((hash + i * step) & (width_ - 1));
            least = std::min<uint32_t>(least, *cells[i]);
        }
        const uint32_t now = std::min<uint32_t>(least + 1, 255);
        for (uint8_t* cell : cells) *cell = std::max<uint8_t>(*cell, now);
        if (++seen >= static_cast<uint64_t>(width_) / 2) {
            for (uint8_t& cell : cells_) cell /= 2;
            seen /= 2;
        }
        return now;
    }
};

}  // namespace

#endif
