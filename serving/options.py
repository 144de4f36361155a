"""Settings of a server process."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.ingest.addresses import log_folder, topic_address
from livectr.serving.canary import CanaryOptions
from livectr.serving.limits import RequestLimits
from livectr.system.addresses import is_loopback
from livectr.system.errors import ConfigError
from livectr.system.tls import TlsFiles

_LARGEST_MESSAGE = 1 << 30
"""Offsets of strings are int32."""


@dataclass(frozen=True)
class ServeOptions:
    """Settings of a rank, pre-rank or recommend server.

    Args:
        redis: URL of the Redis server that the trainer publishes to.
        listen: HOST:PORT; port 0 takes a free port, which the line "… ready on …" names.
        namespace: prefix of the Redis keys, equal to the trainer's.
        workers: processes that share the port (SO_REUSEPORT) and memory; several are forked, from a
            process without other threads.
        metrics_port: Prometheus endpoint, 0: none; worker i takes metrics_port + i.
        metrics_listen: address of that endpoint.
        metrics_tls_cert, metrics_tls_key: PEM files with which it answers by https; None: by http.
        metrics_tls_client_ca: PEM file of the authorities of its clients, which then need a certificate.
        max_active: requests that compute at once.
        max_waiting: requests that wait for a place; more are shed.
        max_active_bytes: bytes of all requests that compute or wait; more are shed.
        max_wait_s: longest wait of a request without a deadline; no request waits longer than a minute.
        max_candidates: candidates of one request.
        max_message_bytes: bytes of one request, at most 1 GiB.
        max_list: values of one list of a request.
        max_string_bytes: bytes of one string of a request.
        max_top_k: items that a pre-rank request may ask for.
        max_values: values of list features of one request, over all candidates.
        near_cache_rows: embedding rows held in memory, over all tables.
        item_partials_mb: MiB of memory for partial results of items, kept while a version is served; 0: none
            are kept.
        lookup_ttl_s: seconds after which a look-up row (user, ad) is read again though no version lists it
            as changed.
        lost_grace_s: seconds for which the server stays SERVING, with replies marked degraded, while rows of
            the served version may be missing in Redis.
        max_stale_s: seconds for which a server that cannot follow the published versions stays SERVING; 0:
            forever.
        drain_s: seconds that a server told to stop is NOT_SERVING and still takes requests.
        grace_s: seconds that requests have to end when the server no longer takes new ones.
        start_wait_s: seconds to wait at the start for a Redis that does not answer.
        log_format: "text" or "json"; workers log as their supervisor does.
        log_level: "debug", "info", "warning" or "error".
        health_listen: HOST:PORT of the health service for probes, without TLS; None: only at `listen`.
        max_connection_age_s: seconds after which a client has to connect again, to another server where there
            is one; a server that drains waits for this. 0: never.
        tls_cert: PEM file of the server's certificate chain; None: without TLS.
        tls_key: PEM file of its private key.
        tls_client_ca: PEM file of the authorities of clients, which then need a certificate.
        token_file: file of the clients' bearer tokens, one a line with the methods that it may call; None:
            every client is answered. Beyond loopback it needs TLS.
        reflection: whether clients may ask for the services and messages.
        content: folders of raw features of the pipeline's content, "images=DIR,texts=DIR2"; ids without a
            published vector are embedded from them. None: only from the inline content of requests.
        served_log: log of what was served: `kafka://HOST:PORT/TOPIC` or `file:DIR`; None: none is kept.
        served_share: share of the requests in that log, above 0 and at most 1.
        canary: "ns=b,share=0.05,by=user,pipeline=new.py": a share of the requests is answered from another
            namespace (`serving.canary`); None: all from `namespace`.
    """

    redis: str
    listen: str = "127.0.0.1:0"
    namespace: str = "livectr"
    workers: int = 1
    metrics_port: int = 0
    metrics_listen: str = "127.0.0.1"
    metrics_tls_cert: str | None = None
    metrics_tls_key: str | None = None
    metrics_tls_client_ca: str | None = None
    max_active: int = 4
    max_waiting: int = 64
    max_active_bytes: int = 16 << 20
    max_wait_s: float = 1.0
    max_candidates: int = RequestLimits.candidates
    max_message_bytes: int = 8 << 20
    max_list: int = RequestLimits.list
    max_string_bytes: int = RequestLimits.string_bytes
    max_top_k: int = RequestLimits.top_k
    max_values: int = RequestLimits.values
    near_cache_rows: int = 2_000_000
    item_partials_mb: int = 64
    lookup_ttl_s: float = 600.0
    lost_grace_s: float = 30.0
    max_stale_s: float = 600.0
    drain_s: float = 0.0
    grace_s: float = 5.0
    start_wait_s: float = 0.0
    log_format: str = "text"
    log_level: str = "info"
    health_listen: str | None = None
    max_connection_age_s: float = 0.0
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    content: str | None = None
    token_file: str | None = None
    reflection: bool = True
    served_log: str | None = None
    served_share: float = 0.01
    canary: str | None = None

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("health_listen", self.health_listen)):
            if address is not None:
                check_address(name, address)
        _ = self.tls, self.metrics_tls, self.canary_options
        if self.token_file is not None and self.tls is None and not is_loopback(self.listen):
            raise ConfigError(
                f"whoever sees a token on its way to {self.listen} may use it: say --tls-cert and --tls-key, "
                "or let --listen be an address of loopback behind a proxy that ends TLS"
            )
        if self.served_log is not None:
            check_served_log(self.served_log)
        if not 0 < self.served_share <= 1:
            raise ConfigError(f"served_share is {self.served_share}, but must be above 0 and at most 1")
        if self.max_message_bytes > _LARGEST_MESSAGE:
            raise ConfigError(
                f"max_message_bytes is {self.max_message_bytes}, but must be at most {_LARGEST_MESSAGE}"
            )
        if self.max_active_bytes < self.max_message_bytes:
            raise ConfigError(
                f"max_active_bytes is {self.max_active_bytes}, but one request may have max_message_bytes, "
                f"{self.max_message_bytes}: raise the first or lower the second"
            )

    @property
    def canary_options(self) -> CanaryOptions | None:
        """Parts of `canary`. Raises ConfigError for another form."""
        return None if self.canary is None else CanaryOptions.parse(self.canary, self.namespace)

    @property
    def tls(self) -> TlsFiles | None:
        """Files of the port of requests. Raises ConfigError for settings that do not go together."""
        return TlsFiles.of_settings(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def metrics_tls(self) -> TlsFiles | None:
        """Files of the metrics endpoint. Raises ConfigError for settings that do not go together."""
        return TlsFiles.of_settings(
            self.metrics_tls_cert, self.metrics_tls_key, self.metrics_tls_client_ca, prefix="metrics-"
        )


def check_served_log(url: str) -> None:
    """Raise ConfigError for an address that is no place of a served log."""
    if url.startswith("file:"):
        log_folder(url)
    elif url.startswith("kafka:"):
        topic_address(url)
    else:
        raise ConfigError(f"served log {url!r} is neither kafka://HOST:PORT/TOPIC nor file:DIR")


def check_address(name: str, address: str) -> None:
    """Raise ConfigError for what gRPC would silently take as another address."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"{name} is {address!r}, but must be HOST:PORT with a port up to 65535")
