// Memory of a request that is lent from a pool, and returns to it when its last reader is gone.
#pragma once
#include "request/columns.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace livectr::request {

struct ArenaPool;

// Memory of a request. users: whatever reads it; each gives it back by `drop`.
struct Lent {
    Arena arena;
    std::vector<std::shared_ptr<const void>> kept;  // what arrays in it point to
    std::shared_ptr<ArenaPool> pool;
    std::atomic<int64_t> users{1};
};

struct ArenaPool {
    static constexpr size_t MOST = 16;
    std::mutex mutex;
    std::vector<std::unique_ptr<Lent>> idle;

    static std::unique_ptr<Lent> lend(const std::shared_ptr<ArenaPool>& pool) {
        std::unique_ptr<Lent> lent;
        {
            std::lock_guard<std::mutex> lock(pool->mutex);
            if (!pool->idle.empty()) {
                lent = std::move(pool->idle.back());
                pool->idle.pop_back();
            }
        }
        if (!lent) lent = std::make_unique<Lent>();
        lent->pool = pool;
        lent->users = 1;
        return lent;
    }

    static void take_back(std::unique_ptr<Lent> lent) {
        const std::shared_ptr<ArenaPool> pool = std::move(lent->pool);
        lent->kept.clear();
        lent->arena.clear();
        std::lock_guard<std::mutex> lock(pool->mutex);
        if (pool->idle.size() < pool->idle.capacity()) pool->idle.push_back(std::move(lent));
    }

    ArenaPool() { idle.reserve(MOST); }
};

inline void drop(Lent* lent) {
    if (lent->users.fetch_sub(1) == 1) ArenaPool::take_back(std::unique_ptr<Lent>(lent));
}

// `release` of arrays in lent memory, by the rules of Arrow's C data interface.
inline void release(ArrowArray* array) {
    for (int64_t i = 0; i < array->n_children; ++i)
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
    if (array->dictionary && array->dictionary->release) array->dictionary->release(array->dictionary);
    auto* const lent = static_cast<Lent*>(array->private_data);
    array->release = nullptr;
    drop(lent);
}

// Counts an array and the arrays in it as users of their memory: the caller hands it over by Arrow's C data interface.
inline void hand_over(const ArrowArray& array) {
    for (int64_t i = 0; i < array.n_children; ++i) hand_over(*array.children[i]);
    if (array.dictionary) hand_over(*array.dictionary);
    static_cast<Lent*>(array.private_data)->users.fetch_add(1);
}

}  // namespace livectr::request
