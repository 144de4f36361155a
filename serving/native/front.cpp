// Native gRPC front of a server: plain requests are answered here, all others by the Python server behind it.
//
//     client ─► request of a known method ─► place ─► answer.cpp ─► reply
//                  │ another method           │ full      └► no plain hit: a thread of Python takes it (`front_next`)
//                  │                          └► refused
//                  └► proxy: bytes, metadata, deadline, cancellation, status ─► gRPC server of Python, on a Unix socket
//
// A place is the right to compute. A thread of gRPC that has read a request computes it itself where another is left to
// read: a hand-over costs as much as the transport. Requests that wait for a place are bounded in number and bytes, so
// that an overloaded server refuses at once, and health waits for no computation.
#include "request/answer.hpp"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/cpu.h>
#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using grpc::ByteBuffer;
using livectr::request::Answered;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Calls of kernels/request/answer.cpp, which is in a library of its own.
struct Answer {
    int64_t number;  // of the method
    bool (*answer)(void*, const uint8_t*, int64_t, double, double, double, Answered*);
    void (*release)(Answered*);
    void* answers;
};

class Call;

// Places where requests are computed, and the queue in front of them. Threads of Python wait here, too: they enter the
// interpreter with a request that is not plain, and leave it for the next one.
struct Places {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Call*> waiting;
    int64_t active = 0, at_once = 0, idle = 0, bytes = 0;  // at_once: of those active, on threads of gRPC
    int64_t most_active = 0, most_waiting = 0, most_bytes = 0, most_at_once = 0;
    bool closing = false;
    std::vector<int64_t> refused;  // by method, since they were taken
};

// Request for Python; `_Handed` of front.py.
struct Handed {
    Call* call;
    const uint8_t* data;
    int64_t bytes, method, idle;  // threads that wait, without this one
    double deadline, began;
};

struct Front final : grpc::CallbackGenericService {
    std::unordered_map<std::string, Answer> methods;
    int64_t most_calls = 0;
    std::atomic<int64_t> calls{0};  // of these methods that are under way
    Places places;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::GenericStub> stub;
    std::shared_ptr<grpc::ServerCredentials> credentials;  // the server asks it for its certificate
    std::unique_ptr<grpc::Server> server;

    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
    bool next(Handed& out);
};

// Metadata of a call that the proxy does not pass on: gRPC writes it itself.
bool is_own(grpc::string_ref name) {
    return name.empty() || *name.data() == ':' || name.starts_with("grpc-") || name == "user-agent" || name == "te" ||
           name == "content-type";
}

// Certificate of the server, in PEM; `_Shown` of front.py. client_ca: null where any client may connect.
struct Shown {
    const char *chain, *key, *client_ca;
};

// TLS with a certificate that Python reads from files, for each new connection. `fetch` returns true with another one
// than before; its texts live up to the next call.
class Tls final : public grpc::ServerCredentials {
  public:
    Tls(bool (*fetch)(Shown*), bool clients_show)
        : fetch_(fetch),
          credentials_(grpc_ssl_server_credentials_create_with_options(
              grpc_ssl_server_credentials_create_options_using_config_fetcher(
                  clients_show ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                               : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                  &Tls::reload, this))) {}
    ~Tls() override { grpc_server_credentials_release(credentials_); }

    void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

  private:
    bool (*const fetch_)(Shown*);
    grpc_server_credentials* const credentials_;

    int AddPortToServer(const std::string& address, grpc_server* server) override {
        return grpc_server_add_http2_port(server, address.c_str(), credentials_);
    }

