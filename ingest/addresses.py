"""Addresses of logs (kafka://… and file:…) and admin connections to Kafka brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from livectr.kernels.errors import ConfigError, ConnectError


def kafka_servers(url: str) -> list[str]:
    """Split `kafka://host:port,host:port` into ["host:port", …].

    Raises:
        ConfigError: the address has another form.
    """
    scheme, _, rest = url.partition("://")
    servers = [server.strip() for server in rest.rstrip("/").split(",")]
    for server in servers:
        host, _, port = server.rpartition(":")
        if scheme != "kafka" or not host or not port.isdigit():
            raise ConfigError(f"broker address {url!r} is not kafka://HOST:PORT[,HOST:PORT]")
    return servers


def log_folder(url: str) -> Path:
    """Folder DIR of `file:DIR` or `file:///DIR`.

    Raises:
        ConfigError: the address has another form.
    """
    scheme, _, rest = url.partition(":")
    if scheme != "file" or not rest.strip("/"):
        raise ConfigError(f"log folder {url!r} is not file:DIR")
    return Path(rest.removeprefix("//"))


def no_answer(url: str) -> ConnectError:
    """Create the error for brokers that do not answer."""
    return ConnectError(f"no Kafka broker answers at {url}; start one or correct the address")


def connect_admin(url: str, timeout_s: float = 5.0) -> KafkaAdminClient:
    """Connect an admin client, a context manager, to the brokers of a URL.

    Raises:
        ConnectError: no broker answers.
    """
    servers = kafka_servers(url)
    try:
        with _quiet_client():
            return KafkaAdminClient(
                bootstrap_servers=servers,
                bootstrap_timeout_ms=int(timeout_s * 1000),
                client_id="livectr-admin",
            )
    except KafkaError as error:
        raise no_answer(url) from error


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence the Kafka client, which logs each failed attempt; ConnectError says the same in one
    sentence."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
