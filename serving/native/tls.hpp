// TLS of the front, by OpenSSL.
#pragma once
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <memory>
#include <mutex>

namespace livectr::serving {

// Certificate of the server, in PEM; `_Shown` of front.py. client_ca: null where any client may connect.
struct Shown {
    const char *chain, *key, *client_ca;
};

// Contexts of TLS, with a certificate that Python reads from files, for each new connection. `fetch` returns true with
// another one than before; its texts live up to the next call.
class Tls {
  public:
    explicit Tls(bool (*fetch)(Shown*)) : fetch_(fetch) {}

    // Session of a new connection; null: there is no certificate that can be used.
    SSL* session(int socket) {
        std::lock_guard<std::mutex> hold(mutex_);
        Shown shown{};
        if (fetch_(&shown))
            if (auto made = context(shown)) context_ = std::move(made);  // else the one before stays in use
        SSL* const session = context_ ? SSL_new(context_.get()) : nullptr;
        if (session) SSL_set_fd(session, socket), SSL_set_accept_state(session);
        return session;
    }

  private:
    template <typename T, void (*F)(T*)>
    struct Free {
        void operator()(T* value) const { F(value); }
    };
    using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX, SSL_CTX_free>>;
    using Bio = std::unique_ptr<BIO, Free<BIO, BIO_free_all>>;
    using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;

    bool (*const fetch_)(Shown*);
    std::mutex mutex_;
    Context context_;

    static Context context(const Shown& shown) {
        Context made(SSL_CTX_new(TLS_server_method()));
        if (!made || !use(made.get(), shown)) made.reset();
        ERR_clear_error();
        return made;
    }

    static bool use(SSL_CTX* to, const Shown& shown) {
        SSL_CTX_set_min_proto_version(to, TLS1_2_VERSION);
        // A connection is not resumed: its client shows its certificate to the authorities in use.
        SSL_CTX_set_options(to, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_session_cache_mode(to, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(to, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_alpn_select_cb(to, select, nullptr);
        Bio chain(BIO_new_mem_buf(shown.chain, -1)), key(BIO_new_mem_buf(shown.key, -1));
        Certificate leaf(PEM_read_bio_X509_AUX(chain.get(), nullptr, nullptr, nullptr));
        if (!leaf || SSL_CTX_use_certificate(to, leaf.get()) != 1) return false;
        while (Certificate next{PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)})
            if (SSL_CTX_add1_chain_cert(to, next.get()) != 1) return false;
        std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>> own(
            PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
        if (!own || SSL_CTX_use_PrivateKey(to, own.get()) != 1 || SSL_CTX_check_private_key(to) != 1) return false;
        if (!shown.client_ca) return true;
        Bio authorities(BIO_new_mem_buf(shown.client_ca, -1));
        int64_t count = 0;
        while (Certificate next{PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr)}) {
            X509_STORE_add_cert(SSL_CTX_get_cert_store(to), next.get());
            SSL_CTX_add_client_CA(to, next.get());
            ++count;
        }
        SSL_CTX_set_verify(to, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
        return count > 0;
    }

    // gRPC speaks HTTP/2 alone.
    static int select(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* offered,
                      unsigned int bytes, void*) {
        static constexpr unsigned char H2[] = "\x02h2";
        unsigned char* chosen = nullptr;
        if (SSL_select_next_proto(&chosen, out_bytes, H2, 3, offered, bytes) != OPENSSL_NPN_NEGOTIATED)
            return SSL_TLSEXT_ERR_ALERT_FATAL;
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
    }
};

}  // namespace livectr::serving
