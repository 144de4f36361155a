// Phase-fair readers-writer lock: requests share it; a request that adds rows, or a swap, is exclusive.
//
// Readers and writers take turns. A writer waits for the readers before it alone: later readers queue behind it. When
// it ends, all readers that wait go next, whatever writers wait. So neither starves the other.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace livectr {

class SwapLock {
  public:
    int64_t version;  // of the rows that the lock guards; only a writer changes it

    SwapLock(int64_t version, double longest_s) : version(version), longest_s_(longest_s) {}

    // Returns false where a reader or a writer would have to wait.
    bool try_read() {
        std::lock_guard<std::mutex> hold(mutex_);
        if (!writers_) ++readers_;
        return !writers_;
    }
    bool try_write() {
        std::lock_guard<std::mutex> hold(mutex_);
        if (readers_ || writers_) return false;
        ++writers_;
        return writing_ = true;
    }
    // Waits until `deadline`, an instant of the steady clock in seconds, or for the longest wait. Returns false if that
    // passed first.
    bool read(double deadline) {
        std::unique_lock<std::mutex> hold(mutex_);
        if (!writers_) return ++readers_, true;
        const int64_t phase = phase_;
        const auto end = instant(std::min(deadline, seconds() + longest_s_));
        ++queued_;  // the writer that ends counts the waiting readers in
        if (changed_.wait_until(hold, end, [&] { return phase_ != phase; })) return true;
        --queued_;
        return false;
    }
    void end_read() {
        std::lock_guard<std::mutex> hold(mutex_);
        if (--readers_ == 0) changed_.notify_all();
    }
    void write() {
        std::unique_lock<std::mutex> hold(mutex_);
        ++writers_;
        changed_.wait(hold, [&] { return !readers_ && !writing_; });
        writing_ = true;
    }
    void end_write() {
        std::lock_guard<std::mutex> hold(mutex_);
        writing_ = false;
        --writers_;
        readers_ += queued_;
        queued_ = 0;
        ++phase_;
        changed_.notify_all();
    }
    // Readers inside, readers that wait for a writer, and writers with those that wait.
    void counts(int64_t* out) {
        std::lock_guard<std::mutex> hold(mutex_);
        out[0] = readers_, out[1] = queued_, out[2] = writers_;
    }

    // Instant of Python's time.monotonic().
    static double seconds() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

  private:
    using Clock = std::chrono::steady_clock;
    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t readers_ = 0, queued_ = 0, writers_ = 0;
    int64_t phase_ = 0;  // writers that have ended
    bool writing_ = false;
    const double longest_s_;

    static Clock::time_point instant(double at) {
        return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at)));
    }
};

}  // namespace livectr
