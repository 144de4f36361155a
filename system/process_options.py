"""Settings that trainers and servers share."""

from dataclasses import dataclass

from livectr.system.logs import FORMATS, LEVELS
from livectr.system.settings import setting
from livectr.system.tls import TlsFiles

BASICS, WATCHING, SECURITY = "Basics", "Starting, stopping, watching", "Security"


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Place in Redis, content and metrics of a process."""

    namespace: str = setting(
        "livectr",
        "prefix of all keys in Redis",
        BASICS,
        flag=True,
        commands=("train", "rank", "prerank", "recommend", "verify", "versions"),
    )
    content: str | None = setting(
        None,
        "folders of features of images or texts, images=DIR,texts=DIR2",
        BASICS,
        example="NAME=DIR",
        commands=("train", "rank", "prerank", "recommend", "verify", "versions"),
        see="images.md",
    )
    metrics_port: int = setting(
        0,
        "port of Prometheus metrics (0: none; rank r or worker w listens on port + r or w)",
        WATCHING,
        least=0,
        most=65535,
    )
    metrics_listen: str = setting(
        "127.0.0.1",
        "address that the metrics endpoint answers on (0.0.0.0 or :: are all interfaces)",
        WATCHING,
        example="ADDRESS",
    )
    metrics_tls_cert: str | None = setting(
        None,
        "certificate chain (PEM) of the metrics endpoint, then by https; read again when it changes",
        SECURITY,
        example="FILE",
        see="processes.md#tls",
    )
    metrics_tls_key: str | None = setting(
        None, "private key (PEM) of metrics_tls_cert", SECURITY, example="FILE"
    )
    metrics_tls_client_ca: str | None = setting(
        None,
        "authorities (PEM) of clients of the metrics endpoint, which then must show a certificate",
        SECURITY,
        example="FILE",
    )

    @property
    def metrics_tls(self) -> TlsFiles | None:
        """Files of the metrics endpoint. Raises ConfigError for settings that do not go together."""
        return TlsFiles.of_settings(
            self.metrics_tls_cert, self.metrics_tls_key, self.metrics_tls_client_ca, prefix="metrics_"
        )


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Start, log and probes of a process."""

    start_wait_s: float = setting(
        0.0,
        "time to wait at the start for a broker, a topic or Redis that is not there",
        WATCHING,
        least=0,
    )
    log_format: str = setting(
        "text",
        "lines on standard error: text, or json with time, level, role, rank, version and request id",
        WATCHING,
        among=FORMATS,
        see="processes.md#logs",
    )
    log_level: str = setting(
        "info", "least level of messages on standard error", WATCHING, among=LEVELS, flag=True
    )
    health_listen: str | None = setting(
        None,
        "also answer health checks here, without TLS: services live, startup, ready",
        WATCHING,
        example="HOST:PORT",
        see="processes.md#probes-of-a-server",
    )
