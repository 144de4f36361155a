// Memory of one request: given out from the front of blocks, taken back as a whole, and kept for the next request.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace livectr::request {

class Arena {
  public:
    // Room for `count` values, not initialised. Long ones begin with a line of the cache; short ones lie close together,
    // because a request finds them in no cache. Throws bad_alloc.
    template <typename T>
    T* take(int64_t count) {
        const int64_t bytes = (std::max<int64_t>(count, 1) * int64_t(sizeof(T)) + WORD - 1) / WORD * WORD;
        int64_t skipped = bytes < LINE ? 0 : to_line(at_);
        if (bytes + skipped > left_) {
            grow(bytes);
            skipped = to_line(at_);
        }
        uint8_t* const found = at_ + skipped;
        at_ = found + bytes, left_ -= skipped + bytes;
        return reinterpret_cast<T*>(found);
    }

    // Takes everything back. A request that needed several blocks leaves a block of their size, up to a bound.
    void clear() {
        if (blocks_.size() == 1 && total_ <= MOST_KEPT) return rewind();
        next_ = std::min(std::max(total_, next_), MOST_KEPT);
        blocks_.clear();
        total_ = left_ = 0;
    }

  private:
    static constexpr int64_t WORD = 8, LINE = 64, FIRST = 16 << 10, MOST_KEPT = 512 << 10;

    void grow(int64_t bytes) {
        const int64_t size = std::max(bytes + LINE, next_);
        blocks_.emplace_back(new uint8_t[size_t(size)]);
        next_ = std::max(next_, total_ += size);
        base_ = blocks_.back().get(), size_ = size;
        rewind();
    }

    void rewind() { at_ = base_, left_ = size_; }

    static int64_t to_line(const uint8_t* at) { return int64_t(-reinterpret_cast<uintptr_t>(at) % uint64_t(LINE)); }

    std::vector<std::unique_ptr<uint8_t[]>> blocks_;
    uint8_t *base_ = nullptr, *at_ = nullptr;
    int64_t size_ = 0, left_ = 0, total_ = 0, next_ = FIRST;
};

}  // namespace livectr::request
