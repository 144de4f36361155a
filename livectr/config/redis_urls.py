"""Redis URLs that cannot be used, told without the password that they may hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from livectr.store.layout import without_password
from livectr.store.redis_url import CLUSTER, SENTINEL
from livectr.store.redis_url import check_redis_url as check_address
from livectr.system.errors import ConfigError


def check_redis_url(url: str, where: str, schemes: Sequence[str]) -> None:
    """Check what redis-py would refuse with a traceback, or with a part of the password.

    Args:
        url: of Redis.
        where: begin of the sentence.
        schemes: begins of a URL.

    Raises:
        ConfigError: the URL has another scheme, a password that is not percent-encoded, or an unknown option.
    """
    if not url.startswith(tuple(schemes)):
        raise ConfigError(f"{where} is {_shown(url)!r}, but must begin with {' or '.join(schemes)}.")
    if _is_torn(url):
        raise ConfigError(
            f"{where} is {_shown(url)!r}: a password in a URL must have / ? # [ ] as %2F %3F %23 %5B %5D; "
            "or leave it out and set redis_password_file."
        )
    if url.startswith((*SENTINEL, *CLUSTER)):
        try:
            check_address(url)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    if re.match(r"(rediss?|unix)://[^?]*\?", url):
        from redis import ConnectionPool, RedisError

        try:
            ConnectionPool.from_url(url).make_connection()
        except (TypeError, ValueError, RedisError) as error:
            option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            what = f"redis-py has no option {option[1]!r}" if option else str(error)
            raise ConfigError(f"{where} is {_shown(url)!r}: {what}.") from None


def _is_torn(url: str) -> bool:
    """True if a character of the password ends the part of the URL that holds it."""
    scheme, _, rest = url.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(place) :]
    if scheme.endswith("unix") or "@" not in tail:
        return bool(re.search(r"[\[\]].*@", place))
    path = tail.partition("?")[0]
    ports = [host.rpartition(":")[2] for host in place.split(",") if ":" in host]
    return "@" in path or "#" in tail or ("@" not in place and not all(port.isdigit() for port in ports))


def _shown(url: str) -> str:
    """URL, or what was meant to be a URL, without its password."""
    return without_password(url) if "://" in url else re.sub(r".*@", "***@", url, flags=re.DOTALL)
