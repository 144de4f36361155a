"""Redis URLs: their forms and parts.

    redis://[USER:PASSWORD@]HOST:PORT[/DB]                          a single server
    redis+sentinel://[USER:PASSWORD@]HOST:PORT[,…]/SERVICE[/DB]     the primary that sentinels name
    redis+cluster://[USER:PASSWORD@]HOST:PORT[,…]                   a cluster; the nodes name the others

`rediss` in the place of `redis` is TLS to servers and sentinels alike; `unix://PATH` is a single server, too.
User and password are those of the servers. Options after `?` are redis-py's, such as `ssl_ca_certs` and
`socket_timeout`, and win over the caller's. `sentinel_username` and `sentinel_password` are of the sentinels.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from livectr.store.layout import without_password
from livectr.system.errors import ConfigError

SINGLE = ("redis://", "rediss://", "unix://")
SENTINEL = ("redis+sentinel://", "rediss+sentinel://")
CLUSTER = ("redis+cluster://", "rediss+cluster://")
SCHEMES = (*SINGLE, *SENTINEL, *CLUSTER)

_ADDRESS = re.compile(
    r"(?P<scheme>rediss?)\+(?P<kind>cluster|sentinel)://(?:(?P<user>[^/?]*)@)?"
    r"(?P<hosts>[^/?]*)(?:/(?P<path>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_OWN = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True)
class RedisAddress:
    """Parts of a URL of sentinels or of a cluster.

    Args:
        hosts: HOST and PORT of sentinels, or of nodes of the cluster.
        service: that the sentinels watch; "" for a cluster.
        options: of each connection to a server.
        sentinel_options: of each connection to a sentinel.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    options: dict[str, Any] = field(default_factory=dict)
    sentinel_options: dict[str, Any] = field(default_factory=dict)


def is_clustered(url: str) -> bool:
    """Tell if a URL names a cluster."""
    return url.startswith(CLUSTER)


def check_redis_url(url: str) -> None:
    """Raise ConfigError, with a sentence that says what to change, for a URL that cannot be used."""
    from redis.connection import parse_url  # half a second, which most commands spare

    try:
        if url.startswith((*SENTINEL, *CLUSTER)):
            parse_address(url)
        elif url.startswith(SINGLE):
            parse_url(url)  # type: ignore[no-untyped-call]
        else:
            raise ValueError(f"it must begin with {' or '.join(SCHEMES)}")
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{without_password(url)!r} is not a Redis URL such as redis://HOST:PORT ({error})"
        ) from None


def parse_address(url: str) -> RedisAddress:
    """Parts of a URL of sentinels or of a cluster. Raises ValueError."""
    import redis
    from redis.connection import SSLConnection, parse_url

    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError("it has another form")
    clustered = match["kind"] == "cluster"
    hosts = tuple(_host(word, 6379 if clustered else 26379) for word in match["hosts"].split(","))
    path = [unquote(word) for word in (match["path"] or "").split("/") if word]
    if clustered:
        if path not in ([], ["0"]):
            raise ValueError("a cluster has the database 0 alone: write no /DB")
        service = ""
    else:
        if not 1 <= len(path) <= 2:
            raise ValueError("after the sentinels comes /SERVICE, the name that they watch, or /SERVICE/DB")
        service = path[0]
    plain = f"{match['scheme']}://{match['user'] + '@' if match['user'] is not None else ''}-:1"
    options: dict[str, Any] = dict(parse_url(f"{plain}?{match['query'] or ''}"))  # type: ignore[no-untyped-call]
    for part in ("host", "port"):
        options.pop(part)
    if not clustered and len(path) == 2:
        if not path[1].isdigit():
            raise ValueError(f"the database {path[1]!r} is no number")
        options["db"] = int(path[1])
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    if "ssl" not in options and (tls := [name for name in options if name.startswith("ssl_")]):
        raise ValueError(f"{tls[0]} is an option of TLS: write rediss+{match['kind']}://")
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in _OWN if name in options}
    if clustered and own:
        raise ValueError("a cluster has no sentinels")
    known = set(inspect.signature(redis.Redis.__init__).parameters) - {"self", "host", "port", "retry"}
    if clustered:
        known.discard("db")
    if unknown := sorted(set(options) - known):
        raise ValueError(f"redis-py has no option {unknown[0]!r}")
    to_sentinels = {k: v for k, v in options.items() if k.startswith(("ssl", "socket_"))} | own
    return RedisAddress(hosts, service, options, to_sentinels)


def _host(text: str, port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]@,\s]+)(?::(?P<port>\d+))?", text)
    if match is None or not 0 < int(match["port"] or port) < 65_536:
        raise ValueError(f"{text!r} is no HOST:PORT; write HOST:PORT,HOST:PORT")
    return match["host"].strip("[]"), int(match["port"] or port)