    static grpc_ssl_certificate_config_reload_status reload(void* self, grpc_ssl_server_certificate_config** out) {
        Shown shown{};
        if (!static_cast<Tls*>(self)->fetch_(&shown)) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
        const grpc_ssl_pem_key_cert_pair pair{shown.key, shown.chain};
        // gRPC 1.51 aborts without authorities, also where no client is asked for a certificate: then any will do.
        *out = grpc_ssl_server_certificate_config_create(shown.client_ca ? shown.client_ca : shown.chain, &pair, 1);
        return *out ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
};

// Call of a client.
class Call final : public grpc::ServerGenericBidiReactor {
  public:
    Call(Front& front, grpc::GenericCallbackServerContext* context, const Answer* answer)
        : front_(front), context_(context), method_(context->method()), answer_(answer), upstream_(*this) {
        if (!answer_) upstream_.begin();
        else if (front_.calls++ < front_.most_calls) StartRead(&in_);
        else refuse(std::to_string(front_.most_calls) + " calls are under way");
    }
    ~Call() override {
        if (answer_) --front_.calls;
    }

    void OnReadDone(bool ok) override {
        if (!answer_) return upstream_.next(ok);
        if (!ok) return Finish({grpc::StatusCode::INTERNAL, "no request came"});
        began_ = seconds();
        if (!in_.TrySingleSlice(&slice_).ok() && !in_.DumpToSingleSlice(&slice_).ok())
            return Finish({grpc::StatusCode::INTERNAL, "the request cannot be read"});
        in_.Clear();
        Places& places = front_.places;
        std::string problem;
        bool at_once = false;
        {
            std::lock_guard<std::mutex> hold(places.mutex);
            const int64_t waiting = int64_t(places.waiting.size());
            if (places.bytes + bytes() > places.most_bytes)
                problem = "requests of " + std::to_string(places.bytes) + " bytes are computing or waiting; with the " +
                          std::to_string(bytes()) + " of this one they would be more than max_active_bytes, " +
                          std::to_string(places.most_bytes);
            else if (waiting >= places.most_waiting && places.active >= places.most_active)
                problem = std::to_string(places.active) + " requests are computing and " + std::to_string(waiting) +
                          " are waiting";
            else if ((at_once = !waiting && places.active < places.most_active && places.at_once < places.most_at_once))
                ++places.active, ++places.at_once, places.bytes += bytes();
            else places.waiting.push_back(this), places.bytes += bytes();
        }
        if (!problem.empty()) return refuse(problem);
        if (at_once) {
            const int64_t size = bytes();
            const bool done = compute();  // then it may be gone
            std::lock_guard<std::mutex> hold(places.mutex);
            --places.active, --places.at_once;
            if (done) places.bytes -= size;
            else tried_ = true, places.waiting.push_back(this);
            if (places.waiting.empty()) return;
        }
        places.changed.notify_one();
    }

    // Answers a plain request. Returns false for another.
    bool compute() {
        Answered answered;
        if (!answer_->answers ||
            !answer_->answer(answer_->answers, slice_.begin(), bytes(), deadline(), began_, seconds(), &answered))
            return false;
        grpc::Slice reply(answered.data, size_t(answered.bytes));
        answer_->release(&answered);
        send(reply);
        return true;
    }

    void send(const grpc::Slice& reply) {
        out_ = ByteBuffer(&reply, 1);
        StartWriteAndFinish(&out_, {}, grpc::Status::OK);
    }

    Handed handed(int64_t idle) { return {this, slice_.begin(), bytes(), answer_->number, idle, deadline(), began_}; }
    int64_t bytes() const { return int64_t(slice_.size()); }
    bool tried() const { return tried_; }
    bool is_active() const { return !context_->IsCancelled(); }
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata() const { return context_->client_metadata(); }

    void OnWriteDone(bool) override {
        if (!answer_) upstream_.written();
    }
    void OnCancel() override { to_python_.TryCancel(); }
    void OnDone() override { delete this; }

  private:
    // Call of the Python server with the messages of a client's call as they come.
    class Upstream final : public grpc::ClientBidiReactor<ByteBuffer, ByteBuffer> {
      public:
        explicit Upstream(Call& call) : call_(call) {}

