// Rows of keys that a sequence of examples changes, for windows and ages (host only): which keys there are, in
// the order of their last count, and a block of bytes for each. A block of class `wide` has unit << wide bytes.
//
// Two rules bound memory, and both are functions of the sequence alone: a key leaves once no row of it tells anything,
// and beyond max_bytes the keys leave that were counted the longest ago.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "operators/features.cuh"
#include "runtime/index.cuh"

namespace {

constexpr int64_t KEY_BYTES = 64;    // place, and slots of the index
constexpr uint32_t NOBODY = NO_ROW;  // end of the list of keys

// Things by number, in chunks that never move.
template <typename T>
class Chunked {
  public:
    explicit Chunked(size_t each) : each_(each) {}
    T* at(size_t i) { return chunks_[i / CHUNK].get() + i % CHUNK * each_; }
    const T* at(size_t i) const { return chunks_[i / CHUNK].get() + i % CHUNK * each_; }

    // A number that is free.
    uint32_t take() {
        if (!free_.empty()) {
            const uint32_t found = free_.back();
            free_.pop_back();
            return found;
        }
        if (next_ % CHUNK == 0) chunks_.emplace_back(new T[CHUNK * each_]);
        return next_++;
    }
    void give(uint32_t i) { free_.push_back(i); }

  private:
    static constexpr size_t CHUNK = 4096;
    const size_t each_;
    std::vector<std::unique_ptr<T[]>> chunks_;
    std::vector<uint32_t> free_;
    uint32_t next_ = 0;
};

struct Key {
    int64_t key;
    int64_t head;           // newest grain
    uint32_t older, newer;  // neighbours by the time of the last count
    uint32_t generation;    // that of the last count
    uint32_t wide : 3;      // class of its block
    uint32_t block : 29;    // number among the blocks of its class
};

// An example that is counted.
struct Event {
    int64_t grain;    // in which it is known
    int64_t time_ms;  // of its impression
    bool shown, clicked;
};

class KeyedRows {
  public:
    KeyedRows(int64_t grain_ms, size_t unit, uint32_t classes, int64_t max_bytes)
        : grain_ms_(grain_ms), unit_(unit), max_bytes_(max_bytes) {
        for (uint32_t wide = 0; wide < classes; ++wide) blocks_.emplace_back(block_bytes(wide));
    }
    virtual ~KeyedRows() = default;

    // Rows of the wanted among m events, as of before each, and the events counted.
    void push(int64_t m, const int64_t* key, const int64_t* time_ms, const int64_t* event_ms, const uint8_t* shown,
              const uint8_t* clicked, const uint8_t* wanted) {
        offsets.assign(1, 0);
        bytes.clear();
        for (int64_t i = 0; i < m; ++i) {
            now_ms = std::max(now_ms, time_ms[i]);
            const uint32_t id = find_row(index_.view(), key[i]);
            if (wanted[i]) {
                if (id != NOBODY) write(*keys_.at(id));
                offsets.push_back(int64_t(bytes.size()));
            }
            if (shown[i] || clicked[i])
                count(id, key[i], {floor_divide(now_ms, grain_ms_), event_ms[i], shown[i] != 0, clicked[i] != 0});
        }
    }

    // Rows of the keys that were counted after generation `since` was closed; of all keys for 0. Newest first.
    void changed(int64_t since, std::vector<int64_t>& found) {
        offsets.assign(1, 0);
        bytes.clear();
        for (uint32_t id = newest_; id != NOBODY; id = keys_.at(id)->older) {
            const Key& key = *keys_.at(id);
            if (key.generation <= since) break;
            found.push_back(key.key);
            write(key);
            offsets.push_back(int64_t(bytes.size()));
        }
    }

    // Keys that left after generation `since` was closed and are not back. Listed if `tracks`.
    std::vector<int64_t> left(int64_t since) const {
        std::vector<int64_t> found;
        for (const auto& [generation, key] : left_)
            if (generation > since && find_row(index_.view(), key) == NOBODY) found.push_back(key);
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }
    void forget_left(int64_t until) {
        while (!left_.empty() && left_.front().first <= until) left_.pop_front();
    }

