"""Publishing: rows per second into Redis through the fenced scripts, beside plain pipelined SET.

The peer writes the same bytes without fence or older slot: a SET for each row, 1,000 in a pipeline, by the
same client. Both write to the same local server, in turns; the median of the rounds counts.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import redis

from bench.rows import row
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.protos.store import Keyspace, encode_slots
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot

K = 16
LAYOUT = RowLayout((Segment("rank.w", 1, AdaGrad()), Segment("rank.v", K, AdaGrad(), 0.01)))
PEER = "redis-py, pipelined SET"


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench publish`."""
    count, rounds = (20_000, 3) if quick else (200_000, 5)
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, count)
    table = DynamicTable(LAYOUT, name="bench", seed=1)
    table.find_or_insert(keys)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = server.url
        client = redis.Redis.from_url(url)
        segments = [(segment.name, segment.dim) for segment in LAYOUT.segments]
        publisher = Publisher(RedisStore(url, "bench"), Control(), PublishedModel("", segments, seed=1))
        publisher.start(None)
        first = _timed(lambda: _publish(publisher, table))
        later, peer = [], []
        for _ in range(rounds):
            later.append(_timed(lambda: _publish(publisher, table)))
            peer.append(_timed(lambda: _plain(client, keys, table)))
        publisher.close()
        client.close()
    held = statistics.median(_timed(lambda: table.export(state=False)) for _ in range(rounds))
    set_rate = count / statistics.median(peer)
    workload = f"{count:,} rows of D = {LAYOUT.dim} float32, one rank, server on this machine"
    return [
        row(
            "changed rows of a version, to the flip",
            workload,
            "rows/s",
            count / statistics.median(later),
            peer_name=PEER,
            peer=set_rate,
            goal=1.0,
        ),
        row(
            "complete version, to the flip",
            workload,
            "rows/s",
            count / first,
            peer_name=PEER,
            peer=set_rate,
            goal=1.0,
        ),
        row("copy of the rows, which holds training up", workload, "rows/s", count / held),
    ]


def _publish(publisher: Publisher, table: DynamicTable) -> None:
    """One version that holds every row of the table."""
    publisher.begin(VersionSnapshot(1, {"bench": table.export(state=False)}, {"bench": len(table)}, b""))
    while publisher.busy:
        publisher.observe([publisher.push.state])
        time.sleep(0.001)


def _plain(client: redis.Redis, keys: np.ndarray, table: DynamicTable) -> None:
    exported, rows = table.export(state=False)
    names, slots = Keyspace("peer").rows("1-0", "bench", exported), encode_slots(1, rows)
    for start in range(0, len(keys), 1000):
        pipe = client.pipeline(transaction=False)
        for name, slot in zip(names[start : start + 1000], slots[start : start + 1000], strict=True):
            pipe.set(name, slot)
        pipe.execute()


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
