// Connection with a session of HTTP/2, and the two kinds of it: to clients, and to the server of Python.
//
// All of it belongs to the thread of one loop.
#pragma once
#include "call.hpp"
#include "tls.hpp"

#include <nghttp2/nghttp2.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

namespace livectr::serving {

// Settings of a front that connections look at.
struct Setup {
    std::map<std::string, Answer, std::less<>> methods;  // by path
    Limits limits{};
    std::string upstream;  // path of Python's socket
    std::string retry;     // google.protobuf.Any of a refusal's RetryInfo
};

// Socket with a session, which lives until the loop removes it.
class Channel {
  public:
    const int socket;
    bool dirty = false;  // the loop flushes it soon

    Channel(int epoll, int socket, SSL* tls) : socket(socket), epoll_(epoll), tls_(tls) {
        epoll_event event{EPOLLIN, {}};
        event.data.ptr = this;
        epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event);
    }
    Channel(const Channel&) = delete;
    virtual ~Channel() {
        nghttp2_session_del(session);
        SSL_free(tls_);
        // A forked process may have the socket, too: epoll would go on to name this channel.
        epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
        ::shutdown(socket, SHUT_RDWR);
        close(socket);
    }

    nghttp2_session* session = nullptr;

    bool is_over() const { return over_; }
    void end() { over_ = true; }

    // Reads what has come.
    void read() {
        uint8_t buffer[32 << 10];
        // A client that sends without a pause must not keep the loop; what TLS has decrypted already, no event would tell.
        for (int turn = 0; !over_ && (turn < MOST_READS || (tls_ && !lingers_ && SSL_pending(tls_))); ++turn) {
            const ssize_t size = receive(buffer, sizeof(buffer));
            if (size < 0) break;
            if (size == 0) return end();
            if (lingers_) continue;  // what comes after the end of the session
            if (nghttp2_session_mem_recv(session, buffer, size_t(size)) < 0) linger();  // no HTTP/2, or a flood
            // Frames that wait to be written: a client that makes us write, and does not read.
            if (nghttp2_session_get_outbound_queue_size(session) > most_frames_) return end();
            if (size_t(size) < sizeof(buffer) && !tls_) break;
        }
    }

    // Writes what the session has, as far as the socket takes it.
    void flush() {
        while (!over_) {
            while (out_.size() - written_ < MOST_OUT && !lingers_) {
                const uint8_t* data = nullptr;
                const ssize_t size = nghttp2_session_mem_send(session, &data);
                if (size < 0) return end();
                if (size == 0) break;
                if (written_ >= MOST_OUT) out_.erase(out_.begin(), out_.begin() + ssize_t(std::exchange(written_, 0)));
                out_.insert(out_.end(), data, data + size);
            }
            if (written_ == out_.size()) {
                out_.clear(), written_ = 0;
                break;
            }
            const ssize_t size = send(out_.data() + written_, out_.size() - written_);
            if (size < 0) return;
            written_ += size_t(size);
        }
        wait_to_write(false);
        if (!over_ && !lingers_ && !nghttp2_session_want_read(session) && !nghttp2_session_want_write(session))
            linger();
    }

    // Ends the connection after what has been sent: a reset would take it from the client.
    void linger() {
        if (std::exchange(lingers_, true)) return;
        linger_until_ = seconds() + LINGER_S;
        if (tls_) SSL_shutdown(tls_);
        ERR_clear_error();
        out_.clear(), written_ = 0;
        shutdown(socket, SHUT_WR);
    }
    bool lingers() const { return lingers_; }

    // Looks at the time, some ten times a second.
    virtual void tick(double now) {
        if (lingers_ && now > linger_until_) end();
    }

