"""Memory of an embedding row in Redis, by the number D of its values.

All rows are published twice, so that each has its two slots, and then a single row as often as it takes until
Redis has dropped the lists of changed keys of both. Rows are (memory now − memory before) / rows.
"""

from __future__ import annotations

import numpy as np

from bench.publish import publish
from bench.rows import bounded
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.store.layout import KEPT_VERSIONS
from livectr.store.measured_redis import MeasuredRedis
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot

WIDTHS = (9, 17, 33)


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench redis-memory`."""
    count = 10_000 if quick else 100_000
    return [
        bounded(
            "memory of a row in Redis",
            f"{count:,} rows of D = {width} float32, written twice",
            "bytes",
            row_bytes(width, count),
            goal=None,
        )
        for width in WIDTHS
    ]


def row_bytes(width: int, count: int) -> float:
    """Bytes that Redis takes for a row of D = `width` values, of `count` rows."""
    layout = RowLayout((Segment("rank.w", 1, AdaGrad()), Segment("rank.v", width - 1, AdaGrad(), 0.01)))
    table = DynamicTable(layout, name="bench", seed=1)
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, count)
    table.find_or_insert(keys)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        client = MeasuredRedis.named("bench", server.url)
        before = client.infos("memory")[0]["used_memory"]
        segments = [(segment.name, segment.dim) for segment in layout.segments]
        publisher = Publisher(
            RedisStore(server.url, "livectr"), Control(), PublishedModel("", segments, seed=1)
        )
        publisher.start(None)
        exported, rows = table.export(state=False)
        for last in (count, count, *[1] * KEPT_VERSIONS):
            publish(
                publisher,
                VersionSnapshot(1, {"bench": (exported[:last], rows[:last])}, {"bench": count}, b""),
            )
        held = client.infos("memory")[0]["used_memory"]
        publisher.close()
        client.close()
    return float((held - before) / count)