        void begin() {
            call_.pass_on();
            call_.front_.stub->PrepareBidiStreamingCall(&call_.to_python_, call_.method_, {}, this);
            AddHold();  // of the client's messages
            StartCall();
            StartRead(&out_);
            call_.StartRead(&call_.in_);
        }
        // Passes on a message of the client, or its end.
        void next(bool ok) {
            std::lock_guard<std::mutex> hold(mutex_);
            if (over_) return;
            if (ok) StartWrite(&call_.in_);
            else StartWritesDone();
        }
        void written() { StartRead(&out_); }

        void OnWriteDone(bool ok) override {
            if (ok) call_.StartRead(&call_.in_);
        }
        void OnReadDone(bool ok) override {
            if (ok) return call_.StartWrite(&out_);
            {
                std::lock_guard<std::mutex> hold(mutex_);
                over_ = true;
            }
            RemoveHold();
        }
        void OnDone(const grpc::Status& status) override { call_.finish(status); }

      private:
        Call& call_;
        ByteBuffer out_;
        std::mutex mutex_;
        bool over_ = false;
    };

    Front& front_;
    grpc::GenericCallbackServerContext* const context_;
    const std::string method_;
    const Answer* const answer_;
    ByteBuffer in_, out_;
    grpc::Slice slice_;  // the request
    double began_ = 0;
    bool tried_ = false;  // it is not plain
    grpc::ClientContext to_python_;
    Upstream upstream_;

    // Instant of the steady clock in seconds.
    double deadline() const {
        const auto at = context_->deadline();
        if (at == std::chrono::system_clock::time_point::max()) return HUGE_VAL;
        return seconds() + std::chrono::duration<double>(at - std::chrono::system_clock::now()).count();
    }

    void pass_on() {
        for (const auto& [name, value] : context_->client_metadata())
            if (!is_own(name)) to_python_.AddMetadata({name.data(), name.size()}, {value.data(), value.size()});
        to_python_.set_deadline(context_->deadline());
        to_python_.set_wait_for_ready(true);  // it listens already, and answers soon
    }

    void refuse(const std::string& problem) {
        {
            std::lock_guard<std::mutex> hold(front_.places.mutex);
            ++front_.places.refused[size_t(answer_->number)];
        }
        Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, problem});
    }

    void add_trailers() {
        for (const auto& [name, value] : to_python_.GetServerTrailingMetadata())
            if (!is_own(name)) context_->AddTrailingMetadata({name.data(), name.size()}, {value.data(), value.size()});
    }

    void finish(const grpc::Status& status) {
        add_trailers();
        Finish(status);
    }
};

grpc::ServerGenericBidiReactor* Front::CreateReactor(grpc::GenericCallbackServerContext* context) {
    const auto found = methods.find(context->method());
    return new Call(*this, context, found == methods.end() ? nullptr : &found->second);
}

// Answers plain requests until there is another. Returns false in the end.
bool Front::next(Handed& out) {
    std::unique_lock<std::mutex> hold(places.mutex);
    while (true) {
        ++places.idle;
        places.changed.wait(hold, [&] {
            return places.closing ||
                   (!places.waiting.empty() && (places.waiting.front()->tried() || places.active < places.most_active));
        });
        --places.idle;
        if (places.waiting.empty()) return false;
        Call* const call = places.waiting.front();
        places.waiting.pop_front();
        const int64_t bytes = call->bytes();
        bool done = false;
        if (!call->tried()) {
            ++places.active;
            hold.unlock();
            done = call->compute();  // then it may be gone
            hold.lock();
            --places.active;
        }
        places.bytes -= bytes;
        if (!places.waiting.empty()) places.changed.notify_one();
        if (done) continue;
        out = call->handed(places.idle);
        return true;
    }
}

}  // namespace

