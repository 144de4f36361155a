// Connection of a client: requests of known methods are read here, all others are passed on to Python.
#include "loop.hpp"

namespace livectr::serving {

namespace {

constexpr size_t MOST_HEADERS = 16 << 10;  // as gRPC
constexpr uint32_t WINDOW = 1 << 20;       // of a stream; a connection has four of them
constexpr double GREETING_S = 120, GOAWAY_S = 1;
constexpr double MESSAGE_S = 20;          // in which a message is whole; until then its call has a place
constexpr size_t MOST_UNREAD = 16 << 20;  // bytes of a connection's replies that its client has not taken
constexpr int MOST_PINGS = 2;             // that come too early
constexpr int64_t FOUND = 200;

// Value of a header; empty: there is none.
std::string_view header(const Headers& headers, std::string_view name) {
    for (const auto& [key, value] : headers)
        if (key == name) return value;
    return {};
}

// Headers that are gRPC's, not the caller's.
bool is_own(std::string_view name) {
    return name.empty() || name[0] == ':' || starts(name, "grpc-") || name == "te" || name == "content-type";
}

// The front reads a request where nothing of it is unusual; gRPC in Python knows the rest.
bool is_usual(const Headers& headers) {
    static constexpr std::string_view REQUIRED[] = {":method", ":scheme", ":path", ":authority", "te", "content-type"};
    for (const auto& [name, value] : headers) {
        const bool usual = name == ":method"         ? value == "POST"
                           : name == ":scheme"       ? value == "http" || value == "https"
                           : name == "te"            ? value == "trailers"
                           : name == "content-type"  ? value == "application/grpc" || value == "application/grpc+proto"
                           : name == "grpc-encoding" ? value == "identity"
                           : name == "grpc-timeout"  ? !std::isnan(timeout_s(value))
                           : ends(name, "-bin")      ? is_base64(value)
                                                     : !starts(name, "grpc-") || name == "grpc-accept-encoding";
        if (!usual) return false;
    }
    const auto times = [&](std::string_view name) {
        return std::count_if(headers.begin(), headers.end(), [&](const auto& header) { return header.first == name; });
    };
    return std::all_of(std::begin(REQUIRED), std::end(REQUIRED), [&](auto name) { return times(name) == 1; }) &&
           times("grpc-timeout") <= 1;
}

// First name that is none of gRPC; null: there is none.
const std::string* wrong_name(const Headers& headers) {
    static constexpr std::string_view LEGAL = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    static constexpr std::string_view PSEUDO[] = {":method", ":scheme", ":path", ":authority"};
    for (const auto& [name, _] : headers)
        if ((name.empty() || name.find_first_not_of(LEGAL) != std::string::npos) &&
            std::find(std::begin(PSEUDO), std::end(PSEUDO), name) == std::end(PSEUDO))
            return &name;
    return nullptr;
}

Headers metadata(const Headers& headers) {
    Headers out;
    for (const auto& [name, value] : headers)
        if (!is_own(name)) out.emplace_back(name, ends(name, "-bin") ? of_base64(value) : value);
    return out;
}

}  // namespace

Client::Client(Loop& loop, int epoll, int socket, SSL* tls)
    : Channel(epoll, socket, tls), loop_(loop), began_(seconds()), greeted_until_(began_ + GREETING_S) {
    begin<Client>(true);
    const Limits& limits = loop.shared().setup.limits;
    // Spread by 10 % as gRPC does, so that clients of one moment do not come again in one.
    const double spread = 0.9 + 0.2 * double(uintptr_t(this) / 64 % 101) / 100;
    ages_at_ = limits.age_ms ? began_ + spread * double(limits.age_ms) / 1000 : HUGE_VAL;
    const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1024},
                                               {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
                                               {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, uint32_t(MOST_HEADERS)}};
    nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
    nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, 4 * WINDOW);
    loop_.touch(*this);
}

Client::~Client() {
    for (auto& [_, stream] : streams_) release(stream);
}

// Ends the call of a stream, which may stay open: a client that reads late keeps its reply in memory, no more.
void Client::detach(Stream& stream) {
    stream.answered = true;
    stream.headers = {};
    if (!stream.call) return;
    stream.call->gone = true, stream.call->client = nullptr;
    stream.call = nullptr;
    --loop_.shared().places->calls;
}

