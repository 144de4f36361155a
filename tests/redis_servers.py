"""Redis-protocol servers in tests: a replica that lags, reads over all slots, a sentinel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pytest
import redis

from livectr.local.ports import free_ports
from tests.redis_cluster import Servers, ask, until_redis

SERVER_AND_CLUSTER = pytest.mark.parametrize("redis_url", ["server", "cluster"], indirect=True)
"""Mark of a test that runs on a single server and on the session's cluster; the fixture makes it empty."""


def stop_replicating(replica: redis.Redis, primary: redis.Redis) -> None:
    """Let a replica miss what its primary takes from here on."""
    replica.config_set("masteruser", "nobody")
    replica.config_set("masterauth", "nothing")
    ask(primary, "CLIENT", "KILL", "TYPE", "replica")
    until_redis(lambda: replica.info("replication")["master_link_status"] == "down")


class ClusterClient(redis.RedisCluster):
    """redis-py's client, whose MGET takes keys of any slot, as that of a single server does."""

    def mget(self, keys: Any, *args: Any) -> list[bytes | str | None]:
        return list(self.mget_nonatomic(keys, *args))


class Watched(Servers):
    """A primary, its replica, and a sentinel that may fail over alone."""

    SERVICE = "ads"

    def __init__(self) -> None:
        super().__init__()
        self.primary, self.replica, self.sentinel = free_ports(1), free_ports(1), free_ports(1)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel}/{self.SERVICE}"

    def __enter__(self) -> Self:
        self.start(self.primary, "--repl-diskless-sync-delay", "0")
        self.start(
            self.replica, "--replicaof", f"127.0.0.1 {self.primary}", "--repl-diskless-sync-delay", "0"
        )
        until_redis(lambda: self.client(self.replica).info("replication").get("master_link_status") == "up")
        path = self.config("sentinel.conf")
        path.write_text(
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.primary} 1\n"
            f"sentinel down-after-milliseconds {self.SERVICE} 500\n"
            f"sentinel failover-timeout {self.SERVICE} 3000\n"
        )
        self.start(self.sentinel, str(path), "--sentinel")
        until_redis(lambda: self._watched()["num-slaves"] == 1)
        return self

    def address(self) -> int:
        """Port of the primary that the sentinel names."""
        return int(self._watched()["port"])

    def _watched(self) -> Mapping[str, Any]:
        """State of the primary, as the sentinel sees it."""
        masters = self.client(self.sentinel).sentinel_masters()
        assert isinstance(masters, dict)
        state: Mapping[str, Any] = masters[self.SERVICE]
        return state
