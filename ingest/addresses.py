"""Addresses of logs (kafka://… and file:…), and connections for the administration of Kafka brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from livectr.kernels.errors import ConfigError, ConnectError


def kafka_servers(url: str) -> list[str]:
    """`kafka://host:port,host:port` → ["host:port", …]; ConfigError when it is not of that form."""
    scheme, _, rest = url.partition("://")
    servers = [server.strip() for server in rest.rstrip("/").split(",")]
    for server in servers:
        host, _, port = server.rpartition(":")
        if scheme != "kafka" or not host or not port.isdigit():
            raise ConfigError(f"broker address {url!r} is not kafka://HOST:PORT[,HOST:PORT]")
    return servers


def log_folder(url: str) -> Path:
    """`file:DIR` or `file:///DIR` → DIR; ConfigError when it is not of that form."""
    scheme, _, rest = url.partition(":")
    if scheme != "file" or not rest.strip("/"):
        raise ConfigError(f"log folder {url!r} is not file:DIR")
    return Path(rest.removeprefix("//"))


def no_answer(url: str) -> ConnectError:
    """The error for brokers that do not answer."""
    return ConnectError(f"no Kafka broker answers at {url}; start one or correct the address")


def connect_admin(url: str, timeout_s: float = 5.0) -> KafkaAdminClient:
    """An admin client of the brokers in `url` (a context manager); ConnectError when none answers."""
    servers = kafka_servers(url)
    try:
        with _said_once():
            return KafkaAdminClient(
                bootstrap_servers=servers,
                bootstrap_timeout_ms=int(timeout_s * 1000),
                client_id="livectr-admin",
            )
    except KafkaError as error:
        raise no_answer(url) from error


@contextmanager
def _said_once() -> Iterator[None]:
    """The client logs each failed attempt to connect; ConnectError says the same in one sentence."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
