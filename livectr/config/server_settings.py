"""Settings of `livectr serve`."""

from dataclasses import dataclass

from livectr.config.field import RANKS, REDIS, SERVE, VERIFY, VERSIONS, setting
from livectr.serving.options import ServeOptions as S


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server; ServeOptions has the same names and defaults."""

    redis: str = setting(
        "redis://127.0.0.1:6379",
        "Redis that the trainer publishes to (redis://, redis+sentinel:// or redis+cluster://)",
        commands=SERVE + VERIFY + VERSIONS,
        scheme=REDIS,
        example="URL",
    )
    listen: str = setting(
        S.listen, "address to answer on (port 0: a free one)", commands=SERVE, example="HOST:PORT"
    )
    workers: int = setting(S.workers, "processes that share the port", commands=SERVE, least=1)
    max_active: int = setting(S.max_active, "requests that are computed at a time", commands=SERVE, least=1)
    max_waiting: int = setting(
        S.max_waiting, "requests that may wait; more are refused at once", commands=SERVE, least=0
    )
    max_active_bytes: int = setting(
        S.max_active_bytes,
        "bytes of all requests that compute or wait; more are refused at once",
        commands=SERVE,
        least=1,
    )
    max_wait_s: float = setting(
        S.max_wait_s,
        "longest wait of a request without a deadline",
        commands=SERVE,
        above=0,
    )
    max_candidates: int = setting(S.max_candidates, "most candidates of a request", commands=SERVE, least=1)
    max_message_bytes: int = setting(
        S.max_message_bytes, "largest request on the wire", commands=SERVE, least=1
    )
    max_list: int = setting(S.max_list, "most values of one list in a request", commands=SERVE, least=1)
    max_string_bytes: int = setting(
        S.max_string_bytes, "longest string in a request", commands=SERVE, least=1
    )
    max_top_k: int = setting(
        S.max_top_k, "largest top_k of a request", commands=("prerank", "recommend"), least=1
    )
    max_values: int = setting(
        S.max_values,
        "most values of list features in a request, over all candidates",
        commands=SERVE,
        least=1,
    )
    near_cache_rows: int = setting(
        S.near_cache_rows, "embedding rows kept in the server's memory", commands=SERVE, least=0
    )
    item_partials_mb: int = setting(
        S.item_partials_mb,
        "MiB of kept partial results of items, computed once a version (0: none)",
        commands=RANKS,
        least=0,
    )
    lookup_ttl_s: float = setting(
        S.lookup_ttl_s,
        "time after which a look-up row is read again though no version lists it as changed",
        commands=SERVE,
        least=0,
    )
    lost_grace_s: float = setting(
        S.lost_grace_s,
        "time that a server stays SERVING when Redis has lost its version (replies are marked degraded)",
        commands=SERVE,
        least=0,
    )
    max_stale_s: float = setting(
        S.max_stale_s,
        "time that a server stays SERVING when it cannot follow the published versions (0: forever)",
        commands=SERVE,
        least=0,
    )
    drain_s: float = setting(
        S.drain_s,
        "time at SIGTERM in which health says NOT_SERVING, before new requests are refused",
        commands=SERVE,
        least=0,
    )
    grace_s: float = setting(
        S.grace_s, "time to finish running requests, after --drain-s", commands=SERVE, least=0
    )
    max_connection_age_s: float = setting(
        S.max_connection_age_s,
        "time after which a client must connect again, so that new servers get their share (0: never)",
        commands=SERVE,
        least=0,
    )
    served_log: str | None = setting(
        S.served_log,
        "log what was served, for livectr evaluate --served",
        commands=RANKS,
        example="kafka://HOST:PORT/TOPIC|file:DIR",
    )
    served_share: float = setting(
        S.served_share, "share of the requests in --served-log", commands=RANKS, above=0, most=1
    )
    canary: str | None = setting(
        S.canary,
        "answer a share of the requests from another namespace, with the model that is published there; "
        "by=user keeps each user on one side",
        commands=SERVE,
        example="ns=NS,share=0.05[,by=user|request][,pipeline=FILE.py]",
    )
    tls_cert: str | None = setting(
        S.tls_cert,
        "certificate chain (PEM) of the server; read again when it changes",
        commands=SERVE,
        example="FILE",
    )
    tls_key: str | None = setting(
        S.tls_key, "private key (PEM) of --tls-cert", commands=SERVE, example="FILE"
    )
    tls_client_ca: str | None = setting(
        S.tls_client_ca,
        "authorities (PEM) of clients, which then must show a certificate",
        commands=SERVE,
        example="FILE",
    )
    token_file: str | None = setting(
        S.token_file,
        "tokens that clients must send, one a line with the methods that it may call (none: all); "
        "read again when it changes",
        commands=SERVE,
        example="FILE",
    )
    reflection: bool = setting(
        S.reflection, "tell clients such as grpcurl the services and messages", commands=SERVE
    )