extern "C" {

Front* front_new() { return new Front; }

// Lets requests of a method, the next of those so far, be answered or handed to Python; before the start. answers: null if
// none of them is plain.
void front_method(Front* front, const char* path, void* answer, void* release, void* answers) {
    const int64_t number = int64_t(front->methods.size());
    front->methods[path] = {
        number, reinterpret_cast<bool (*)(void*, const uint8_t*, int64_t, double, double, double, Answered*)>(answer),
        reinterpret_cast<void (*)(Answered*)>(release), answers};
}

// Listens. Returns the port; 0: the address cannot be listened on. limits: requests that are computed, and that wait, bytes
// of both, and calls under way. fetch: see `Tls`; null: without TLS.
int64_t front_start(Front* front, const char* listen, const char* python, const char* const* names,
                    const int64_t* values, int64_t options, const int64_t* limits, void* fetch, bool clients_show) {
    gpr_set_log_function([](gpr_log_func_args*) {});  // its callers say what matters
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt("grpc.enable_retries", 0);
    front->channel = grpc::CreateCustomChannel(python, grpc::InsecureChannelCredentials(), arguments);
    front->stub = std::make_unique<grpc::GenericStub>(front->channel);
    Places& places = front->places;
    places.most_active = limits[0], places.most_waiting = limits[1], places.most_bytes = limits[2];
    front->most_calls = limits[3];
    places.refused.resize(front->methods.size());
    // Threads that gRPC reads with; one of them is left.
    places.most_at_once = std::min(15l, std::max(1l, int64_t(gpr_cpu_num_cores()) / 2 - 1));
    grpc::ServerBuilder builder;
    for (int64_t i = 0; i < options; ++i) builder.AddChannelArgument(names[i], int(values[i]));
    int port = 0;
    front->credentials = grpc::InsecureServerCredentials();
    if (fetch) front->credentials = std::make_shared<Tls>(reinterpret_cast<bool (*)(Shown*)>(fetch), clients_show);
    builder.AddListeningPort(listen, front->credentials, &port);
    builder.RegisterCallbackGenericService(front);
    front->server = builder.BuildAndStart();
    return front->server ? port : 0;
}

// Waits for a request that is not plain, and answers others meanwhile. Returns false after the stop.
bool front_next(Front* front, Handed* out) { return front->next(*out); }

// Ends a request that was handed out, by a reply or a status.
void front_reply(Call* call, const uint8_t* data, int64_t bytes) { call->send(grpc::Slice(data, size_t(bytes))); }
// details: google.rpc.Status, of any number of bytes.
void front_fail(Call* call, int64_t code, const char* text, int64_t bytes, const char* details, int64_t of_details) {
    call->Finish({grpc::StatusCode(code), std::string(text, size_t(bytes)), std::string(details, size_t(of_details))});
}
// Metadata of a call: names and values in turn, each with its length before it; as far as there is room. Returns its bytes.
int64_t front_metadata(const Call* call, char* to, int64_t room) {
    int64_t bytes = 0;
    const auto add = [&](grpc::string_ref text) {
        const int64_t size = int64_t(text.size());
        if (bytes + 8 + size <= room) {
            std::memcpy(to + bytes, &size, 8);
            std::memcpy(to + bytes + 8, text.data(), text.size());
        }
        bytes += 8 + size;
    };
    for (const auto& [name, value] : call->metadata()) add(name), add(value);
    return bytes;
}
bool front_is_active(const Call* call) { return call->is_active(); }

// Calls of the methods that are under way.
int64_t front_calls(const Front* front) { return front->calls; }

// Takes the requests that were refused since the last call, by method.
void front_refused(Front* front, int64_t* out) {
    std::lock_guard<std::mutex> hold(front->places.mutex);
    for (int64_t& count : front->places.refused) *out++ = std::exchange(count, 0);
}

// Refuses new calls, and waits until those under way end, at most `grace_s` seconds.
void front_stop(Front* front, double grace_s) {
    if (front->server)
        front->server->Shutdown(std::chrono::system_clock::now() + std::chrono::microseconds(int64_t(grace_s * 1e6)));
    {
        std::lock_guard<std::mutex> hold(front->places.mutex);
        front->places.closing = true;
    }
    front->places.changed.notify_all();
}
void front_delete(Front* front) { delete front; }
}
