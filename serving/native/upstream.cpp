// Connection to the server of Python, with the calls that the front passes on.
#include "loop.hpp"

namespace livectr::serving {

Upstream::Upstream(Loop& loop, int epoll, int socket) : Channel(epoll, socket, nullptr), loop_(loop) {
    begin<Upstream>(false);
    nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, nullptr, 0);
    loop_.touch(*this);
}

Upstream::~Upstream() {
    for (auto& [_, stream] : streams_) {
        Passed& passed = *stream.passed;
        passed.python = nullptr;
        if (passed.client) passed.client->pass_end(passed, NGHTTP2_NO_ERROR);
    }
}

bool Upstream::submit(const PassedRef& passed, const Headers& headers) {
    Headers own = headers;
    for (auto& [name, value] : own)
        if (name == ":scheme" && value == "https") value = "http";  // TLS ends here
    const auto out = fields(own);
    nghttp2_data_provider provider{};
    provider.source.ptr = passed.get();
    provider.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t room, uint32_t* flags,
                                nghttp2_data_source* source, void* self) -> ssize_t {
        Passed& passed = *static_cast<Passed*>(source->ptr);
        const size_t size = std::min(room, passed.to_python.size());
        if (!size && !passed.client_ended) return NGHTTP2_ERR_DEFERRED;
        std::memcpy(to, passed.to_python.data(), size);
        passed.to_python.erase(0, size);
        if (passed.client && size) {
            passed.client->consumed(passed.client_stream, size);
            static_cast<Upstream*>(self)->loop_.touch(*passed.client);
        }
        if (passed.to_python.empty() && passed.client_ended) *flags |= NGHTTP2_DATA_FLAG_EOF;
        return ssize_t(size);
    };
    const int32_t id = nghttp2_submit_request(session, nullptr, out.data(), out.size(), &provider, nullptr);
    if (id < 0) return false;
    passed->python = this, passed->python_stream = id;
    streams_[id].passed = passed;
    loop_.touch(*this);
    return true;
}

void Upstream::on_header(int32_t id, std::string_view name, std::string_view value) {
    const auto found = streams_.find(id);
    if (found != streams_.end()) found->second.headers.emplace_back(name, value);
}

void Upstream::on_frame(const nghttp2_frame& frame) {
    const int32_t id = frame.hd.stream_id;
    Passed* const passed = find(id);
    if (!passed) return;
    const bool last = frame.hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame.hd.type == NGHTTP2_HEADERS) {
        Headers headers = std::exchange(streams_[id].headers, {});
        if (!passed->begun) {
            if (last) passed->python_ended = true;
            return passed->client->pass_headers(*passed, headers, last);
        }
        passed->trailers = std::move(headers);
    }
    if (last && (frame.hd.type == NGHTTP2_HEADERS || frame.hd.type == NGHTTP2_DATA)) {
        passed->python_ended = true;
        passed->client->pass_data(*passed);
    }
}

void Upstream::on_data(int32_t id, std::string_view data) {
    nghttp2_session_consume_connection(session, data.size());
    Passed* const passed = find(id);
    if (!passed) return;
    passed->to_client += data;
    passed->client->pass_data(*passed);
}

void Upstream::on_close(int32_t id, uint32_t error) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    const PassedRef passed = found->second.passed;
    passed->python = nullptr;
    if (passed->client) passed->client->pass_end(*passed, error);
    streams_.erase(found);
}

}  // namespace livectr::serving
