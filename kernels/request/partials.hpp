// Partial results of items at a version, found by key: several threads find while others add.
#pragma once
#include "keys/numbers.hpp"

#include <cstring>
#include <mutex>

namespace {

class Partials {
  public:
    // values[most, size] and uses[most] outlive this object.
    Partials(float* values, uint32_t* uses, int64_t most, int64_t size)
        : values_(values), uses_(uses), most_(most), size_(size) {}

    // Addresses of the partial results of n keys, null where there is none; those that are there have one more use.
    // Returns how many keys have none. A partial result never changes or moves, so that it is read without a lock.
    int64_t find(const int64_t* keys, int64_t n, const float** out) {
        constexpr int64_t PART = 256;
        uint32_t rows[PART];
        int64_t absent = 0;
        std::lock_guard<std::mutex> hold(mutex_);
        for (int64_t begin = 0; begin < n; begin += PART) {
            const int64_t count = std::min(PART, n - begin);
            find_rows(numbers_.index.view(), keys + begin, count, rows);
            for (int64_t i = 0; i < count; ++i) {
                const bool known = rows[i] != NO_ROW;
                out[begin + i] = known ? values_ + rows[i] * size_ : nullptr;
                if (known) ++uses_[rows[i]];
                absent += !known;
            }
        }
        return absent;
    }

    // Keeps the partial results rows[n, size] of keys that are new, as long as there is room. taken: their places
    // among the n; returns their number.
    int64_t add(const int64_t* keys, int64_t n, const float* rows, uint32_t uses, int64_t* taken) {
        int64_t count = 0;
        std::lock_guard<std::mutex> hold(mutex_);
        for (int64_t i = 0; i < n && numbers_.count < most_; ++i) {
            const uint32_t number = numbers_.count;
            if (numbers_.index.find_or_insert(keys[i], number) != number) continue;
            std::memcpy(values_ + number * size_, rows + i * size_, 4 * size_t(size_));
            uses_[number] = uses;
            ++numbers_.count;
            taken[count++] = i;
        }
        return count;
    }

    // Copies the uses of the first n items.
    void uses(int64_t n, uint32_t* out) {
        std::lock_guard<std::mutex> hold(mutex_);
        std::copy_n(uses_, n, out);
    }

  private:
    std::mutex mutex_;
    Numbers numbers_;
    float* const values_;
    uint32_t* const uses_;
    const int64_t most_, size_;
};

}  // namespace
