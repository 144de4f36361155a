"""Redis-protocol servers of tests and benchmarks: real processes without persistence, perhaps a cluster."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from livectr.local.ports import free_ports
from livectr.local.valkey import valkey_program
from livectr.system.children import with_parent
from tests.waiting import until

HANDSHAKE_POLLS = 200
"""Polls of a cluster after which its nodes are introduced again, 10 ms apart at least."""
SLOTS = 16384
"""Hash slots of a cluster."""


def until_redis(done: Callable[[], object]) -> None:
    """Wait; a server that is not there yet, or has another role, counts as not done."""
    until(done, despite=(redis.ConnectionError, redis.TimeoutError, redis.ResponseError))


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
        command = [str(valkey_program()), *words, *usual]
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


class Cluster(Servers):
    """Primaries with equal ranges of slots.

    Args:
        replicas: for each primary.
        node_timeout_ms: silence after which the other nodes take a node for dead.

    Attributes:
        ports: of the primaries, in the order of their slots.
        spare: port of a primary → port of its replica.
    """

    def __init__(self, primaries: int = 3, replicas: int = 0, node_timeout_ms: int = 1000) -> None:
        super().__init__()
        count = primaries * (1 + replicas)
        first = free_ports(2 * count)
        every = range(first, first + count)
        self.ports: list[int] = [*every[:primaries]]
        self.spare = dict(zip(self.ports, every[primaries:], strict=False))
        self._bus, self._node_timeout_ms = count, node_timeout_ms

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
        slot = int(ask(self.client(self.ports[0]), "CLUSTER KEYSLOT", name))
        return self.ports[min(slot * len(self.ports) // SLOTS, len(self.ports) - 1)]

    def begin(self) -> None:
        """Start the servers and introduce them to each other; `finish` waits until they are a cluster."""
        every = [*self.ports, *self.spare.values()]
        for port in every:
            self.start(
                port,
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(self._node_timeout_ms)),
                *("--cluster-port", str(port + self._bus), "--repl-diskless-sync-delay", "0"),
            )
        clients = {port: self.client(port) for port in every}
        until_redis(lambda: all(ask(client, "PING") for client in clients.values()))
        for number, port in enumerate(self.ports):
            ends = [SLOTS * n // len(self.ports) for n in (number, number + 1)]
            ask(clients[port], "CLUSTER ADDSLOTSRANGE", ends[0], ends[1] - 1)
            ask(clients[port], "CLUSTER SET-CONFIG-EPOCH", number + 1)
        self._introduce(clients)

    def _introduce(self, clients: Mapping[int, redis.Redis]) -> None:
        for first, second in itertools.combinations(clients, 2):
            ask(clients[first], "CLUSTER MEET", "127.0.0.1", second, second + self._bus)

    def finish(self) -> None:
        """Wait until all slots are served, and replicas follow."""
        clients = {port: self.client(port) for port in (*self.ports, *self.spare.values())}
        known = str(len(clients))

        def everywhere(field: str, value: str) -> bool:
            return all(ask(client, "CLUSTER INFO")[field] == value for client in clients.values())

        def replicates(replica: redis.Redis, name: str) -> bool:
            return bool(ask(replica, "CLUSTER REPLICATE", name))

        polls = itertools.count(1)

        def acquainted() -> bool:
            if everywhere("cluster_known_nodes", known):
                return True
            # A node forgets a handshake that takes longer than its time-out: on a starved machine, repeat it.
            if not next(polls) % HANDSHAKE_POLLS:
                self._introduce(clients)
            return False

        until_redis(acquainted)
        for primary, port in self.spare.items():
            name = ask(clients[primary], "CLUSTER MYID").decode()
            until_redis(partial(replicates, clients[port], name))
        until_redis(lambda: everywhere("cluster_state", "ok"))
        spares = [clients[port] for port in self.spare.values()]
        until_redis(
            lambda: all(ask(c, "INFO", "replication").get("master_link_status") == "up" for c in spares)
        )

    def __enter__(self) -> Self:
        self.begin()
        self.finish()
        return self


def ask(client: redis.Redis, *words: object) -> Any:
    """Answer to a command."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]
