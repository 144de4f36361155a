// Thread pool of host kernels. OpenMP is not used: torch brings its own runtime, and two
// of them in a process fight over the cores.
//
// LIVECTR_THREADS sets the number (default: CPUs of the process); the caller is one of them. The pool
// starts at first use and again after a fork, serves several callers at once, and may be used from
// inside a task. With GCC all kernel libraries of a process share one pool, because function-local
// statics of inline functions are unique symbols; elsewhere each library has its own.
#pragma once
#include "runtime/shim.cuh"
#ifdef LIVECTR_HOST

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <unistd.h>
#include <vector>

namespace livectr {

struct Job {
    void (*call)(void* context, int64_t index);
    void* context;
    int64_t count;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t helpers = 0;  // workers inside; guarded by the pool's mutex

    void work() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            try {
                call(context, i);
            } catch (...) {
                failed = true;
            }
        }
    }
};

class Pool {
  public:
    const pid_t owner = getpid();
    const int64_t size;

    explicit Pool(int64_t threads) : size(threads) {}

    void run(Job& job) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (; started_ < size; ++started_) std::thread([this] { serve(); }).detach();
            jobs_.push_back(&job);
        }
        const int64_t wanted = std::min(job.count, size) - 1;
        for (int64_t i = 0; i < wanted; ++i) wake_.notify_one();
        job.work();
        std::unique_lock<std::mutex> lock(mutex_);
        withdraw(&job);
        done_.wait(lock, [&] { return job.helpers == 0; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<Job*> jobs_;
    int64_t started_ = 1;  // threads, with the caller

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return !jobs_.empty(); });
            Job* const job = jobs_.front();
            ++job->helpers;
            lock.unlock();
            job->work();
            lock.lock();
            withdraw(job);
            if (--job->helpers == 0) done_.notify_all();
        }
    }

    void withdraw(Job* job) { jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end()); }
};

// Pool of this process. It is never destroyed: its threads may outlive static destructors.
inline Pool& pool() {
    static std::atomic<Pool*> current{nullptr};
    Pool* found = current.load();
    while (!found || found->owner != getpid()) {
        const char* const text = std::getenv("LIVECTR_THREADS");
        const int64_t wanted = text ? std::atoll(text) : std::thread::hardware_concurrency();
        Pool* const fresh = new Pool(std::max<int64_t>(wanted, 1));
        if (current.compare_exchange_strong(found, fresh)) return *fresh;
        delete fresh;
    }
    return *found;
}

// Runs body(i) for i in [0, count), in any order and on any thread. Throws std::bad_alloc if a body threw.
template <typename Body>
void parallel_for(int64_t count, Body&& body) {
    if (count <= 1 || pool().size == 1) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    Job job;
    job.call = [](void* context, int64_t i) { (*static_cast<std::remove_reference_t<Body>*>(context))(i); };
    job.context = const_cast<void*>(static_cast<const void*>(&body));
    job.count = count;
    pool().run(job);
    if (job.failed) throw std::bad_alloc();
}

// `parallel_for` where the work is worth it: else it is done before another thread has woken up.
template <typename Body>
void parallel_if(bool worth, int64_t count, Body&& body) {
    if (worth) return parallel_for(count, body);
    for (int64_t i = 0; i < count; ++i) body(i);
}

// Runs body(begin, end) over [0, count) in chunks of `grain`: the cuts do not depend on the threads.
template <typename Body>
void parallel_chunks(int64_t count, int64_t grain, Body&& body, bool worth = true) {
    parallel_if(worth, (count + grain - 1) / grain,
                [&](int64_t chunk) { body(chunk * grain, std::min(count, (chunk + 1) * grain)); });
}

}  // namespace livectr

#endif