// Lets go of what a stream has elsewhere.
void Client::release(Stream& stream) {
    detach(stream);
    unread_ -= stream.out.size() - stream.sent;
    if (stream.passed) {
        Passed& passed = *stream.passed;
        nghttp2_session_consume_connection(session, passed.to_python.size());
        passed.client = nullptr;
        if (passed.python) passed.python->cancel(passed), loop_.touch(*passed.python);
    }
}

int Client::on_headers(const nghttp2_frame& frame) {
    greeted_ = true;
    if (frame.headers.cat == NGHTTP2_HCAT_REQUEST) streams_[frame.hd.stream_id].headers.reserve(12);
    return 0;
}

void Client::on_header(int32_t id, std::string_view name, std::string_view value) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    Stream& stream = found->second;
    stream.header_bytes += name.size() + value.size() + 32;
    if (stream.header_bytes <= MOST_HEADERS && !stream.answered && !stream.call && !stream.passed)
        stream.headers.emplace_back(name, value);
}

void Client::on_frame(const nghttp2_frame& frame) {
    greeted_ = true;
    if (frame.hd.type == NGHTTP2_PING) return frame.hd.flags & NGHTTP2_FLAG_ACK ? go_away() : ping();
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
    const auto found = streams_.find(frame.hd.stream_id);
    if (found == streams_.end()) return;
    if (frame.hd.type == NGHTTP2_HEADERS) {
        if (frame.headers.cat == NGHTTP2_HCAT_REQUEST) request(found->first, found->second);
        else if (!(frame.hd.flags & NGHTTP2_FLAG_END_STREAM))
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, found->first, NGHTTP2_PROTOCOL_ERROR);
    }
    if (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) end_of_request(found->first, found->second);
}

