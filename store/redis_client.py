"""Client of a Redis URL: a single server, the primary that sentinels name, or a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from livectr.store.layout import without_password
from livectr.store.measured_cluster import MeasuredCluster
from livectr.store.measured_redis import MeasuredRedis
from livectr.store.redis_errors import REDIS_ERRORS, refusal
from livectr.store.redis_url import SINGLE, check_redis_url, is_clustered, parse_address
from livectr.system.errors import ConnectError

RedisClient = MeasuredRedis | MeasuredCluster


def connect_redis(
    name: str, url: str, *, timeout_s: float, retries: int = 0, beside: RedisClient | None = None
) -> RedisClient:
    """Make the client of a URL; it connects with its first command.

    Args:
        name: of the client in the metrics.
        url: redis://, rediss://, or with +sentinel or +cluster.
        timeout_s: of each step, at most 5 s of a connect, unless the URL says otherwise.
        retries: times that a command is repeated, at once, whose connection broke.
        beside: another client of the URL. Behind sentinels, the new client asks the server that this client
            has been sent to: what they read is of the same primary.

    Raises:
        ConfigError: the URL cannot be used.
    """
    check_redis_url(url)
    usual: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": min(timeout_s, 5.0)}
    retry = Retry(NoBackoff(), retries)
    if url.startswith(SINGLE):
        return MeasuredRedis.named(name, url, retry=retry, **usual)
    address = parse_address(url)
    if is_clustered(url):
        return MeasuredCluster(name, address.hosts, usual | address.options, retries)
    pool = beside.connection_pool if isinstance(beside, MeasuredRedis) else None
    sentinels = (
        _Followed(pool.sentinel_manager)
        if isinstance(pool, SentinelConnectionPool)
        else _Sentinels(address.hosts, usual | address.sentinel_options)
    )
    client: MeasuredRedis = sentinels.master_for(  # type: ignore[no-untyped-call]
        address.service, redis_class=MeasuredRedis, retry=retry, **(usual | address.options)
    )
    return client.measured_as(name)


@contextmanager
def connected(url: str) -> Iterator[RedisClient]:
    """Client of a Redis, for an operator's command.

    Raises:
        ConnectError: it does not answer or refuses.
        ConfigError: the URL cannot be used.
    """
    try:
        with connect_redis("operator", url, timeout_s=5) as client:
            yield client
    except REDIS_ERRORS as error:
        raise ConnectError(refusal(without_password(url), error, "--redis")) from None


class _Sentinels(Sentinel):
    """Sentinels, and the primary that they named last."""

    def __init__(self, hosts: Iterable[tuple[str, int]], options: dict[str, Any]) -> None:
        super().__init__(hosts, sentinel_kwargs={"retry": Retry(NoBackoff(), 0), **options})  # type: ignore[no-untyped-call]
        self.known: tuple[str, int] | None = None

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            self.known = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:  # redis-py asks the others after connections that broke alone
            raise MasterNotFoundError(f"a sentinel refuses: {error}") from error
        return self.known


class _Followed(Sentinel):
    """Stands for sentinels that another client asks."""

    def __init__(self, leader: _Sentinels) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]
        self._leader = leader

    @property
    def known(self) -> tuple[str, int] | None:
        return self._leader.known

    def discover_master(self, service_name: str) -> tuple[str, int]:
        if self.known is None:
            raise MasterNotFoundError(f"no sentinel has named the primary of {service_name!r} yet")
        return self.known
