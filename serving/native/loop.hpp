// Thread of the front with its connections: it reads what has come, computes one request, and writes.
#pragma once
#include "channel.hpp"

#include <sys/eventfd.h>

#include <thread>
#include <unordered_map>

namespace livectr::serving {

// What the loops of a front share.
struct Shared {
    Setup setup;
    std::unique_ptr<Tls> tls;
    std::unique_ptr<Places> places;
    std::vector<int> listeners;
    std::vector<std::unique_ptr<Loop>> loops;
    std::atomic<bool> closing{false};
    std::atomic<double> ends_at{HUGE_VAL};  // of the connections that are left, once it is closing
};

class Loop {
  public:
    explicit Loop(Shared& shared);
    ~Loop();

    void start();
    void join() {
        if (thread_.joinable()) thread_.join();
    }
    // For any thread.
    void wake();
    bool wake_if_asleep();
    void answered(const CallRef& call);  // its reply or status is there

    Shared& shared() { return shared_; }
    int64_t connections() const { return connections_; }
    // Connection to Python for a further call; null: there is none.
    Upstream* upstream();
    void touch(Channel& channel);

  private:
    Shared& shared_;
    const int epoll_, wake_;
    std::thread thread_;
    std::mutex mutex_;
    std::vector<CallRef> answered_;
    std::vector<int> accepted_;  // sockets that another loop has accepted for this one
    std::atomic<bool> asleep_{false};
    std::atomic<int64_t> connections_{0};
    std::unordered_map<Channel*, std::unique_ptr<Channel>> channels_;
    std::vector<Channel*> dirty_;
    Upstream* upstream_ = nullptr;
    bool draining_ = false;
    int spare_;  // a file, so that a connection can be closed where no more can be opened

    void run();
    void accept();
    void adopt(int socket);
    void take_inbox();
    bool compute();
    void flush();
    void tick();
};

}  // namespace livectr::serving
