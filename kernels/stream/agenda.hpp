// Times at which entries of a state machine are due (host only).
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace {

// Sum of a time and a duration, at most the greatest time.
static inline int64_t later(int64_t time, int64_t by) {
    int64_t sum;
    return __builtin_add_overflow(time, by, &sum) ? INT64_MAX : sum;
}

// Items by (time, serial). Those that arrive in order, nearly all, cost O(1); only the others need the heap.
class Agenda {
  public:
    struct Item {
        int64_t time, serial;
        uint32_t entry;
        bool operator>(const Item& other) const {
            return time != other.time ? time > other.time : serial > other.serial;
        }
    };

    void add(const Item& item) {
        if (queue_.empty() || item > queue_.back()) queue_.push_back(item);
        else {
            heap_.push_back(item);
            std::push_heap(heap_.begin(), heap_.end(), std::greater<Item>());
        }
    }

    // Calls `use` with each item, in no order.
    template <class Use>
    void each(Use use) const {
        for (const Item& item : queue_) use(item);
        for (const Item& item : heap_) use(item);
    }

    bool due(int64_t time) const {
        return (!queue_.empty() && queue_.front().time < time) || (!heap_.empty() && heap_.front().time < time);
    }

    Item pop() {
        Item item;
        if (heap_.empty() || (!queue_.empty() && heap_.front() > queue_.front())) {
            item = queue_.front();
            queue_.pop_front();
        } else {
            item = heap_.front();
            std::pop_heap(heap_.begin(), heap_.end(), std::greater<Item>());
            heap_.pop_back();
        }
        return item;
    }

  private:
    std::deque<Item> queue_;
    std::vector<Item> heap_;  // the least item is the first
};

}  // namespace
