"""Redis-protocol servers in a cluster, and behind a sentinel: real processes, without persistence."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from livectr.kernels.process.children import with_parent
from livectr.local.ports import free_ports
from livectr.local.valkey import _program

PATIENCE_S = 60.0


def until(done: Callable[[], bool]) -> None:
    """Wait; servers that are not there yet count as not done."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(redis.ConnectionError, redis.ResponseError):
            if done():
                return
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Servers:
    """Server processes, as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="livectr-servers-")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, port: int, *words: str) -> None:
        """Start a server, with words of its command line."""
        folder = Path(self._folder.name) / str(port)
        folder.mkdir(exist_ok=True)
        usual = ["--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--port", str(port)]
        command = [str(_program()), *words, *usual]
        with (folder / "log").open("ab") as log:
            self.processes[port] = subprocess.Popen(with_parent(command), stdout=log, stderr=log)

    def kill(self, port: int) -> None:
        """End a server at once."""
        process = self.processes.pop(port)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def client(self, port: int) -> redis.Redis:
        return redis.Redis("127.0.0.1", port, socket_timeout=10)

    def config(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for port in [*self.processes]:
            self.kill(port)
        self._folder.cleanup()


def stop_replicating(replica: redis.Redis, primary: redis.Redis) -> None:
    """Let a replica miss what its primary takes from here on."""
    replica.config_set("masteruser", "nobody")
    replica.config_set("masterauth", "nothing")
    primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
    until(lambda: replica.info("replication")["master_link_status"] == "down")


class Cluster(Servers):
    """Primaries with equal ranges of slots.

    Args:
        replicas: for each primary.

    Attributes:
        ports: of the primaries, in the order of their slots.
        spare: port of a primary → port of its replica.
    """

    def __init__(self, primaries: int = 3, replicas: int = 0) -> None:
        super().__init__()
        count = primaries * (1 + replicas)
        first = free_ports(2 * count)
        every = range(first, first + count)
        self.ports = [*every[:primaries]]
        self.spare = dict(zip(self.ports, every[primaries:], strict=False))
        self._bus = count

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def clients(self) -> list[redis.Redis]:
        """Clients of the primaries."""
        return [self.client(port) for port in self.ports]

    def empty(self) -> None:
        for client in self.clients():
            client.flushall()

    def owner(self, name: bytes) -> int:
        """Port of the primary that held a key's slot at the start."""
        slot = self.client(self.ports[0]).execute_command("CLUSTER KEYSLOT", name)
        return self.ports[min(slot * len(self.ports) // 16384, len(self.ports) - 1)]

    def begin(self) -> None:
        """Start the servers and introduce them to each other; `finish` waits until they are a cluster."""
        every = [*self.ports, *self.spare.values()]
        for port in every:
            self.start(
                port,
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
                *("--cluster-port", str(port + self._bus), "--repl-diskless-sync-delay", "0"),
            )
        clients = {port: self.client(port) for port in every}
        until(lambda: all(client.ping() for client in clients.values()))
        for number, port in enumerate(self.ports):
            ends = [16384 * n // len(self.ports) for n in (number, number + 1)]
            clients[port].execute_command("CLUSTER ADDSLOTSRANGE", ends[0], ends[1] - 1)
            clients[port].execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for first, second in itertools.combinations(every, 2):
            clients[first].execute_command("CLUSTER MEET", "127.0.0.1", second, second + self._bus)

    def finish(self) -> None:
        """Wait until all slots are served, and replicas follow."""
        clients = {port: self.client(port) for port in (*self.ports, *self.spare.values())}
        known = str(len(clients))
        until(lambda: all(c.cluster("INFO")["cluster_known_nodes"] == known for c in clients.values()))
        for primary, port in self.spare.items():
            name = clients[primary].execute_command("CLUSTER MYID").decode()
            until(lambda port=port, name=name: bool(clients[port].execute_command("CLUSTER REPLICATE", name)))
        until(lambda: all(c.cluster("INFO")["cluster_state"] == "ok" for c in clients.values()))
        spares = [clients[port] for port in self.spare.values()]
        until(lambda: all(c.info("replication").get("master_link_status") == "up" for c in spares))

    def __enter__(self) -> Self:
        self.begin()
        self.finish()
        return self


class ClusterClient(redis.RedisCluster):
    """redis-py's client, whose MGET takes keys of any slot, as that of a single server does."""

    def mget(self, keys: object, *args: object) -> list[object]:
        return list(self.mget_nonatomic(keys, *args))  # type: ignore[arg-type]


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
        until(lambda: self.client(self.replica).info("replication").get("master_link_status") == "up")
        path = self.config("sentinel.conf")
        path.write_text(
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.primary} 1\n"
            f"sentinel down-after-milliseconds {self.SERVICE} 500\n"
            f"sentinel failover-timeout {self.SERVICE} 3000\n"
        )
        self.start(self.sentinel, str(path), "--sentinel")
        until(lambda: self.client(self.sentinel).sentinel_masters()[self.SERVICE]["num-slaves"] == 1)
        return self

    def address(self) -> int:
        """Port of the primary that the sentinel names."""
        return int(self.client(self.sentinel).sentinel_masters()[self.SERVICE]["port"])
