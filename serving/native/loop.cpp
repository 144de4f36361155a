// Turns of a loop: events ─► requests ─► one computation ─► bytes to the sockets.
//
// A loop computes one request a turn. So the others that have come meanwhile are read, queued and, where there are too
// many, refused before the next one; and health waits for one computation at most.
#include "loop.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>

namespace livectr::serving {

namespace {

constexpr double TICK_S = 0.1;
constexpr int MOST_EVENTS = 64, KEEPALIVE_S = 60;

}  // namespace

Loop::Loop(Shared& shared)
    : shared_(shared),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

Loop::~Loop() {
    join();
    for (const int file : {epoll_, wake_, spare_}) close(file);
    for (const int socket : accepted_) close(socket);
}

void Loop::start() {
    epoll_event event{EPOLLIN, {}};
    event.data.ptr = nullptr;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
    for (int& listener : shared_.listeners) {
        event.events = EPOLLIN | EPOLLEXCLUSIVE;
        event.data.ptr = &listener;
        epoll_ctl(epoll_, EPOLL_CTL_ADD, listener, &event);
    }
    // Signals are Python's: its main thread waits for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread(&Loop::run, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Loop::wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t done = write(wake_, &one, sizeof(one));
}

bool Loop::wake_if_asleep() {
    if (!asleep_.exchange(false)) return false;
    wake();
    return true;
}

void Loop::answered(const CallRef& call) {
    {
        std::lock_guard<std::mutex> hold(mutex_);
        answered_.push_back(call);
    }
    wake_if_asleep();
}

void Loop::touch(Channel& channel) {
    if (!std::exchange(channel.dirty, true)) dirty_.push_back(&channel);
}

Upstream* Loop::upstream() {
    if (upstream_ && upstream_->takes_requests()) return upstream_;
    upstream_ = nullptr;
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket < 0) return nullptr;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    shared_.setup.upstream.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address))) {
        close(socket);
        return nullptr;
    }
    auto made = std::make_unique<Upstream>(*this, epoll_, socket);
    upstream_ = made.get();
    channels_[upstream_] = std::move(made);
    return upstream_;
}

void Loop::run() {
    epoll_event events[MOST_EVENTS];
    double ticked_at = seconds();
    while (!draining_ || connections_) {
        asleep_ = true;
        bool busy = shared_.places->has_plain() || shared_.closing != draining_;
        if (!busy) {
            std::lock_guard<std::mutex> hold(mutex_);
            busy = !answered_.empty() || !accepted_.empty();
        }
        const int wait_ms = busy ? 0 : connections_ ? int(TICK_S * 1000) : -1;
        const int count = epoll_wait(epoll_, events, MOST_EVENTS, wait_ms);
        asleep_ = false;
        for (int i = 0; i < count; ++i) {
            void* const of = events[i].data.ptr;
            const auto listeners = shared_.listeners.data();
            if (!of) {
                uint64_t value;
                [[maybe_unused]] const ssize_t done = ::read(wake_, &value, sizeof(value));
            } else if (of >= listeners && of < listeners + shared_.listeners.size()) {
                accept();
            } else {
                Channel& channel = *static_cast<Channel*>(of);
                if (events[i].events & ~uint32_t(EPOLLOUT)) channel.read();
                touch(channel);
            }
        }
        take_inbox();
        flush();
        if (compute()) flush();
        if (const double now = seconds(); now - ticked_at >= TICK_S) ticked_at = now, tick();
    }
    channels_.clear();
}

// Takes connections until none waits, each to the loop that has the fewest.
void Loop::accept() {
    if (draining_) return;
    for (int listener : shared_.listeners) {
        while (true) {
            const int socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (socket < 0 && (errno == EMFILE || errno == ENFILE) && spare_ >= 0) {
                // A client that waits for ever is worse than one that is turned away, and so is a loop without a pause.
                close(spare_);
                const int refused = ::accept(listener, nullptr, nullptr);
                if (refused >= 0) close(refused);
                spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
                if (refused >= 0) continue;
            }
            if (socket < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
            if (socket < 0) break;
            const int on = 1;
            setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
            // A client whose machine is gone says no goodbye.
            setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
            setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &KEEPALIVE_S, sizeof(KEEPALIVE_S));
            Loop* least = this;
            for (const auto& other : shared_.loops)
                if (other->connections_ < least->connections_) least = other.get();
            ++least->connections_;
            if (least == this) {
                adopt(socket);
                continue;
            }
            {
                std::lock_guard<std::mutex> hold(least->mutex_);
                least->accepted_.push_back(socket);
            }
            least->wake_if_asleep();
        }
    }
}

// Takes a connection, which is counted already.
void Loop::adopt(int socket) {
    SSL* tls = nullptr;
    if (shared_.tls && !(tls = shared_.tls->session(socket))) {
        close(socket);
        --connections_;
        return;
    }
    auto made = std::make_unique<Client>(*this, epoll_, socket, tls);
    if (draining_) made->drain(0);
    Channel* const channel = made.get();
    channels_[channel] = std::move(made);
}

void Loop::take_inbox() {
    std::vector<CallRef> answered;
    std::vector<int> accepted;
    {
        std::lock_guard<std::mutex> hold(mutex_);
        answered.swap(answered_), accepted.swap(accepted_);
    }
    for (const int socket : accepted) adopt(socket);
    for (const CallRef& call : answered)
        if (call->client) call->client->answer(*call);
    if (shared_.closing && !std::exchange(draining_, true)) {
        for (int listener : shared_.listeners) epoll_ctl(epoll_, EPOLL_CTL_DEL, listener, nullptr);
        for (auto& [channel, _] : channels_)
            if (auto* client = dynamic_cast<Client*>(channel)) client->drain(shared_.ends_at - seconds());
    }
}

// Computes a request, of whichever loop. Returns false where none waits.
bool Loop::compute() {
    bool more = false;
    const CallRef call = shared_.places->take(more);
    if (!call) return false;
    for (size_t i = 0; more && i < shared_.loops.size(); ++i)
        if (shared_.loops[i]->wake_if_asleep()) break;
    const bool done = !call->gone && call->compute();
    shared_.places->leave(call, done);
    if (!done) return true;
    if (&call->loop != this) call->loop.answered(call);
    else if (call->client) call->client->answer(*call);
    return true;
}

void Loop::flush() {
    while (!dirty_.empty()) {
        Channel* const channel = dirty_.back();
        dirty_.pop_back();
        channel->dirty = false;
        channel->flush();
        if (!channel->is_over()) continue;
        if (channel == upstream_) upstream_ = nullptr;
        const auto found = channels_.find(channel);
        if (found == channels_.end()) continue;
        const auto gone = std::move(found->second);
        channels_.erase(found);
        if (dynamic_cast<Client*>(channel)) --connections_;
    }
}

void Loop::tick() {
    const double now = seconds();
    for (auto& [channel, _] : channels_) {
        channel->tick(now);
        if (channel->is_over()) touch(*channel);
    }
    flush();
}

}  // namespace livectr::serving