// Takes the headers of a request.
void Client::request(int32_t id, Stream& stream) {
    Shared& shared = loop_.shared();
    const Limits& limits = shared.setup.limits;
    if (stream.header_bytes > MOST_HEADERS)
        return fail(id, stream, {RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit", ""});
    if (const std::string* const name = wrong_name(stream.headers))
        return fail(id, stream, {INTERNAL, "Illegal header key: " + *name, ""});
    const auto method = shared.setup.methods.find(header(stream.headers, ":path"));
    if (method != shared.setup.methods.end() && is_usual(stream.headers)) {
        const std::string_view timeout = header(stream.headers, "grpc-timeout");
        const double deadline = timeout.empty() ? HUGE_VAL : seconds() + timeout_s(timeout);
        stream.call = std::make_shared<Call>(loop_, method->second, deadline, metadata(stream.headers), this, id);
        stream.came_at = seconds();
        const bool full = shared.places->calls++ >= limits.calls;
        if (!full && unread_ <= MOST_UNREAD) return;
        shared.places->refuse(method->second);
        refuse(id, stream,
               full ? std::to_string(limits.calls) + " calls are under way"
                    : std::to_string(unread_) + " bytes of replies wait for this client, which does not read them");
        return;
    }
    Upstream* const python = loop_.upstream();
    stream.passed = std::make_shared<Passed>();
    stream.passed->client = this, stream.passed->client_stream = id;
    if (!python || !python->submit(stream.passed, stream.headers))
        fail(id, stream, {UNAVAILABLE, "the server does not answer such calls", ""});
}

void Client::on_data(int32_t id, std::string_view data) {
    const auto found = streams_.find(id);
    if (found != streams_.end() && found->second.passed && found->second.passed->python) {
        Stream& stream = found->second;
        stream.passed->to_python += data;
        stream.passed->python->pass_data(*stream.passed);
        return loop_.touch(*stream.passed->python);
    }
    nghttp2_session_consume_connection(session, data.size());
    if (found == streams_.end()) return;
    Stream& stream = found->second;
    nghttp2_session_consume_stream(session, id, data.size());
    if (stream.call && !stream.answered && !stream.call->began) message(id, stream, data);
}

// Takes a part of the message of a call, which is dispatched when it is whole.
void Client::message(int32_t id, Stream& stream, std::string_view data) {
    const size_t head = std::min(data.size(), sizeof(stream.prefix) - stream.prefixed);
    std::memcpy(stream.prefix + stream.prefixed, data.data(), head);
    stream.prefixed += head;
    data.remove_prefix(head);
    if (stream.prefixed < sizeof(stream.prefix)) return;
    const int64_t most = loop_.shared().setup.limits.message_bytes;
    if (head) {
        for (int i = 1; i < 5; ++i) stream.bytes = stream.bytes << 8 | stream.prefix[i];
        if (stream.prefix[0] > 1) return fail(id, stream, {INTERNAL, "Bad GRPC frame type", ""});
        if (stream.prefix[0]) return fail(id, stream, {INTERNAL, "Compression bit set but no encoding configured", ""});
        if (int64_t(stream.bytes) > most) {
            const std::string sizes = std::to_string(stream.bytes) + " vs. " + std::to_string(most);
            return fail(id, stream,
                        {RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (" + sizes + ")", ""});
        }
    }
    std::string& request = stream.call->request;
    request += data.substr(0, stream.bytes - request.size());
    if (request.size() == stream.bytes) dispatch(id, stream);
}

void Client::dispatch(int32_t id, Stream& stream) {
    stream.call->began = seconds();
    const std::string problem = loop_.shared().places->enter(stream.call);
    if (!problem.empty()) refuse(id, stream, problem);
}

void Client::end_of_request(int32_t id, Stream& stream) {
    stream.ended = true;
    if (stream.passed && stream.passed->python) {
        stream.passed->client_ended = true;
        stream.passed->python->pass_data(*stream.passed);
        loop_.touch(*stream.passed->python);
    }
    if (!stream.call || stream.answered || stream.call->began) return;
    const std::string path(header(stream.headers, ":path"));
    fail(id, stream, {UNIMPLEMENTED, '"' + path + "\" requires exactly one request message.", ""});
}

void Client::refuse(int32_t id, Stream& stream, const std::string& problem) {
    const std::string& retry = loop_.shared().setup.retry;
    fail(id, stream, {RESOURCE_EXHAUSTED, problem, rich_status(RESOURCE_EXHAUSTED, problem, retry)});
}

// Ends a stream by a status, without a message.
void Client::fail(int32_t id, Stream& stream, const Status& status) {
    if (stream.answered) return;
    detach(stream);
    const std::string code = std::to_string(status.code), text = percent_encoded(status.text);
    const std::string details = base64(status.details);
    std::vector<nghttp2_nv> out{field(":status", "200"), field("content-type", "application/grpc"),
                                field("grpc-status", code)};
    if (!text.empty()) out.push_back(field("grpc-message", text));
    if (!details.empty()) out.push_back(field("grpc-status-details-bin", details));
    nghttp2_submit_response(session, id, out.data(), out.size(), nullptr);
    loop_.touch(*this);
}

void Client::answer(Call& call) {
    const auto found = streams_.find(call.stream);
    if (found == streams_.end()) return;
    Stream& stream = found->second;
    if (call.status.code) return fail(call.stream, stream, call.status);
    if (stream.answered) return;
    detach(stream);
    const size_t bytes = call.reply.size();
    stream.out = {'\0', char(bytes >> 24), char(bytes >> 16), char(bytes >> 8), char(bytes)};
    stream.out += call.reply;
    unread_ += stream.out.size();
    const nghttp2_nv head[] = {field(":status", "200"), field("content-type", "application/grpc")};
    nghttp2_data_provider provider{};
    provider.source.ptr = &stream;
    provider.read_callback = [](nghttp2_session* session, int32_t id, uint8_t* to, size_t room, uint32_t* flags,
                                nghttp2_data_source* source, void* self) -> ssize_t {
        Stream& stream = *static_cast<Stream*>(source->ptr);
        const size_t size = std::min(room, stream.out.size() - stream.sent);
        std::memcpy(to, stream.out.data() + stream.sent, size);
        stream.sent += size;
        static_cast<Client*>(self)->unread_ -= size;
        if (stream.sent == stream.out.size()) {
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            const nghttp2_nv trailer = field("grpc-status", "0");
            nghttp2_submit_trailer(session, id, &trailer, 1);
        }
        return ssize_t(size);
    };
    nghttp2_submit_response(session, call.stream, head, std::size(head), &provider);
    loop_.touch(*this);
}

void Client::pass_headers(Passed& passed, const Headers& headers, bool last) {
    passed.begun = true;
    const auto out = fields(headers);
    nghttp2_data_provider provider{};
    provider.source.ptr = &passed;
    provider.read_callback = [](nghttp2_session* session, int32_t id, uint8_t* to, size_t room, uint32_t* flags,
                                nghttp2_data_source* source, void*) -> ssize_t {
        Passed& passed = *static_cast<Passed*>(source->ptr);
        const size_t size = std::min(room, passed.to_client.size());
        if (!size && !passed.python_ended) return NGHTTP2_ERR_DEFERRED;
        std::memcpy(to, passed.to_client.data(), size);
        passed.to_client.erase(0, size);
        if (passed.python) {
            passed.python->consumed(passed.python_stream, size);
            passed.client->loop_.touch(*passed.python);
        }
        if (passed.to_client.empty() && passed.python_ended) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
            if (const auto trailers = fields(passed.trailers); !trailers.empty()) {
                *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
                nghttp2_submit_trailer(session, id, trailers.data(), trailers.size());
            }
        }
        return ssize_t(size);
    };
    nghttp2_submit_response(session, passed.client_stream, out.data(), out.size(), last ? nullptr : &provider);
    loop_.touch(*this);
}

void Client::pass_data(Passed& passed) {
    nghttp2_session_resume_data(session, passed.client_stream);
    loop_.touch(*this);
}

// Takes the end of Python's stream: by a reset, or, without an error, with its connection.
void Client::pass_end(Passed& passed, uint32_t error) {
    nghttp2_session_consume_connection(session, std::exchange(passed.to_python, {}).size());
    if (!passed.begun && !error) {
        const auto found = streams_.find(passed.client_stream);
        if (found != streams_.end())
            fail(found->first, found->second, {UNAVAILABLE, "the server has closed the call", ""});
    } else if (!passed.python_ended) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, passed.client_stream,
                                  error ? error : uint32_t(NGHTTP2_INTERNAL_ERROR));
    }
    loop_.touch(*this);
}

void Client::consumed(int32_t id, size_t bytes) { nghttp2_session_consume(session, id, bytes); }

void Client::on_sent(const nghttp2_frame& frame) {
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
    pings_ = 0, pinged_at_ = 0;
    if (!(frame.hd.flags & NGHTTP2_FLAG_END_STREAM)) return;
    const auto found = streams_.find(frame.hd.stream_id);
    // It has its reply: what it would still send is of no use.
    if (found != streams_.end() && !found->second.ended)
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, found->first, NGHTTP2_NO_ERROR);
}

