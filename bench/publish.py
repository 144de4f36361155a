"""Publishing: rows per second into Redis through the fenced scripts, beside plain pipelined SET.

Servers are on this machine: a single server, then a cluster of two nodes that one rank or two ranks write to,
each rank its own rows. The peer writes the same bytes without fence or older slot: a SET for each row, 1,000
in a pipeline, by redis-py, from as many processes. Both write in turns; the median of the rounds counts. A
round begins with empty servers:

    complete version    rows that are not there yet, for the peer, too
    changed rows        all rows again, which have two slots, or the peer's one

CPU time is user and system time: of the ranks' processes, and of the servers as their INFO says.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import redis

from bench.launch import answer, launch
from bench.rows import bounded, row
from bench.timed import timed
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.store.cluster_nodes import given
from livectr.store.layout import Keyspace, encode_slots
from livectr.store.redis_client import connect_redis
from livectr.store.redis_url import is_clustered, parse_address
from livectr.system.errors import InternalError
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot
from tests.redis_cluster import Cluster

K = 16
LAYOUT = RowLayout((Segment("rank.w", 1, AdaGrad()), Segment("rank.v", K, AdaGrad(), 0.01)))
PEER = "redis-py, pipelined SET"
SETUPS = ((1, 1), (2, 1), (2, 2))
"""Nodes and ranks; a single node is no cluster."""
GOAL_ROWS_S = 500_000
"""Rows of a complete version that two ranks write in a second to a cluster of two nodes."""
NODE_TIMEOUT_MS = 15_000
"""Redis's default: busy nodes answer each other late."""
CHANGED, COMPLETE, COPY = "changed rows of a version", "complete version", "copy"

