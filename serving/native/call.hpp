// Calls that the front reads itself, and the places where they are computed.
#pragma once
#include "request/answer.hpp"
#include "wire.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace livectr::serving {

class Client;
class Loop;

// Method whose requests the front reads, with the calls of kernels/request/answer.cpp, which is in a library of its own.
struct Answer {
    int64_t number;  // of the method
    bool (*answer)(void*, const uint8_t*, int64_t, double, double, double, livectr::request::Answered*);
    void (*release)(livectr::request::Answered*);
    void* answers;  // null: no request of it is plain
};

// Unary call. Its connection's loop owns the stream; who computes has a share of the call, which may outlive the stream.
struct Call {
    Loop& loop;
    const Answer& method;
    const double deadline;  // instant of the steady clock in seconds
    Headers metadata;
    std::string request;
    double began = 0;               // instant at which the request was there
    std::atomic<bool> gone{false};  // nobody waits for the reply
    // Outcome: written by who computes, then read by the loop.
    std::string reply;
    Status status;
    // Of the loop alone.
    Client* client;  // null: the stream is closed
    const int32_t stream;

    Call(Loop& loop, const Answer& method, double deadline, Headers metadata, Client* client, int32_t stream)
        : loop(loop),
          method(method),
          deadline(deadline),
          metadata(std::move(metadata)),
          client(client),
          stream(stream) {}

    const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(request.data()); }
    int64_t bytes() const { return int64_t(request.size()); }

    // Answers a plain request. Returns false for another.
    bool compute() {
        livectr::request::Answered answered;
        if (!method.answer(method.answers, data(), bytes(), deadline, began, seconds(), &answered)) return false;
        reply.assign(reinterpret_cast<const char*>(answered.data), size_t(answered.bytes));
        method.release(&answered);
        return true;
    }
};

using CallRef = std::shared_ptr<Call>;

// Bounds of a front; the words of `front_start`.
struct Limits {
    int64_t active, waiting, bytes, calls;
    int64_t message_bytes;  // of a request
    int64_t reuse_port;
    int64_t age_ms, grace_ms;  // of a connection; age 0: any
    int64_t ping_ms;           // least time between pings of a client that gets nothing
};

// Queues of the calls that wait. Loops compute those that may be plain; threads of Python take the others.
class Places {
  public:
    std::atomic<int64_t> calls{0};  // under way

    explicit Places(const Limits& limits, size_t methods) : limits_(limits), refused_(methods) {}

    // Queues a request. Returns why it is refused; empty: it is not.
    std::string enter(const CallRef& call) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (active_ + int64_t(plain_.size()) >= limits_.active + limits_.waiting) hand_gone();
        const int64_t waiting = int64_t(plain_.size());
        std::string problem;
        if (bytes_ + call->bytes() > limits_.bytes)
            problem = "requests of " + std::to_string(bytes_) + " bytes are computing or waiting; with the " +
                      std::to_string(call->bytes()) + " of this one they would be more than max_active_bytes, " +
                      std::to_string(limits_.bytes);
        else if (active_ + waiting >= limits_.active + limits_.waiting)
            problem =
                std::to_string(active_) + " requests are computing and " + std::to_string(waiting) + " are waiting";
        else if (int64_t(handed_.size()) >= limits_.calls)  // of clients that have gone, too
            problem = std::to_string(handed_.size()) + " calls wait for a thread";
        if (!problem.empty()) {
            ++refused_[size_t(call->method.number)];
            return problem;
        }
        bytes_ += call->bytes();
        if (call->method.answers) plain_.push_back(call);
        else hand(call);
        return problem;
    }

    // Counts a call as refused.
    void refuse(const Answer& method) {
        std::lock_guard<std::mutex> hold(mutex_);
        ++refused_[size_t(method.number)];
    }

    bool has_plain() {
        std::lock_guard<std::mutex> hold(mutex_);
        return !plain_.empty();
    }

    // Takes a call to compute; null: none waits. more: others are left.
    CallRef take(bool& more) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (plain_.empty()) return nullptr;
        CallRef call = std::move(plain_.front());
        plain_.pop_front();
        more = !plain_.empty();
        ++active_;
        return call;
    }

    // Ends a computation; done: it was plain, else Python gets it.
    void leave(const CallRef& call, bool done) {
        std::lock_guard<std::mutex> hold(mutex_);
        --active_;
        if (done) bytes_ -= call->bytes();
        else if (call->gone) hand_gone(call);
        else hand(call);
    }

    // Waits for a call that is Python's; null after `end`. idle: other threads that wait.
    CallRef next(int64_t& idle) {
        std::unique_lock<std::mutex> hold(mutex_);
        ++idle_;
        changed_.wait(hold, [&] { return ended_ || !handed_.empty(); });
        idle = --idle_;
        if (handed_.empty()) return nullptr;
        CallRef call = std::move(handed_.front());
        handed_.pop_front();
        bytes_ -= call->bytes();
        return call;
    }

    // Lets threads of Python go when no call is left; no loop may run any more.
    void end() {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            ended_ = true;
            for (CallRef& call : plain_) hand(call);
            plain_.clear();
        }
        changed_.notify_all();
    }

    // Takes the requests that were refused since the last call, by method.
    void take_refused(int64_t* out) {
        std::lock_guard<std::mutex> hold(mutex_);
        for (int64_t& count : refused_) *out++ = std::exchange(count, 0);
    }

  private:
    const Limits& limits_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<CallRef> plain_, handed_;
    int64_t active_ = 0, idle_ = 0, bytes_ = 0;
    bool ended_ = false;
    std::vector<int64_t> refused_;

    // Takes the calls that nobody waits for any more out of the queue: they keep no place.
    void hand_gone() {
        const auto gone =
            std::stable_partition(plain_.begin(), plain_.end(), [](const CallRef& c) { return !c->gone; });
        std::for_each(gone, plain_.end(), [&](const CallRef& call) { hand_gone(call); });
        plain_.erase(gone, plain_.end());
    }

    // Lets Python end such a call, unless many wait for it: clients may begin and cancel calls without end.
    void hand_gone(const CallRef& call) {
        if (int64_t(handed_.size()) < limits_.calls) hand(call);
        else bytes_ -= call->bytes();
    }

    void hand(const CallRef& call) {
        handed_.push_back(call);
        changed_.notify_one();
    }
};

}  // namespace livectr::serving