void Client::on_close(int32_t id, uint32_t) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    release(found->second);
    streams_.erase(found);
}

// Takes a ping: a client that gets nothing and pings all the time is told to go away.
void Client::ping() {
    const double now = seconds(), least = double(loop_.shared().setup.limits.ping_ms) / 1000;
    if (pinged_at_ && now - pinged_at_ < least && ++pings_ > MOST_PINGS && !goaway_) {
        static constexpr char WHY[] = "too_many_pings";
        nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session),
                              NGHTTP2_ENHANCE_YOUR_CALM, reinterpret_cast<const uint8_t*>(WHY), sizeof(WHY) - 1);
        draining_ = goaway_ = true, ends_at_ = now + GOAWAY_S;
    }
    pinged_at_ = now;
    loop_.touch(*this);
}

// 1  GOAWAY without a last stream, and a ping: requests that are on their way are still taken
// 2  the ping is back, or was not within a second: GOAWAY with the last stream that was taken
// 3  the connection ends with its last stream, or when its time is over
void Client::drain(double grace_s) {
    const double now = seconds();
    ends_at_ = std::min(ends_at_, now + grace_s);
    if (std::exchange(draining_, true)) return;
    nghttp2_submit_shutdown_notice(session);
    nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, nullptr);
    goaway_at_ = now + GOAWAY_S;
    loop_.touch(*this);
}

void Client::go_away() {
    if (!draining_ || std::exchange(goaway_, true)) return;
    nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session),
                          NGHTTP2_NO_ERROR, nullptr, 0);
    loop_.touch(*this);
}

// Ends the calls whose messages do not become whole.
void Client::end_late(double now) {
    for (auto& [id, stream] : streams_)
        if (stream.call && !stream.call->began && now > std::min(stream.call->deadline, stream.came_at + MESSAGE_S))
            fail(id, stream, {DEADLINE_EXCEEDED, "the message did not come in time", ""});
}

void Client::tick(double now) {
    Channel::tick(now);
    end_late(now);
    if (!greeted_ && now > greeted_until_) end();
    if (!draining_ && now > ages_at_) drain(double(loop_.shared().setup.limits.grace_ms) / 1000);
    if (draining_ && !goaway_ && now > goaway_at_) go_away();
    if (now <= ends_at_ || lingers()) return;
    for (auto& [id, stream] : streams_) {
        if (stream.answered || (stream.passed && stream.passed->begun))
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
        else fail(id, stream, {UNAVAILABLE, "the server closes the connection", ""});
    }
    flush();
    if (!is_over()) linger();
}

}  // namespace livectr::serving
