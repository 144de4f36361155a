"""Redis: bytes, nodes, and rows that a version writes.

    row      = 16 + 8 · D + overhead    two slots of D float32 (`store.layout`); the overhead is measured
    nodes    = least n with ceil(16 / n) · bucket ≤ LOAD · memory
    changed  = F · distinct(rate · interval · keys / F)    distinct keys between two versions
    push     = changed / (measured rows/s · min(ranks, nodes))

A bucket is a 16th of the rows; a node holds whole buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from livectr.plan.distinct import distinct
from livectr.plan.figure import Figure
from livectr.plan.model import Model
from livectr.plan.points import value
from livectr.plan.trainer import Ids
from livectr.store.keyspace import BUCKETS
from livectr.system.errors import ConfigError

LOAD = 0.7
"""`maxmemory` of a Redis in k8s/components/redis, as a share of its memory."""
MEASURED_D = 17
"""D of the point "redis_row"."""


def row_bytes(served: int) -> float:
    """Memory of a row of D = `served` values."""
    overhead = value("redis_row") - _slots(MEASURED_D)
    return _slots(served) + overhead


def _slots(served: int) -> int:
    return 16 + 8 * served


@dataclass(frozen=True)
class Store:
    """Redis of a plan.

    Attributes:
        memory_bytes: of a node.
        interval_s: time between versions.
        copies: of each node, the primary included.
    """

    model: Model
    ids: Ids
    memory_bytes: int
    interval_s: float
    copies: int

    @property
    def row(self) -> float:
        """Bytes of a row of the served segments, with Redis's overhead."""
        return row_bytes(self.model.served)

    @property
    def bytes(self) -> float:
        """Bytes of all rows, once."""
        return self.ids.count * self.row

    @property
    def primaries(self) -> int:
        """Nodes that hold the rows once.

        Raises:
            ConfigError: a node cannot hold a bucket.
        """
        bucket, room = self.bytes / BUCKETS, LOAD * self.memory_bytes
        if bucket > room:
            raise ConfigError(
                f"Redis: a bucket, a {BUCKETS}th of the rows, takes {bucket / 2**30:,.1f} GiB, more than the "
                f"{room / 2**30:,.1f} GiB that a node may use; give --redis-memory of at least "
                f"{math.ceil(bucket / LOAD / 2**30):,}GiB, or a smaller --dim."
            )
        return next(n for n in range(1, BUCKETS + 1) if math.ceil(BUCKETS / n) * bucket <= room)

    def changed(self, rate: float) -> float:
        """Rows of a version."""
        draws = rate * self.interval_s * self.model.keys / self.model.fields
        return self.model.fields * distinct(draws, self.ids.count / self.model.fields, self.ids.zipf)

    def push_s(self, rate: float, ranks: int) -> float:
        """Seconds that a version's rows are written."""
        return self.changed(rate) / (value("publish") * min(ranks, self.primaries))

    def figures(self, rate: float, ranks: int) -> list[Figure]:
        """Figures of Redis."""
        changed, push = self.changed(rate), self.push_s(rate, ranks)
        how = f"at most, by {value('publish'):,.0f} rows/s of a rank and node"
        if push > self.interval_s:
            how += f"; more than the {self.interval_s:g} s between versions: these come later"
        return [
            Figure("a row", self.row, "bytes", f"D = {self.model.served}, two slots", ("redis_row",)),
            Figure("all rows", self.bytes, "bytes", "look-up rows and histories come on top", ("redis_row",)),
            Figure(
                "nodes", self.primaries * self.copies, "",
                f"{self.primaries} · {self.copies} copies; whole buckets of {BUCKETS}, {LOAD:.0%} of memory",
            ),
            Figure(
                "rows of a version", changed, "rows",
                f"distinct keys of {self.interval_s:g} s, Zipf {self.ids.zipf:g}; at most",
            ),
            Figure("bytes of a version", changed * (8 + 4 * self.model.served), "bytes", "a slot a row"),
            Figure("time of a version's rows", push, "s", how, ("publish",)),
        ]  # fmt: skip