    // Visits all keys, the longest not counted first.
    template <typename Visit>
    void each(Visit visit) const {
        for (uint32_t id = oldest_; id != NOBODY; id = keys_.at(id)->newer) visit(*keys_.at(id));
    }
    size_t block_bytes(uint32_t wide) const { return unit_ << wide; }
    const uint8_t* block(const Key& key) const { return blocks_[key.wide].at(key.block); }

    // Adds a key that was exported, as the one that was counted last.
    void assign(int64_t key, int64_t head, uint32_t wide, const uint8_t* block) {
        Key& made = *keys_.at(create(key, head, wide));
        memcpy(blocks_[wide].at(made.block), block, block_bytes(wide));
    }

    uint32_t classes() const { return uint32_t(blocks_.size()); }
    int64_t mark() { return generation_++; }
    int64_t size() const { return size_; }
    int64_t listed() const { return int64_t(left_.size()); }
    // Depends on the keys and their counts alone, so that a restored table evicts the same keys.
    int64_t bytes_held() const { return bytes_; }

    std::vector<int64_t> offsets;
    std::vector<uint8_t> bytes;
    int64_t now_ms = 0, expired = 0, evicted = 0;
    bool tracks = false;

  protected:
    // Counts an event of a key, whose block has zeros if it is new.
    virtual void add(Key& key, const Event& event) = 0;
    // Appends the key's row to `bytes`.
    virtual void write(const Key& key) = 0;

    uint8_t* block(Key& key) { return blocks_[key.wide].at(key.block); }

    // Gives a key a block of another class, with any contents; the caller has copied what it needs.
    void resize(Key& key, uint32_t wide) {
        const uint32_t block = blocks_[wide].take();
        blocks_[key.wide].give(key.block);
        bytes_ += cost(wide) - cost(key.wide);
        key.wide = wide, key.block = block;
    }

    const int64_t grain_ms_;
    int64_t horizon_ = 0;  // grains after its last count in which a key's row tells anything

  private:
    int64_t cost(uint32_t wide) const { return KEY_BYTES + int64_t(block_bytes(wide)); }

    uint32_t create(int64_t key, int64_t head, uint32_t wide) {
        const uint32_t id = keys_.take();
        const uint32_t block = blocks_[wide].take();
        *keys_.at(id) = {key, head, newest_, NOBODY, generation_, wide, block};
        memset(blocks_[wide].at(block), 0, block_bytes(wide));
        (newest_ == NOBODY ? oldest_ : keys_.at(newest_)->newer) = id;
        newest_ = id;
        index_.find_or_insert(key, id);
        bytes_ += cost(wide);
        ++size_;
        return id;
    }

    void unlink(const Key& key) {
        (key.older == NOBODY ? oldest_ : keys_.at(key.older)->newer) = key.newer;
        (key.newer == NOBODY ? newest_ : keys_.at(key.newer)->older) = key.older;
    }

    void touch(uint32_t id) {
        Key& key = *keys_.at(id);
        key.generation = generation_;
        if (newest_ == id) return;
        unlink(key);
        key.older = newest_, key.newer = NOBODY;
        keys_.at(newest_)->newer = id;
        newest_ = id;
    }

    void leave(uint32_t id) {
        const Key& key = *keys_.at(id);
        if (tracks) left_.push_back({generation_, key.key});
        unlink(key);
        index_.erase(key.key);
        bytes_ -= cost(key.wide);
        blocks_[key.wide].give(key.block);
        keys_.give(id);
        --size_;
    }

    void count(uint32_t id, int64_t key, const Event& event) {
        while (oldest_ != NOBODY && oldest_ != id && keys_.at(oldest_)->head < event.grain - horizon_) {
            leave(oldest_);
            ++expired;
        }
        if (id == NOBODY) id = create(key, event.grain, 0);
        else touch(id);
        add(*keys_.at(id), event);
        while (bytes_ > max_bytes_ && size_ > 1) {
            leave(oldest_);
            ++evicted;
        }
    }

    const size_t unit_;
    const int64_t max_bytes_;
    Index index_{0};
    Chunked<Key> keys_{1};
    std::vector<Chunked<uint8_t>> blocks_;
    std::deque<std::pair<int64_t, int64_t>> left_;  // (generation, key)
    uint32_t oldest_ = NOBODY, newest_ = NOBODY;
    uint32_t generation_ = 1;
    int64_t bytes_ = 0, size_ = 0;
};

}  // namespace
