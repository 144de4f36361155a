// Native gRPC front of a server: plain requests are answered here, all others by the Python server behind it.
//
//     clients ─► loop ─► request of a known method ─► place ─► answer.cpp ─► reply
//                  │                                    │          └► no plain hit: a thread of Python (`front_next`)
//                  │                                    └► refused
//                  └► any other call: its bytes ─► gRPC server of Python, on a Unix socket
//
// HTTP/2 is nghttp2's, TLS is OpenSSL's. A loop is a thread with its own connections (loop.cpp); nothing of a connection
// is shared. What threads share are the calls, the queues of the places, and the inbox of a loop.
#include "loop.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>

namespace livectr::serving {

struct Front {
    Shared shared;
    bool started = false;

    ~Front() {
        for (const int listener : shared.listeners) close(listener);
    }
};

// Request for Python; `_Handed` of front.py.
struct Handed {
    CallRef* call;
    const uint8_t* data;
    int64_t bytes, method, idle;  // threads that wait, without this one
    double deadline, began;
};

namespace {

// Listens on all addresses of HOST:PORT. Returns the port; 0: it cannot.
int64_t listen_on(const std::string& address, bool reuse_port, std::vector<int>& out) {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints{}, *found = nullptr;
    hints.ai_flags = AI_PASSIVE, hints.ai_socktype = SOCK_STREAM;
    int64_t port = std::stoll(address.substr(colon + 1));
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found)) return 0;
    for (const addrinfo* at = found; at; at = at->ai_next) {
        const int listener = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (listener < 0) continue;
        const int on = 1;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (reuse_port) setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
        sockaddr_storage bound{};
        std::memcpy(&bound, at->ai_addr, at->ai_addrlen);
        // The port is at one place in both kinds of addresses.
        auto& of = reinterpret_cast<sockaddr_in&>(bound).sin_port;
        of = htons(uint16_t(port));
        socklen_t size = at->ai_addrlen;
        if (bind(listener, reinterpret_cast<sockaddr*>(&bound), size) || listen(listener, SOMAXCONN) ||
            getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size)) {
            close(listener);
            continue;
        }
        port = ntohs(of);
        out.push_back(listener);
    }
    freeaddrinfo(found);
    return out.empty() ? 0 : port;
}

}  // namespace
}  // namespace livectr::serving

using livectr::serving::CallRef;
using livectr::serving::Front;
using livectr::serving::Handed;
using livectr::serving::Headers;
using livectr::serving::Loop;

extern "C" {

Front* front_new() { return new Front; }

// Lets requests of a method, the next of those so far, be answered or handed to Python; before the start. answers: null if
// none of them is plain.
void front_method(Front* front, const char* path, void* answer, void* release, void* answers) {
    using livectr::request::Answered;
    auto& methods = front->shared.setup.methods;
    const int64_t number = int64_t(methods.size());
    methods[path] = {
        number, reinterpret_cast<bool (*)(void*, const uint8_t*, int64_t, double, double, double, Answered*)>(answer),
        reinterpret_cast<void (*)(Answered*)>(release), answers};
}

// Listens. Returns the port; 0: the address cannot be listened on. python: path of its socket. retry: detail of a refusal.
// fetch: see `Tls`; null: without TLS.
int64_t front_start(Front* front, const char* listen, const char* python, const livectr::serving::Limits* limits,
                    const char* retry, int64_t retry_bytes, bool (*fetch)(livectr::serving::Shown*)) {
    using namespace livectr::serving;
    Shared& shared = front->shared;
    shared.setup.limits = *limits;
    shared.setup.upstream = python;
    shared.setup.retry.assign(retry, size_t(retry_bytes));
    const int64_t port = listen_on(listen, limits->reuse_port, shared.listeners);
    if (!port) return 0;
    if (fetch) shared.tls = std::make_unique<Tls>(fetch);
    shared.places = std::make_unique<Places>(shared.setup.limits, shared.setup.methods.size());
    for (int64_t i = 0; i < limits->active; ++i) shared.loops.push_back(std::make_unique<Loop>(shared));
    for (const auto& loop : shared.loops) loop->start();
    front->started = true;
    return port;
}

// Waits for a request that is not plain. Returns false after the stop.
bool front_next(Front* front, Handed* out) {
    int64_t idle = 0;
    CallRef call = front->shared.places->next(idle);
    if (!call) return false;
    *out = {nullptr, call->data(), call->bytes(), call->method.number, idle, call->deadline, call->began};
    out->call = new CallRef(std::move(call));
    return true;
}

// Ends a request that was handed out, by a reply or a status. Its handle is gone then.
void front_reply(CallRef* handle, const char* data, int64_t bytes) {
    const std::unique_ptr<CallRef> call(handle);
    (*call)->reply.assign(data, size_t(bytes));
    (*call)->loop.answered(*call);
}
// details: google.rpc.Status, of any number of bytes.
void front_fail(CallRef* handle, int64_t code, const char* text, int64_t bytes, const char* details,
                int64_t of_details) {
    const std::unique_ptr<CallRef> call(handle);
    (*call)->status = {code, std::string(text, size_t(bytes)), std::string(details, size_t(of_details))};
    (*call)->loop.answered(*call);
}
// Metadata of a call: names and values in turn, each with its length before it; as far as there is room. Returns its bytes.
int64_t front_metadata(const CallRef* call, char* to, int64_t room) {
    int64_t bytes = 0;
    const auto add = [&](const std::string& text) {
        const int64_t size = int64_t(text.size());
        if (bytes + 8 + size <= room) {
            std::memcpy(to + bytes, &size, 8);
            std::memcpy(to + bytes + 8, text.data(), text.size());
        }
        bytes += 8 + size;
    };
    for (const auto& [name, value] : (*call)->metadata) add(name), add(value);
    return bytes;
}
bool front_is_active(const CallRef* call) { return !(*call)->gone; }

// Calls of the methods that are under way.
int64_t front_calls(const Front* front) { return front->started ? front->shared.places->calls.load() : 0; }

// Takes the requests that were refused since the last call, by method.
void front_refused(Front* front, int64_t* out) {
    if (front->started) front->shared.places->take_refused(out);
}

// Refuses new connections and calls, waits until those under way end, at most `grace_s` seconds, and ends the loops.
void front_stop(Front* front, double grace_s) {
    auto& shared = front->shared;
    if (!front->started) return;
    shared.ends_at = livectr::serving::seconds() + grace_s;
    shared.closing = true;
    for (const auto& loop : shared.loops) loop->wake();
    for (const int listener : shared.listeners) shutdown(listener, SHUT_RD);  // connections that wait are reset
    for (const auto& loop : shared.loops) loop->join();
    shared.places->end();
}
// Frees it, after its threads of Python have ended.
void front_delete(Front* front) { delete front; }
}