  protected:
    // Calls of nghttp2 that either kind needs; `self` is the channel.
    template <typename T>
    void begin(bool of_server) {
        nghttp2_session_callbacks* calls = nullptr;
        nghttp2_session_callbacks_new(&calls);
        nghttp2_session_callbacks_set_on_begin_headers_callback(
            calls, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
                return static_cast<T*>(self)->on_headers(*frame);
            });
        nghttp2_session_callbacks_set_on_header_callback(
            calls, [](nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                      const uint8_t* value, size_t value_bytes, uint8_t, void* self) {
                static_cast<T*>(self)->on_header(frame->hd.stream_id, {reinterpret_cast<const char*>(name), name_bytes},
                                                 {reinterpret_cast<const char*>(value), value_bytes});
                return 0;
            });
        nghttp2_session_callbacks_set_on_frame_recv_callback(
            calls, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
                static_cast<T*>(self)->on_frame(*frame);
                return 0;
            });
        nghttp2_session_callbacks_set_on_frame_send_callback(
            calls, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
                static_cast<T*>(self)->on_sent(*frame);
                return 0;
            });
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
            calls, [](nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t bytes, void* self) {
                static_cast<T*>(self)->on_data(stream, {reinterpret_cast<const char*>(data), bytes});
                return 0;
            });
        nghttp2_session_callbacks_set_on_stream_close_callback(
            calls, [](nghttp2_session*, int32_t stream, uint32_t error, void* self) {
                static_cast<T*>(self)->on_close(stream, error);
                return 0;
            });
        nghttp2_option* options = nullptr;
        nghttp2_option_new(&options);
        nghttp2_option_set_no_auto_window_update(options, 1);
        nghttp2_option_set_no_closed_streams(options, 1);
        // Without it, a connection ends that cancels 33 calls a second: a client that hedges cancels more.
        if (of_server) nghttp2_option_set_stream_reset_rate_limit(options, MOST_RESETS, MOST_RESETS);
        // gRPC has its own rules for headers, and does not look at content-length.
        if (of_server) nghttp2_option_set_no_http_messaging(options, 1);
        // Its table of headers would be shared by all clients: gRPC remembers a header that it has refused, and refuses
        // the next of that name, of whoever.
        if (!of_server) nghttp2_option_set_max_deflate_dynamic_table_size(options, 0);
        (of_server ? nghttp2_session_server_new2 : nghttp2_session_client_new2)(&session, calls, static_cast<T*>(this),
                                                                                options);
        nghttp2_option_del(options);
        if (of_server) most_frames_ = MOST_FRAMES;
        nghttp2_session_callbacks_del(calls);
    }

    static nghttp2_nv field(std::string_view name, std::string_view value) {
        const auto bytes = [](std::string_view text) {
            return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
        };
        return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
    }
    static std::vector<nghttp2_nv> fields(const Headers& headers) {
        std::vector<nghttp2_nv> out;
        for (const auto& [name, value] : headers) out.push_back(field(name, value));
        return out;
    }

  private:
    static constexpr size_t MOST_OUT = 64 << 10;
    static constexpr size_t MOST_FRAMES = 10'000;
    static constexpr uint64_t MOST_RESETS = 10'000;  // of a client, at once and a second
    static constexpr int MOST_READS = 4;
    static constexpr double LINGER_S = 1;

    const int epoll_;
    SSL* const tls_;
    std::vector<uint8_t> out_;
    size_t written_ = 0, most_frames_ = SIZE_MAX;
    bool over_ = false, writes_ = false, lingers_ = false;
    double linger_until_ = 0;

    void wait_to_write(bool wait) {
        if (wait == writes_) return;
        writes_ = wait;
        epoll_event event{uint32_t(wait ? EPOLLIN | EPOLLOUT : EPOLLIN), {}};
        event.data.ptr = this;
        epoll_ctl(epoll_, EPOLL_CTL_MOD, socket, &event);
    }

    // Both return bytes; 0: the connection has ended; -1: not at the moment.
    ssize_t receive(uint8_t* to, size_t room) {
        if (!tls_ || lingers_) {
            const ssize_t size = recv(socket, to, room, 0);
            return size < 0 && errno != EAGAIN && errno != EINTR ? 0 : size;
        }
        ERR_clear_error();
        const int size = SSL_read(tls_, to, int(room));
        if (size > 0) return size;
        if (tls_wait(size) == 0) linger();
        return -1;
    }
    ssize_t send(const uint8_t* data, size_t bytes) {
        ssize_t size;
        if (!tls_) {
            size = ::send(socket, data, bytes, MSG_NOSIGNAL);
            if (size < 0 && errno != EAGAIN && errno != EINTR) end();
            if (size < 0) wait_to_write(true);
            return size;
        }
        ERR_clear_error();
        const int sent = SSL_write(tls_, data, int(bytes));
        if (sent > 0) return sent;
        if (tls_wait(sent) == 0) linger();
        return -1;
    }
    ssize_t tls_wait(int result) {
        const int error = SSL_get_error(tls_, result);
        wait_to_write(error == SSL_ERROR_WANT_WRITE);
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
    }
};