Costs = tuple[float, float, float]
"""Seconds, CPU seconds of the ranks, CPU seconds of the servers."""
Writer = redis.Redis | redis.RedisCluster


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench publish`."""
    count, rounds = (20_000, 3) if quick else (200_000, 5)
    rows: list[dict[str, object]] = []
    for nodes, world in SETUPS:
        with _servers(nodes) as servers:
            found = launch("bench.publish", servers.url, str(count), str(rounds), world=world)
        rows += rows_of(found, count, nodes, world)
    return rows


def rows_of(
    found: Mapping[str, Sequence[float]], count: int, nodes: int, world: int
) -> list[dict[str, object]]:
    """Rows of what `measure` has found."""
    ranks = "one rank" if world == 1 else f"{world} ranks"
    where = "server" if nodes == 1 else f"cluster of {nodes} nodes"
    workload = f"{count:,} rows of D = {LAYOUT.dim} float32, {ranks}, {where} on this machine"
    rows = []
    for figure in (CHANGED, COMPLETE):
        ours, peer = found[figure], found[f"{figure}, peer"]
        rate = row(
            f"{figure}, to the flip",
            workload,
            "rows/s",
            count / ours[0],
            peer_name=PEER,
            peer=count / peer[0],
            goal=1.0,
        )
        rows.append(rate)
        for place, whose in ((1, "ranks"), (2, "servers")):
            cpu = row(
                f"CPU of the {whose}, {figure}",
                workload,
                "µs/row",
                1e6 * ours[place] / count,
                peer_name=PEER,
                peer=1e6 * peer[place] / count,
                better="less",
            )
            rows.append(cpu)
    rate_s = count / found[COMPLETE][0]
    if (nodes, world) == (1, 1):
        copied = count / found[COPY][0]
        rows.append(row("copy of the rows, which holds training up", workload, "rows/s", copied))
    if (nodes, world) == (2, 2):
        figure = "complete version into a cluster, to the flip"
        rows.append(bounded(figure, workload, "rows/s", rate_s, goal=GOAL_ROWS_S, better="more"))
    return rows


def measure(control: Control, url: str, count: int, rounds: int) -> dict[str, Sequence[float]]:
    """Median costs of versions of `count` rows, and of the peer's writes. Collective; empties the servers."""
    table = filled(count // control.world, seed=1 + control.rank)
    peer, meter = _peer(url), _Meter(control, url)
    costs: dict[str, list[Costs]] = {}
    for _ in range(rounds):
        if control.rank == 0:
            # Without SYNC the memory is freed later, at the expense of what is measured.
            peer.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]
        meter.barrier()
        publisher = publisher_of(control, url)
        ours, plain = partial(publish_all, publisher, table), partial(_plain, peer, url, table)
        for figure in (COMPLETE, CHANGED):
            costs.setdefault(figure, []).append(meter(ours))
            costs.setdefault(f"{figure}, peer", []).append(meter(plain))
            if figure == COMPLETE:
                ours()  # every row gets its second slot
        publisher.close()
    copy = statistics.median(timed(lambda: table.export(state=False)) for _ in range(rounds))
    peer.close()
    meter.close()
    return {name: np.median(some, axis=0).tolist() for name, some in costs.items()} | {COPY: [copy]}


def publish(publisher: Publisher, snapshot: VersionSnapshot) -> None:
    """Publish a version. Collective. Raises InternalError if it was not flipped."""
    done = None
    publisher.begin(snapshot)
    while publisher.busy:
        publisher.push.check()
        flags = publisher.control.gather(np.array([publisher.push.state]))
        done = publisher.observe(flags[:, 0].tolist())
    if done is None:
        raise InternalError("a version was not published")


class _Meter:
    """Measures what all ranks do at once. Every method is collective.

    Args:
        url: of the servers.
    """

    def __init__(self, control: Control, url: str) -> None:
        self._control = control
        self._client = connect_redis("bench", url, timeout_s=30)

    def barrier(self) -> None:
        self._control.gather(np.zeros(1, np.int64))

    def __call__(self, work: Callable[[], object]) -> Costs:
        self.barrier()
        servers = self._servers()
        self.barrier()
        start, own = time.perf_counter(), time.process_time()
        work()
        own = time.process_time() - own
        ranks = self._control.gather(np.array([round(1e6 * own)]))
        seconds = time.perf_counter() - start
        return seconds, 1e-6 * float(ranks.sum()), self._servers() - servers

    def close(self) -> None:
        self._client.close()

    def _servers(self) -> float:
        """CPU seconds that all servers have taken."""
        infos = self._client.infos("cpu")
        return float(sum(info["used_cpu_user"] + info["used_cpu_sys"] for info in infos))


def _servers(nodes: int) -> LocalRedis | Cluster:
    if nodes == 1:
        return LocalRedis(f"127.0.0.1:{free_ports(1)}")
    return Cluster(nodes, node_timeout_ms=NODE_TIMEOUT_MS)


def filled(count: int, *, seed: int = 1) -> DynamicTable:
    """Table of `count` random keys."""
    table = DynamicTable(LAYOUT, name="bench", seed=1)
    table.find_or_insert(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count))
    return table


def publisher_of(control: Control, url: str) -> Publisher:
    """Publisher of such tables. Collective."""
    segments = [(segment.name, segment.dim) for segment in LAYOUT.segments]
    publisher = Publisher(RedisStore(url, "bench"), control, PublishedModel("", segments, seed=1))
    publisher.start(None)
    return publisher


def publish_all(publisher: Publisher, table: DynamicTable) -> None:
    """One version that holds every row of the table."""
    publish(publisher, VersionSnapshot(1, {"bench": table.export(state=False)}, {"bench": len(table)}, b""))


def _peer(url: str) -> Writer:
    """redis-py's own client of a URL."""
    if not is_clustered(url):
        return redis.Redis.from_url(url)
    return redis.RedisCluster(startup_nodes=given(parse_address(url).hosts))


def _plain(client: Writer, url: str, table: DynamicTable) -> None:
    exported, rows = table.export(state=False)
    space = Keyspace("peer", clustered=is_clustered(url))
    names, slots = space.rows("1-0", "bench", exported), encode_slots(1, rows)
    for start in range(0, len(names), 1000):
        pipe = client.pipeline(transaction=False)
        for name, slot in zip(names[start : start + 1000], slots[start : start + 1000], strict=True):
            pipe.set(name, slot)
        pipe.execute()


def main() -> None:
    """One rank of a measurement: `OUT URL ROWS ROUNDS`."""
    url, count, rounds = sys.argv[2:]
    answer(lambda shared: measure(Control(shared.rank, shared.world), url, int(count), int(rounds)))


if __name__ == "__main__":
    main()
