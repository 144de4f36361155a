// Bytes of a client, and of Python's server behind the front, into a loop of the native front: sockets as they are, turn by
// turn in one thread. Its private turns are reached by -fno-access-control.
//
// An input is a list of steps: who sends bytes or a frame, or what else happens. After each the loop takes a turn.
#include "fuzz.hpp"

#include "client.cpp"
#include "loop.cpp"
#include "upstream.cpp"

#include <string>

// Of AddressSanitizer; its header is not there for every compiler.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace {

using namespace livectr::serving;
using livectr::request::Answered;

constexpr Limits LIMITS{1, 2, 1000, 4, 300, 0, 60'000, 1000, 10'000};
constexpr size_t MOST_HELD = 1 << 20;  // bytes that a connection may take for 1,000 of its client
constexpr int MOST_TURNS = 50;         // that it may take to end
constexpr char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Requests that begin with p are plain; the reply is the request.
bool answer(void*, const uint8_t* data, int64_t bytes, double, double, double, Answered* out) {
    if (!bytes || *data != 'p') return false;
    auto* const copy = new uint8_t[size_t(bytes)];
    std::memcpy(copy, data, size_t(bytes));
    *out = {copy, bytes, copy};
    return true;
}
void release(Answered* answered) { delete[] static_cast<uint8_t*>(answered->held); }

// Address that only processes of this machine can connect to, without a file.
std::string address() {
    static const std::string name = std::string(1, '\0') + "livectr-fuzz-" + std::to_string(getpid());
    return name;
}

