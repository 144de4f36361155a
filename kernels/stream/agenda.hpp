// Times at which entries of a state machine are due (host only).
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
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
        if (queue_.empty() || item > queue_.back())
            queue_.push_back(item);
        else
            heap_.push(item);
    }

    bool due(int64_t time) const {
        return (!queue_.empty() && queue_.front().time < time) || (!heap_.empty() && heap_.top().time < time);
    }

    Item pop() {
        Item item;
        if (heap_.empty() || (!queue_.empty() && heap_.top() > queue_.front())) {
            item = queue_.front();
            queue_.pop_front();
        } else {
            item = heap_.top();
            heap_.pop();
        }
        return item;
    }

 private:
    std::deque<Item> queue_;
    std::priority_queue<Item, std::vector<Item>, std::greater<Item>> heap_;
};

}  // namespace
