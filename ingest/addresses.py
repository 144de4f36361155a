"""Addresses of logs (kafka://… and file:…) and admin connections to Kafka brokers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from livectr.kernels.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_OPTIONS = ("ca", "cert", "key", "user", "password_file", "sasl")
_NEEDS = (("cert", "ca"), ("key", "ca"), ("cert", "key"), ("key", "cert"), ("user", "password_file"))
_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")
_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def kafka_servers(url: str) -> list[str]:
    """Split `kafka://host:port,host:port` into ["host:port", …]; options after "?" are left out.

    Raises:
        ConfigError: the address has another form.
    """
    scheme, _, rest = url.partition("?")[0].partition("://")
    if "@" in rest:
        raise ConfigError(
            f"broker address {_shown(url)!r}: user and password are options, "
            "such as kafka://HOST:PORT?ca=FILE&user=NAME&password_file=FILE"
        )
    servers = [server.strip() for server in rest.rstrip("/").split(",")]
    for server in servers:
        host, _, port = server.rpartition(":")
        if scheme != "kafka" or not host or not port.isdigit():
            raise ConfigError(f"broker address {_shown(url)!r} is not kafka://HOST:PORT[,HOST:PORT]")
    return servers


def kafka_options(url: str) -> dict[str, Any]:
    """Arguments of a Kafka client: servers, TLS and log-in.

        kafka://b0:9093,b1:9093?ca=/tls/ca.crt
        kafka://b0:9093?ca=/tls/ca.crt&cert=/tls/tls.crt&key=/tls/tls.key
        kafka://b0:9093?ca=/tls/ca.crt&user=ads&password_file=/run/kafka&sasl=SCRAM-SHA-512

    `ca=system` trusts the authorities of the machine. Without `ca` the connection is not encrypted. Files are
    read when a client connects.

    Raises:
        ConfigError: the address has another form, an option is unknown, or a file cannot be read.
    """
    given = check_kafka(url)
    options: dict[str, Any] = {"bootstrap_servers": kafka_servers(url)}
    for name, argument in (("ca", "ssl_cafile"), ("cert", "ssl_certfile"), ("key", "ssl_keyfile")):
        path = given.get(name, "system")
        if path != "system":
            _read(url, name, path)
            options[argument] = path
    if "user" in given:
        options["sasl_mechanism"] = given.get("sasl", _MECHANISMS[0])
        options["sasl_plain_username"] = given["user"]
        options["sasl_plain_password"] = _read(url, "password_file", given["password_file"])
    protocol = ("SASL_" if "user" in given else "") + ("SSL" if "ca" in given else "PLAINTEXT")
    return {**options, "security_protocol": protocol}


def check_kafka(url: str) -> dict[str, str]:
    """Options of an address, checked without reading a file.

    Raises:
        ConfigError: the address has another form, or its options do not go together.
    """
    kafka_servers(url)
    given = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    for name in given:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ConfigError(
                f"broker address {_shown(url)!r}: there is no option {name!r}; known are {known}"
            )
    for name, needed in _NEEDS:
        if name in given and needed not in given:
            raise ConfigError(f"broker address {_shown(url)!r}: {name} needs {needed}, too")
    if given.get("sasl", _MECHANISMS[0]) not in _MECHANISMS:
        raise ConfigError(f"broker address {_shown(url)!r}: sasl must be {' or '.join(_MECHANISMS)}")
    return given


def topic_address(url: str) -> tuple[str, str]:
    """Split `kafka://HOST:PORT/TOPIC` into the address of the brokers and the topic; options after "?" stay.

    Raises:
        ConfigError: the address has another form.
    """
    place, mark, options = url.partition("?")
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    if "@" in servers:
        kafka_servers(url)  # says what is wrong
    if not place.startswith("kafka://") or not _TOPIC_NAME.fullmatch(topic):
        raise ConfigError(f"topic address {_shown(url)!r} is not kafka://HOST:PORT/TOPIC")
    brokers = f"kafka://{servers}{mark}{options}"
    check_kafka(brokers)
    return brokers, topic


def _shown(url: str) -> str:
    """Address without the password that does not belong there."""
    url = re.sub(r"(?<=://).*@", "***@", url)
    return re.sub(r"([?&](?!password_file=)\w*password\w*=)[^&]*", r"\1***", url)


def _read(url: str, name: str, path: str) -> str:
    """First line of a file."""
    try:
        with Path(path).open() as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"broker address {_shown(url)!r}: {name} cannot be read ({error})") from None


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
    # Here, for servers check addresses without Kafka's package.
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    options = kafka_options(url)
    try:
        with _quiet_client():
            return KafkaAdminClient(
                **options,
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