class Upstream;

// Call of a method that the front does not read: its bytes pass between a client and Python.
struct Passed {
    Client* client;  // null: its stream is closed
    int32_t client_stream;
    Upstream* python = nullptr;  // null: the stream is closed
    int32_t python_stream = 0;
    std::string to_python, to_client;
    Headers trailers;
    bool client_ended = false, python_ended = false;  // no byte follows
    bool begun = false;                               // the client has got the headers of the reply
};

using PassedRef = std::shared_ptr<Passed>;

// Connection of a client.
class Client final : public Channel {
  public:
    Client(Loop& loop, int epoll, int socket, SSL* tls);
    ~Client() override;

    // Replies to a call.
    void answer(Call& call);
    // Tells the client that the connection ends, and ends it when its requests are answered, at most `grace_s` later.
    void drain(double grace_s);
    void tick(double now) override;

    // Parts of a reply of Python.
    void pass_headers(Passed& passed, const Headers& headers, bool last);
    void pass_data(Passed& passed);
    void pass_end(Passed& passed, uint32_t error);
    void consumed(int32_t stream, size_t bytes);

    int on_headers(const nghttp2_frame& frame);
    void on_header(int32_t stream, std::string_view name, std::string_view value);
    void on_frame(const nghttp2_frame& frame);
    void on_sent(const nghttp2_frame& frame);
    void on_data(int32_t stream, std::string_view data);
    void on_close(int32_t stream, uint32_t error);

  private:
    struct Stream {
        Headers headers;
        size_t header_bytes = 0;
        bool ended = false;     // the client has sent all
        bool answered = false;  // the reply, or a status, is given
        CallRef call;           // until it is answered
        double came_at = 0;
        uint8_t prefix[5] = {};  // of the message: compressed, and its bytes
        size_t prefixed = 0, bytes = 0;
        PassedRef passed;
        std::string out;  // what is sent of the reply
        size_t sent = 0;
    };

    Loop& loop_;
    std::map<int32_t, Stream> streams_;
    const double began_;
    double ages_at_, greeted_until_;
    bool greeted_ = false;                    // the client has said that it speaks HTTP/2
    bool draining_ = false, goaway_ = false;  // goaway: new streams are ignored
    double goaway_at_ = 0, ends_at_ = HUGE_VAL;
    size_t unread_ = 0;  // bytes of replies that wait for the client
    double pinged_at_ = 0;
    int pings_ = 0;  // too early

    void request(int32_t id, Stream& stream);
    void message(int32_t id, Stream& stream, std::string_view data);
    void dispatch(int32_t id, Stream& stream);
    void end_of_request(int32_t id, Stream& stream);
    void refuse(int32_t id, Stream& stream, const std::string& problem);
    void fail(int32_t id, Stream& stream, const Status& status);
    void detach(Stream& stream);
    void release(Stream& stream);
    void end_late(double now);
    void ping();
    void go_away();
};

// Connection to the server of Python.
class Upstream final : public Channel {
  public:
    Upstream(Loop& loop, int epoll, int socket);
    ~Upstream() override;

    bool takes_requests() const { return !is_over() && nghttp2_session_check_request_allowed(session); }
    // Sends the headers of a call. Returns false where it cannot.
    bool submit(const PassedRef& passed, const Headers& headers);
    void pass_data(Passed& passed) { nghttp2_session_resume_data(session, passed.python_stream); }
    void cancel(Passed& passed) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, passed.python_stream, NGHTTP2_CANCEL);
    }
    void consumed(int32_t stream, size_t bytes) { nghttp2_session_consume_stream(session, stream, bytes); }

    int on_headers(const nghttp2_frame&) { return 0; }
    void on_header(int32_t stream, std::string_view name, std::string_view value);
    void on_frame(const nghttp2_frame& frame);
    void on_sent(const nghttp2_frame&) {}
    void on_data(int32_t stream, std::string_view data);
    void on_close(int32_t stream, uint32_t error);

  private:
    struct Stream {
        PassedRef passed;
        Headers headers;
    };

    Loop& loop_;
    std::map<int32_t, Stream> streams_;

    Passed* find(int32_t stream) {
        const auto found = streams_.find(stream);
        return found == streams_.end() || !found->second.passed->client ? nullptr : found->second.passed.get();
    }
};

}  // namespace livectr::serving
