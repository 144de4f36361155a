"""Table of all settings: defaults, help, the commands that have their flags, limits.

A name that no setting has is an error in every source: an ignored misspelling would be found in production.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_type_hints

from livectr.config.field import EVERY, INSPECT, VERIFY, VERSIONS, setting
from livectr.config.server_settings import ServeSettings
from livectr.config.trainer_settings import TrainSettings
from livectr.serving.options import ServeOptions as S
from livectr.system.logs import FORMATS, LEVELS
from livectr.trainer.options import TrainOptions as T

Options = TypeVar("Options")


@dataclass(frozen=True)
class CommonSettings:
    """Settings of trainers and servers alike."""

    pipeline: str | None = setting(
        None, "the pipeline file", commands=EVERY + VERIFY + VERSIONS, example="FILE.py"
    )
    namespace: str = setting(T.namespace, "prefix of all keys in Redis", commands=EVERY + VERIFY + VERSIONS)
    metrics_port: int = setting(
        T.metrics_port,
        "port of Prometheus metrics (0: none; rank r or worker w listens on port + r or w)",
        commands=EVERY,
        least=0,
        most=65535,
    )
    metrics_listen: str = setting(
        T.metrics_listen,
        "address that the metrics endpoint answers on (0.0.0.0 or :: are all interfaces)",
        commands=EVERY,
        example="ADDRESS",
    )
    metrics_tls_cert: str | None = setting(
        T.metrics_tls_cert,
        "certificate chain (PEM) of the metrics endpoint, then by https; read again when it changes",
        commands=EVERY,
        example="FILE",
    )
    metrics_tls_key: str | None = setting(
        T.metrics_tls_key, "private key (PEM) of --metrics-tls-cert", commands=EVERY, example="FILE"
    )
    metrics_tls_client_ca: str | None = setting(
        T.metrics_tls_client_ca,
        "authorities (PEM) of clients of the metrics endpoint, which then must show a certificate",
        commands=EVERY,
        example="FILE",
    )
    start_wait_s: float = setting(
        S.start_wait_s,
        "time to wait at the start for a broker, a topic or Redis that is not there",
        commands=EVERY,
        least=0,
    )
    log_format: str = setting(
        S.log_format,
        "lines on standard error: text, or json with time, level, role, rank, version and request id",
        commands=EVERY,
        example="text|json",
        among=FORMATS,
    )
    log_level: str = setting(
        S.log_level,
        "least level of messages on standard error",
        commands=EVERY,
        example="|".join(LEVELS),
        among=LEVELS,
    )
    health_listen: str | None = setting(
        S.health_listen,
        "also answer health checks here, without TLS: services live, startup, ready",
        commands=EVERY,
        example="HOST:PORT",
    )
    redis_password_file: str | None = setting(
        None,
        "file whose first line is the password of --publish or --redis",
        commands=EVERY + INSPECT + VERIFY + VERSIONS,
        example="FILE",
    )


@dataclass(frozen=True)
class Settings(ServeSettings, TrainSettings, CommonSettings):
    """Settings of every process; their order is that of `--help`: common, trainer, servers."""


SECRET = ("publish", "redis")
"""URLs that may hold a password. A child gets them in its environment, not in its command line."""
FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}
TYPES: dict[str, Any] = get_type_hints(Settings)
IN_BYTES = {"gpu_budget", "rank_memory", *(name for name in FIELDS if name.endswith("_bytes"))}


def options_of(kind: type[Options], settings: Settings, **more: Any) -> Options:
    """Options object whose fields are settings of the same names, and `more`."""
    names = {f.name for f in dataclasses.fields(cast(Any, kind))} - set(more)
    return kind(**{name: getattr(settings, name) for name in names}, **more)