// Socket that stands for Python's server, for all inputs.
int listener() {
    static const int socket = [] {
        const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        address().copy(at.sun_path, sizeof(at.sun_path));
        REQUIRE(bind(made, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 && listen(made, 100) == 0);
        return made;
    }();
    return socket;
}

void send(int socket, const void* data, size_t bytes) {
    [[maybe_unused]] const ssize_t sent = ::send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void drop(int socket) {
    char bytes[4096];
    for (ssize_t size = 1; size > 0;) size = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
}

// Front with one connection.
class Connected {
  public:
    Connected() {
        REQUIRE(listener() >= 0);
        shared_ = std::make_unique<Shared>();
        shared_->setup.limits = LIMITS;
        shared_->setup.upstream = address();
        shared_->setup.retry = "again";
        shared_->setup.methods["/a"] = {0, answer, release, this};
        shared_->setup.methods["/b"] = {1, answer, release, nullptr};
        shared_->places = std::make_unique<Places>(shared_->setup.limits, 2);
        shared_->loops.push_back(std::make_unique<Loop>(*shared_));
        loop_ = shared_->loops[0].get();
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        client_ = pair[0];
        ++loop_->connections_;
        loop_->adopt(pair[1]);
    }

    ~Connected() {
        close(client_);
        for (int turns = 0; loop_->connections_; ++turns) {
            REQUIRE(turns < MOST_TURNS);
            turn();
        }
        for (bool more = true; more;) more = loop_->compute() || reply(true);
        loop_->take_inbox();
        const Places& places = *shared_->places;
        REQUIRE(places.calls == 0 && places.active_ == 0 && places.bytes_ == 0 && places.plain_.empty());
        loop_->channels_.clear();
        for (const int socket : python_) close(socket);
    }

    int client() const { return client_; }
    int python() const { return python_.empty() ? -1 : python_.back(); }

    // Reads, computes and writes as `Loop::run` does.
    void turn() {
        for (Channel* const channel : channels()) channel->read(), loop_->touch(*channel);
        loop_->take_inbox();
        loop_->flush();
        if (loop_->compute()) loop_->flush();
        for (int socket; (socket = accept4(listener(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
            python_.push_back(socket);
        check();
    }

    // Ends a call that Python computes. Returns false where there is none.
    bool reply(bool good) {
        if (shared_->places->handed_.empty()) return false;
        int64_t idle = 0;
        const CallRef call = shared_->places->next(idle);
        if (good) call->reply = call->request + "!";
        else call->status = {RESOURCE_EXHAUSTED, "100 % \xff", "details"};
        loop_->answered(call);
        return true;
    }

    void tick(double later_s) {
        for (Channel* const channel : channels()) channel->tick(seconds() + later_s), loop_->touch(*channel);
        loop_->flush();
    }

    void stop(double grace_s) {
        shared_->ends_at = seconds() + grace_s;
        shared_->closing = true;
    }

    void leave_python() {
        if (python_.empty()) return;
        close(python_.back());
        python_.pop_back();
    }

  private:
    const size_t before_ = __sanitizer_get_current_allocated_bytes();
    std::unique_ptr<Shared> shared_;
    Loop* loop_ = nullptr;
    int client_ = -1;
    std::vector<int> python_;

    std::vector<Channel*> channels() const {
        std::vector<Channel*> found;
        for (const auto& [channel, _] : loop_->channels_) found.push_back(channel);
        return found;
    }

    void check() const {
        REQUIRE(__sanitizer_get_current_allocated_bytes() <= before_ + MOST_HELD);
        REQUIRE(shared_->places->calls >= 0 && shared_->places->bytes_ >= 0);
        REQUIRE(shared_->places->bytes_ <= LIMITS.bytes && shared_->places->active_ == 0);
        for (const Channel* const channel : channels()) {
            const auto* const client = dynamic_cast<const Client*>(channel);
            if (!client) continue;
            size_t unread = 0;
            for (const auto& [_, stream] : client->streams_) {
                size_t bytes = 0;
                for (const auto& [name, value] : stream.headers) bytes += name.size() + value.size();
                REQUIRE(bytes <= MOST_HEADERS && stream.sent <= stream.out.size());
                unread += stream.out.size() - stream.sent;
                REQUIRE(!stream.call || (!stream.answered && stream.call->client == client));
            }
            REQUIRE(client->unread_ == unread);
        }
    }
};

// Runs an input.
void run(fuzz::Input input) {
    Connected connected;
    if (input.below(2)) {
        constexpr uint8_t SETTINGS[9] = {0, 0, 0, 4};
        send(connected.client(), PREFACE, sizeof(PREFACE) - 1);
        send(connected.client(), SETTINGS, sizeof(SETTINGS));
    }
    while (!input.empty()) {
        const int64_t step = input.below(12);
        const int to = step % 2 ? connected.python() : connected.client();
        if (step < 4) {
            const fuzz::Exact bytes = input.piece(input.number<uint16_t>() % 1024);
            send(to, bytes.data(), size_t(bytes.size));
        } else if (step < 8) {
            const uint8_t kind = input.number<uint8_t>(), flags = input.number<uint8_t>(),
                          stream = input.number<uint8_t>();
            const fuzz::Exact bytes = input.piece(input.number<uint16_t>() % 1024);
            const uint8_t head[9] = {0, uint8_t(bytes.size >> 8), uint8_t(bytes.size), kind, flags, 0, 0, 0, stream};
            send(to, head, sizeof(head));
            send(to, bytes.data(), size_t(bytes.size));
        } else if (step == 8) {
            connected.reply(input.below(2));
        } else if (step == 9) {
            connected.tick(double(input.number<uint8_t>()));
        } else if (step == 10) {
            drop(connected.client());
            if (connected.python() >= 0) drop(connected.python());
        } else {
            const int64_t what = input.below(4);
            if (what == 0) shutdown(connected.client(), SHUT_WR);
            else if (what == 1) connected.leave_python();
            else connected.stop(double(what - 2));
        }
        connected.turn();
    }
}

// Memory in bytes that is left of it.
int64_t left_by(const fuzz::Input& input) {
    const size_t before = __sanitizer_get_current_allocated_bytes();
    run(input);
    return int64_t(__sanitizer_get_current_allocated_bytes()) - int64_t(before);
}

}  // namespace

FUZZ_TARGET(connection) {
    if (left_by(input)) REQUIRE(left_by(input) == 0);  // libraries and other threads take memory once
}
