"""Addresses of logs (kafka://… and file:…) and admin connections to Kafka brokers."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from livectr.system.connections import connected
from livectr.system.errors import ConfigError, ConnectError, reason_of

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_USERS, _PASSWORDS = ("user", "user_file", "user_env"), ("password_file", "password_env")
_REGISTRY = ("registry_auth_file", "registry_auth_env", "registry_ca")
_OPTIONS = ("ca", "cert", "key", *_USERS, *_PASSWORDS, "sasl", "registry", *_REGISTRY)
_NEEDS = (
    *(("cert", "ca"), ("key", "ca"), ("cert", "key"), ("key", "cert")),
    *((name, "registry") for name in _REGISTRY),
)
_PROBE_S = 2.0
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


MOST_IN_FLIGHT = 1000
"""Most messages of a producer without an answer, if it is not idempotent. At its limit kafka-python's client
loops without a pause: a broker that hangs would cost a core."""


def kafka_options(url: str) -> dict[str, Any]:
    """Arguments of a Kafka client: servers, TLS and log-in.

        kafka://b0:9093,b1:9093?ca=/tls/ca.crt
        kafka://b0:9093?ca=/tls/ca.crt&cert=/tls/tls.crt&key=/tls/tls.key
        kafka://b0:9093?ca=/tls/ca.crt&user=ads&password_file=/run/kafka&sasl=SCRAM-SHA-512
        kafka://b0:9093?ca=system&user_env=KAFKA_USER&password_env=KAFKA_PASSWORD

    `ca=system` trusts the authorities of the machine. Without `ca` the connection is not encrypted. Files and
    variables of the environment are read when a client connects.

    Raises:
        ConfigError: the address has another form, an option is unknown, or a file or a variable cannot be
            read.
    """
    given = check_kafka(url)
    options: dict[str, Any] = {"bootstrap_servers": kafka_servers(url)}
    for name, argument in (("ca", "ssl_cafile"), ("cert", "ssl_certfile"), ("key", "ssl_keyfile")):
        path = given.get(name, "system")
        if path != "system":
            _read(url, name, path)
            options[argument] = path
    if "ca" in given:
        try:
            _context(given)
        except ssl.SSLError as error:
            names = " or ".join(name for name in ("ca", "cert", "key") if name in given)
            raise ConfigError(
                f"broker address {_shown(url)!r}: {names} is no PEM file of a certificate or key ({error})"
            ) from None
    if user := _first(_USERS, given):
        password = _first(_PASSWORDS, given)
        options["sasl_mechanism"] = given.get("sasl", _MECHANISMS[0])
        options["sasl_plain_username"] = _secret(url, user, given[user])
        options["sasl_plain_password"] = _secret(url, password, given[password])
    protocol = ("SASL_" if user else "") + ("SSL" if "ca" in given else "PLAINTEXT")
    return {**options, "security_protocol": protocol}


def registry_options(url: str) -> dict[str, Any] | None:
    """Arguments of the client of the schema registry that an address names; None: it names none.

        kafka://b0:9092?registry=http://registry:8081
        kafka://b0:9092?registry=https://registry&registry_ca=/tls/ca.crt&registry_auth_file=/run/registry

    The file or variable holds "user:password".

    Raises:
        ConfigError: as `kafka_options`.
    """
    given = check_kafka(url)
    if "registry" not in given:
        return None
    auth = _first(("registry_auth_file", "registry_auth_env"), given)
    return {
        "url": given["registry"],
        "auth": _secret(url, auth, given[auth]) if auth else None,
        "ca": given.get("registry_ca"),
    }


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
    for names in (_USERS, _PASSWORDS):
        if len(several := [name for name in names if name in given]) > 1:
            raise ConfigError(f"broker address {_shown(url)!r}: say {' or '.join(several)}, not both")
    user, password = _first(_USERS, given), _first(_PASSWORDS, given)
    if user and not password:
        raise ConfigError(f"broker address {_shown(url)!r}: {user} needs password_file or password_env, too")
    if not user and (other := password or ("sasl" if "sasl" in given else "")):
        raise ConfigError(f"broker address {_shown(url)!r}: {other} needs user, user_file or user_env, too")
    if "registry" in given and not given["registry"].startswith(("http://", "https://")):
        raise ConfigError(
            f"broker address {_shown(url)!r}: registry is not http://HOST:PORT or https://HOST:PORT"
        )
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
    return re.sub(r"([?&](?!password_(?:file|env)=)\w*password\w*=)[^&]*", r"\1***", url)


def _first(names: Iterable[str], given: Container[str]) -> str:
    """First of the names that is given; "" if none is."""
    return next((name for name in names if name in given), "")


def _secret(url: str, name: str, value: str) -> str:
    """User or password, from where its option says."""
    if name.endswith("_file"):
        return _read(url, name, value)
    if not name.endswith("_env"):
        return value
    if not os.environ.get(value):
        raise ConfigError(f"broker address {_shown(url)!r}: {name} names {value}, a variable that is not set")
    return os.environ[value]


def _read(url: str, name: str, path: str) -> str:
    """First line of a file."""
    try:
        with Path(path).open() as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"broker address {_shown(url)!r}: {name} cannot be read ({reason_of(error)})"
        ) from None


def log_folder(url: str) -> Path:
    """Folder DIR of `file:DIR` or `file:///DIR`.

    Raises:
        ConfigError: the address has another form.
    """
    scheme, _, rest = url.partition(":")
    if scheme != "file" or not rest.strip("/"):
        raise ConfigError(f"log folder {url!r} is not file:DIR")
    return Path(rest.removeprefix("//"))


def no_topic(missing: Iterable[str], place: str, existing: Iterable[str]) -> ConnectError:
    """Make the error for topics that a broker does not have.

    Args:
        missing: topics.
        place: of the broker, for the message.
        existing: its topics; those of Kafka's own are left out.
    """
    others = ", ".join(sorted(topic for topic in existing if not topic.startswith("__")))
    return ConnectError(
        f"there is no topic {', '.join(missing)} at {place}; "
        + (f"its topics are {others}" if others else "it has no topics yet")
    )


def no_answer(url: str) -> ConnectError:
    """Make the error for brokers that do not answer, or not as a client expects.

    A last attempt tells which of the two it is.
    """
    for server in kafka_servers(url):
        host, _, port = server.rpartition(":")
        try:
            trouble = _trouble(host.strip("[]"), int(port), check_kafka(url))
        except OSError:
            continue
        return ConnectError(f"the Kafka broker at {_shown(url)} does not answer as expected: {trouble}")
    return ConnectError(f"no Kafka broker answers at {_shown(url)}; start one or correct the address")


def _trouble(host: str, port: int, given: dict[str, str]) -> str:
    """Likely reason for which a listener refuses a client. Raises OSError: nothing listens."""
    speaks_tls, refused = _handshake(host, port, {})
    if "ca" not in given and speaks_tls:
        return "it speaks TLS; say ca=FILE, the authority of its certificate, or ca=system"
    if "ca" in given and not speaks_tls:
        return "it does not speak TLS; leave ca out, or name the port of its TLS listener"
    if "ca" in given:
        refused = _handshake(host, port, given)[1]
        if "CERTIFICATE_VERIFY_FAILED" in refused:
            return (
                f"its certificate does not pass ca={given['ca']} ({refused}); correct ca or the host's name"
            )
        if refused and "cert" not in given:
            return f"it wants a client's certificate ({refused}); say cert=FILE and key=FILE"
        if refused:
            return f"it refuses the certificate cert={given['cert']} ({refused}); take one that it trusts"
    if _first(_USERS, given):
        mechanism = given.get("sasl", _MECHANISMS[0])
        return f"it may refuse this user and password by {mechanism}; check both, and sasl"
    return "it may ask for a user and a password (user, password_file, sasl), or be busy"


def _context(given: dict[str, str]) -> ssl.SSLContext:
    """TLS of an address. Raises SSLError: a file is no PEM."""
    context = ssl.create_default_context(cafile=None if given.get("ca") == "system" else given.get("ca"))
    if "cert" in given:
        context.load_cert_chain(given["cert"], given["key"])
    return context


def _handshake(host: str, port: int, given: dict[str, str]) -> tuple[bool, str]:
    """Tell if a listener speaks TLS, and why it or we refuse a connection ("": neither does).

    Args:
        host: name or address of the listener.
        port: of the listener.
        given: options of the address; without `ca` every certificate is accepted.
    """
    context = _context(given)
    if "ca" not in given:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connected(host, port, _PROBE_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                secure.settimeout(0.5)
                secure.recv(1)  # with TLS 1.3 a server refuses a client's certificate after the handshake
        except TimeoutError:
            return context.session_stats()["connect_good"] > 0, ""
        except ssl.SSLCertVerificationError as error:
            return True, f"CERTIFICATE_VERIFY_FAILED: {error.verify_message}"
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or ""), error.reason or str(error)
        except OSError as error:
            return False, str(error)
    return True, ""


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
    """Silence the Kafka client, which logs each failed attempt.

    ConnectError says the same in one sentence.
    """
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
