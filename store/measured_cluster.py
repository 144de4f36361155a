"""Client of a Redis Cluster with the methods of `MeasuredRedis`: one round trip of each node that has a key.

redis-py's RedisCluster knows the nodes and their slots, and follows redirections. Its own pipeline asks a
node for the keys of each EVALSHA, and examines every connection that it takes. So commands on many slots are
grouped by node here, and all nodes are asked before the first answer is awaited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

from hiredis import pack_command
from redis import exceptions as redis
from redis._parsers.helpers import parse_info
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.cluster import ClusterNode, RedisCluster
from redis.commands.core import Script
from redis.connection import ConnectionPool
from redis.retry import Retry

from livectr.store.cluster_nodes import given, look_up, primaries, remember
from livectr.store.kept_connections import KeptConnections, read_together
from livectr.store.keyspace import by_slot, slot_of
from livectr.store.measured_redis import SCAN_COUNT, ScriptCall, round_trip, show_client, shut_down
from livectr.store.packed_calls import PackedCall, answers_of
from livectr.store.redis_errors import REDIS_ERRORS, of_cluster

T = TypeVar("T")
_THREADS = 16
"""Nodes that are written to at once."""
_STEPS = 3
"""Times that commands are sent to the nodes while answers say that slots have moved."""


class MeasuredCluster:
    """Client of a cluster; it connects with its first command. Thread-safe.

    Every method raises errors of REDIS_ERRORS, as `of_cluster` names them.

    Args:
        name: of the client in the metrics.
        nodes: HOST and PORT of some nodes; they name the others.
        options: of each connection, as of `redis.Redis`.
        retries: times that a command is repeated whose connection broke.
    """

    def __init__(
        self, name: str, nodes: Sequence[tuple[str, int]], options: Mapping[str, Any], retries: int
    ) -> None:
        self._name, self._nodes, self._options, self._retries = name, nodes, options, retries
        self._lock = threading.Lock()
        self._made: RedisCluster | None = None
        self._kept: dict[int, KeptConnections] = {}
        self._scripts: dict[str, Any] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._refreshing = False
        show_client(name)

    # ── commands on keys of one slot ──

    def get(self, name: str | bytes) -> Any:
        """GET: bytes, or None of a missing key."""
        return self._run(lambda cluster: cluster.get(name))

    def strlen(self, name: str) -> int:
        """STRLEN: bytes of a value; 0 of a missing key."""
        return int(self._run(lambda cluster: cluster.strlen(name)))

    def getrange(self, name: str, start: int, end: int) -> Any:
        """GETRANGE: bytes start … end of a value."""
        return self._run(lambda cluster: cluster.getrange(name, start, end))

    def set(self, name: str, value: bytes, ex: int | None = None) -> Any:
        """SET, for `ex` seconds if that is given."""
        return self._run(lambda cluster: cluster.set(name, value, ex=ex))

    def delete(self, name: str) -> int:
        """DEL: number of keys that were there."""
        return self._run(lambda cluster: cluster.delete(name))

    def exists(self, name: str) -> int:
        """EXISTS: 1 or 0."""
        return int(self.get(name) is not None)

    def call(self, script: ScriptCall) -> Any:
        """Run a script on the node of its keys."""
        return self._run(
            lambda cluster: self._script(cluster, script.source)(keys=script.keys, args=script.args)
        )

    def ping(self) -> bool:
        """Ask every primary."""
        with self._measured():
            for answer in self._ask_primaries(_packed(b"PING"), None):
                if isinstance(answer, BaseException):
                    raise answer
        return True

    # ── commands on keys of many slots ──

    def fetch(self, names: Sequence[bytes], deadline: float | None = None) -> list[bytes | None]:
        """MGET of each slot, in one round trip; see `MeasuredRedis.fetch`.

        Keys of a slot are read at one instant. Keys of a slot that moves are read one by one, in order.
        """
        values: list[bytes | None] = [None] * len(names)
        with self._measured():
            left, patience = by_slot(names), self._retries if deadline is None else 0
            for _ in range(_STEPS):
                try:
                    left = self._fetch_slots(names, left, values, deadline)
                except (redis.ConnectionError, redis.TimeoutError):
                    if patience == 0:
                        raise
                    patience -= 1
                if not left:
                    return values
                look_up(self._cluster(), self._nodes)
            raise redis.TryAgainError("the slots of the cluster move again and again")

    def call_all(self, scripts: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in a single round trip of each node."""
        answers: list[Any] = [None] * len(scripts)
        if not scripts:
            return answers
        with self._measured():
            cluster, left = self._cluster(), list(range(len(scripts)))
            for _ in range(_STEPS):
                groups: dict[str, list[int]] = {}
                for i in left:
                    groups.setdefault(self._node(scripts[i].keys[0]).name, []).append(i)
                for group, found in self._each(groups, lambda of: self._pipeline(of, scripts)):
                    for i, answer in zip(group, found, strict=True):
                        answers[i] = answer
                left = [i for i in left if isinstance(answers[i], redis.MovedError)]
                for answer in answers:
                    if isinstance(answer, BaseException) and not isinstance(answer, redis.MovedError):
                        raise answer
                if not left:
                    return answers
                look_up(cluster, self._nodes)
            raise answers[left[0]]

    def call_packed(self, calls: Iterable[PackedCall], source: str) -> Iterator[Any]:
        """Run calls of a script, some at once on each node; iterate over their answers, in any order."""
        again: list[ScriptCall] = []
        with self._measured():
            for loaded in self._ask_primaries(_packed(b"SCRIPT", b"LOAD", source.encode()), None):
                if isinstance(loaded, BaseException):
                    raise loaded
            for call, answer in answers_of(calls, self._pool_of):
                if isinstance(answer, redis.NoScriptError | redis.MovedError | redis.AskError):
                    again.append(call.plain())
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    yield answer
        yield from self.call_all(again)

    def remove(self, names: Iterable[str | bytes]) -> int:
        """UNLINK of keys; returns how many there were."""
        every = [name.encode() if isinstance(name, str) else name for name in names]
        with self._measured():
            groups: dict[str, list[list[bytes]]] = {}
            for places in by_slot(every).values():
                slot = [every[i] for i in places]
                groups.setdefault(self._node(slot[0]).name, []).append(slot)
            removed = 0
            for _, counts in self._each(groups, self._unlink):
                removed += sum(counts)
            return removed

    def scan_all(self, pattern: str) -> Iterator[list[bytes]]:
        """Names of the keys of all primaries that match a pattern, in parts."""
        for node in self._run(primaries):
            cursor, first = 0, True
            while cursor or first:
                cursor, names = self._run(partial(_scan, node=node, cursor=cursor, pattern=pattern))
                first = False
                if names:
                    yield names

    # ── the servers ──

    def infos(self, *section: str, deadline: float | None = None) -> list[dict[str, Any]]:
        """INFO of each primary, in one round trip."""
        command = _packed(b"INFO", *(word.encode() for word in section))
        with self._measured():
            answers = self._ask_primaries(command, deadline)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return [cast("dict[str, Any]", parse_info(text)) for text in answers]  # type: ignore[no-untyped-call]

    def run_ids(self, names: Sequence[str]) -> tuple[str, ...]:
        """Word that the process which holds each key has for itself."""
        with self._measured():
            nodes = {node.name: node for node in (self._node(name) for name in names)}
            ids = {
                name: str(self._cluster().get_redis_connection(node).info("server").get("run_id", ""))
                for name, node in nodes.items()
            }
            return tuple(ids.get(self._node(name).name, "moved meanwhile") for name in names)

    def subscription(self, channel: str, near: str) -> PubSub:
        """Subscribe to a channel on the node that holds a key; nodes pass messages on to each other."""
        with self._measured():
            subscription: PubSub = self._cluster().pubsub(  # type: ignore[no-untyped-call]
                node=self._node(near), ignore_subscribe_messages=True
            )
            subscription.subscribe(channel)
            return subscription

    def interrupt(self) -> None:
        """Break the connections in use; see `MeasuredRedis.interrupt`."""
        cluster = self._made
        if cluster is not None:
            for node in cluster.nodes_manager.startup_nodes.values():
                if node.redis_connection is not None:
                    shut_down(node.redis_connection.connection_pool)

    def close(self) -> None:
        """Close all connections and end the threads."""
        with self._lock:
            cluster, self._made, self._kept = self._made, None, {}
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> MeasuredCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── inside ──

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Measure a block as a round trip; its errors are those of a cluster. They let nodes be looked up."""
        with round_trip(self._name):
            try:
                yield
            except REDIS_ERRORS as error:
                mended = of_cluster(error)
                if isinstance(mended, redis.ConnectionError | redis.TimeoutError | redis.ClusterDownError):
                    self._look_up_nodes()
                if mended is error:
                    raise
                raise mended from error

    def _run(self, command: Callable[[RedisCluster], T]) -> T:
        with self._measured():
            return command(self._cluster())

    def _cluster(self) -> RedisCluster:
        """Client of redis-py, which looks up the nodes when it is made."""
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    made = RedisCluster(
                        startup_nodes=given(self._nodes),
                        retry=Retry(NoBackoff(), self._retries),
                        dynamic_startup_nodes=False,
                        **self._options,
                    )
                    remember(made, self._nodes)
                    self._made = made
                made = self._made
        return made

    def _look_up_nodes(self) -> None:
        """Look up the nodes in a thread: a request that has met a dead node cannot wait for it."""
        with self._lock:
            cluster = self._made
            if cluster is None or self._refreshing:
                return
            self._refreshing = True

        def refresh() -> None:
            try:
                with suppress(*REDIS_ERRORS):  # the next error asks again
                    look_up(cluster, self._nodes)
            finally:
                self._refreshing = False

        threading.Thread(target=refresh, name="cluster-nodes", daemon=True).start()

    def _node(self, name: str | bytes) -> ClusterNode:
        """Primary that holds a key."""
        slot = slot_of(name.encode() if isinstance(name, str) else name)
        return self._cluster().nodes_manager.get_node_from_slot(slot)

    def _pool_of(self, call: PackedCall) -> ConnectionPool:
        return self._cluster().get_redis_connection(self._node(call.key)).connection_pool

    def _kept_to(self, node: ClusterNode) -> KeptConnections:
        pool = self._cluster().get_redis_connection(node).connection_pool
        kept = self._kept.get(id(pool))
        if kept is None or kept.pool is not pool:
            kept = self._kept[id(pool)] = KeptConnections(pool)
        return kept

    def _fetch_slots(
        self,
        names: Sequence[bytes],
        slots: Mapping[int, list[int]],
        values: list[bytes | None],
        deadline: float | None,
    ) -> dict[int, list[int]]:
        """Read the places of each slot into `values`; returns slots that have moved to another node."""
        manager = self._cluster().nodes_manager
        nodes: dict[str, tuple[ClusterNode, list[int]]] = {}
        for slot in slots:
            node = manager.get_node_from_slot(slot)
            nodes.setdefault(node.name, (node, []))[1].append(slot)
        asked = []
        for node, some in nodes.values():
            commands = [_packed(b"MGET", *(names[i] for i in slots[slot])) for slot in some]
            asked.append((self._kept_to(node), b"".join(commands), len(commands)))
        moved: dict[int, list[int]] = {}
        single: list[int] = []
        for (_, some), answers in zip(nodes.values(), read_together(asked, deadline), strict=True):
            for slot, answer in zip(some, answers, strict=True):
                if isinstance(answer, redis.MovedError):
                    moved[slot] = slots[slot]
                elif isinstance(answer, redis.AskError | redis.TryAgainError):
                    single += slots[slot]
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    for place, value in zip(slots[slot], answer, strict=True):
                        values[place] = value
        for place in single:
            if deadline is not None and time.monotonic() >= deadline:
                raise redis.TimeoutError("a slot of the cluster moves; its keys were not read in time")
            values[place] = cast("bytes | None", self._cluster().get(names[place]))
        return moved

    def _ask_primaries(self, command: bytes, deadline: float | None) -> list[Any]:
        asked = [(self._kept_to(node), command, 1) for node in primaries(self._cluster())]
        return [answer for (answer,) in read_together(asked, deadline)]

    def _each(
        self, groups: Mapping[str, list[T]], work: Callable[[tuple[ClusterNode, list[T]]], list[Any]]
    ) -> list[tuple[list[T], list[Any]]]:
        """Work on the groups of all nodes at once."""
        cluster = self._cluster()
        jobs = []
        for name, group in groups.items():
            node = cluster.nodes_manager.get_node(node_name=name)
            if node is None:
                raise redis.TryAgainError("the nodes of the cluster change")
            jobs.append((node, group))
        if len(jobs) == 1:
            return [(jobs[0][1], work(jobs[0]))]
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cluster")
            threads = self._threads
        futures = [threads.submit(work, job) for job in jobs]
        return [(group, future.result()) for (_, group), future in zip(jobs, futures, strict=True)]

    def _pipeline(self, job: tuple[ClusterNode, list[int]], scripts: Sequence[ScriptCall]) -> list[Any]:
        cluster, (node, places) = self._cluster(), job
        pipe = cluster.get_redis_connection(node).pipeline(transaction=False)
        for i in places:
            self._script(cluster, scripts[i].source)(keys=scripts[i].keys, args=scripts[i].args, client=pipe)
        return pipe.execute(raise_on_error=False)

    def _unlink(self, job: tuple[ClusterNode, list[list[bytes]]]) -> list[Any]:
        pipe = self._cluster().get_redis_connection(job[0]).pipeline(transaction=False)
        for names in job[1]:
            pipe.unlink(*names)
        return pipe.execute()

    def _script(self, cluster: RedisCluster, source: str) -> Any:
        if source not in self._scripts:
            self._scripts[source] = Script(cluster, source)
        return self._scripts[source]


def _scan(cluster: RedisCluster, *, node: ClusterNode, cursor: int, pattern: str) -> tuple[int, list[bytes]]:
    client = cluster.get_redis_connection(node)
    return cast("tuple[int, list[bytes]]", client.scan(cursor, match=pattern, count=SCAN_COUNT))


def _packed(*words: bytes) -> bytes:
    packed: bytes = pack_command(words)  # type: ignore[arg-type]
    return packed
