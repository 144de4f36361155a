"""Settings of a server process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from livectr.ingest.addresses import log_folder, topic_address
from livectr.serving.canary import CanaryOptions
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.limits import RequestLimits
from livectr.store.redis_url import SCHEMES as REDIS
from livectr.system.addresses import is_loopback
from livectr.system.errors import ConfigError
from livectr.system.process_options import BASICS, SECURITY, WATCHING, ProcessOptions, StartOptions
from livectr.system.settings import check, setting
from livectr.system.tls import TlsFiles

_LARGEST_MESSAGE = 1 << 30
"""Offsets of strings are int32."""

VERSIONS, MEMORY, LOAD = "Freshness and versions", "Memory", "Load and large requests"
SERVERS = ("rank", "prerank", "recommend")
"""Commands of `livectr serve` that have these settings."""


@dataclass(frozen=True)
class ServeOptions(StartOptions, ProcessOptions):
    """Settings of a rank, pre-rank or recommend server.

    Raises:
        ConfigError: a value cannot work, or two do not go together.
    """

    redis: str = setting(
        "redis://127.0.0.1:6379",
        "Redis that the trainer publishes to (redis://, redis+sentinel:// or redis+cluster://)",
        BASICS,
        scheme=REDIS,
        example="URL",
        commands=(*SERVERS, "verify", "versions"),
        flag=True,
        see="deploy.md#redis-urls",
    )
    listen: str = setting(
        "127.0.0.1:0", "address to answer on (port 0: a free one)", BASICS, example="HOST:PORT", flag=True
    )
    workers: int = setting(1, "processes that share the port", BASICS, least=1, flag=True)
    front: Literal["auto", "native", "python"] = setting(
        "auto",
        "who reads the requests: native (C++, answers plain requests itself), python, or native where it is "
        "built (auto)",
        LOAD,
        see="serving.md#the-native-front",
    )
    share_port: bool = setting(
        False,
        "let a further server listen on the same port, such as the one that takes this one's place",
        WATCHING,
        see="processes.md#the-end-of-a-server",
    )
    lookup_ttl_s: float = setting(
        600.0,
        "time after which a look-up row is read again though no version lists it as changed",
        VERSIONS,
        least=0,
    )
    lost_grace_s: float = setting(
        30.0,
        "time that a server stays SERVING when Redis has lost its version (replies are marked degraded)",
        VERSIONS,
        least=0,
    )
    max_stale_s: float = setting(
        600.0,
        "time that a server stays SERVING when it cannot follow the published versions (0: forever)",
        VERSIONS,
        least=0,
    )
    served_log: str | None = setting(
        None,
        "log what was served, for livectr evaluate --served",
        VERSIONS,
        example="kafka://HOST:PORT/TOPIC|file:DIR",
        commands=("rank", "recommend"),
        see="evaluation.md#what-was-served",
    )
    served_share: float = setting(
        0.01, "share of the requests in served_log", VERSIONS, above=0, most=1, commands=("rank", "recommend")
    )
    canary: str | None = setting(
        None,
        "answer a share of the requests from another namespace, with the model that is published there; "
        "by=user keeps each user on one side",
        VERSIONS,
        example="ns=NS,share=0.05[,by=user|request][,pipeline=FILE.py]",
        see="operate.md#try-a-new-model-a-canary",
    )
    explore: str | None = setting(
        None,
        "answer a share of the requests in an order that is drawn around the values, and log its propensity",
        VERSIONS,
        example="share=0.1,temperature=0.5[,top=10][,seed=0][,side=stable|canary]",
        commands=("rank", "recommend"),
        see="evaluation.md#explore",
    )
    near_cache_rows: int = setting(2000000, "embedding rows kept in the server's memory", MEMORY, least=0)
    item_partials_mb: int = setting(
        64,
        "MiB of kept partial results of items, computed once a version (0: none)",
        MEMORY,
        least=0,
        commands=("rank", "recommend"),
        see="architecture.md#partial-results-of-items",
    )
    max_active: int = setting(4, "requests that are computed at a time", LOAD, least=1)
    max_waiting: int = setting(64, "requests that may wait; more are refused at once", LOAD, least=0)
    max_active_bytes: int = setting(
        16 << 20, "bytes of all requests that compute or wait; more are refused at once", LOAD, least=1
    )
    max_wait_s: float = setting(1.0, "longest wait of a request without a deadline", LOAD, above=0)
    max_candidates: int = setting(RequestLimits.candidates, "most candidates of a request", LOAD, least=1)
    max_message_bytes: int = setting(
        8 << 20, "largest request on the wire", LOAD, least=1, most=_LARGEST_MESSAGE
    )
    max_list: int = setting(RequestLimits.list, "most values of one list in a request", LOAD, least=1)
    max_string_bytes: int = setting(RequestLimits.string_bytes, "longest string in a request", LOAD, least=1)
    max_top_k: int = setting(
        RequestLimits.top_k, "largest top_k of a request", LOAD, least=1, commands=("prerank", "recommend")
    )
    max_values: int = setting(
        RequestLimits.values, "most values of list features in a request, over all candidates", LOAD, least=1
    )
    drain_s: float = setting(
        0.0,
        "time at SIGTERM in which health says NOT_SERVING, before new requests are refused",
        WATCHING,
        least=0,
    )
    grace_s: float = setting(5.0, "time to finish running requests, after drain_s", WATCHING, least=0)
    max_connection_age_s: float = setting(
        0.0,
        "time after which a client must connect again, so that new servers get their share (0: never)",
        WATCHING,
        least=0,
    )
    tls_cert: str | None = setting(
        None,
        "certificate chain (PEM) of the server; read again when it changes",
        SECURITY,
        example="FILE",
        see="processes.md#tls",
    )
    tls_key: str | None = setting(None, "private key (PEM) of tls_cert", SECURITY, example="FILE")
    tls_client_ca: str | None = setting(
        None, "authorities (PEM) of clients, which then must show a certificate", SECURITY, example="FILE"
    )
    token_file: str | None = setting(
        None,
        "tokens that clients must send, one a line with the methods that it may call (none: all); "
        "read again when it changes",
        SECURITY,
        example="FILE",
        see="processes.md#tokens",
    )
    reflection: bool = setting(
        True, "tell clients such as grpcurl the services and messages", SECURITY, see="processes.md#tokens"
    )

    def __post_init__(self) -> None:
        check(self)
        for name, address in (("listen", self.listen), ("health_listen", self.health_listen)):
            if address is not None:
                check_address(name, address)
        _ = self.tls, self.metrics_tls, self.canary_options, self.explore_options
        if self.token_file is not None and self.tls is None and not is_loopback(self.listen):
            raise ConfigError(
                f"whoever sees a token on its way to {self.listen} may use it: set tls_cert and tls_key, "
                "or let --listen be an address of loopback behind a proxy that ends TLS"
            )
        if self.served_log is not None:
            check_served_log(self.served_log)
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
    def explore_options(self) -> ExploreOptions | None:
        """Parts of `explore`. Raises ConfigError for another form."""
        return None if self.explore is None else ExploreOptions.parse(self.explore)

    @property
    def tls(self) -> TlsFiles | None:
        """Files of the port of requests. Raises ConfigError for settings that do not go together."""
        return TlsFiles.of_settings(self.tls_cert, self.tls_key, self.tls_client_ca)


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
