"""Kafka: bytes a second, retention, partitions, brokers.

events      = rate · (1 + clicks)                 impressions, and clicks for some of them
bytes/s     = events · event_bytes
retention   = bytes/s · retention_s · replication
partitions  = least multiple of the ranks with at most PARTITION_BYTES/s each
brokers     = max(replication, retention / (disk · LOAD), written and read bytes / (network · LOAD))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from livectr.plan.figure import Figure
from livectr.plan.trainer import read_s

PARTITION_BYTES = 10e6
"""Bytes a second of a partition; an assumption, far below what a broker's disk writes."""
LOAD = 0.7
"""Share of a broker's disk and network that may be used; an assumption."""


@dataclass(frozen=True)
class Load:
    """Log of a plan.

    Attributes:
        rate: impressions a second.
        clicks: clicks for an impression.
        event_bytes: of an event in Kafka.
        retention_s: time that Kafka keeps events.
        replication: copies of a partition.
        disk_bytes: of a broker.
    """

    rate: float
    clicks: float
    event_bytes: float
    retention_s: float
    replication: int
    disk_bytes: int

    @property
    def events(self) -> float:
        """Events a second."""
        return self.rate * (1 + self.clicks)

    @property
    def bytes(self) -> float:
        """Bytes a second."""
        return self.events * self.event_bytes

    @property
    def kept_bytes(self) -> float:
        """Bytes on the brokers' disks."""
        return self.bytes * self.retention_s * self.replication

    def partitions(self, ranks: int) -> int:
        """Partitions of the event topics: a multiple of the ranks."""
        return ranks * math.ceil(max(1.0, self.bytes / PARTITION_BYTES) / ranks)

    def brokers(self, gbit: float | None) -> int:
        """Number of brokers. A byte is written once for each copy and read by the trainer and by copies."""
        disks = self.kept_bytes / (LOAD * self.disk_bytes)
        wires = 0.0 if gbit is None else 8e-9 * self.bytes * self.replication / (LOAD * gbit)
        return max(self.replication, math.ceil(disks), math.ceil(wires))

    def figures(self, ranks: int, gbit: float | None) -> list[Figure]:
        """Figures of Kafka."""
        return [
            Figure("events", self.events, "1/s", f"impressions and {self.clicks:.3g} clicks for each"),
            Figure("bytes", self.bytes, "bytes/s", f"{self.event_bytes:,.0f} an event, as Kafka stores it"),
            Figure(
                "partitions", self.partitions(ranks), "",
                f"a multiple of the ranks, at most {PARTITION_BYTES / 1e6:.0f} MB/s each",
            ),
            Figure(
                "retention", self.kept_bytes, "bytes",
                f"{self.retention_s / 86400:.3g} d, {self.replication} copies",
            ),
            Figure("brokers", self.brokers(gbit), "", f"disks and network at most {LOAD:.0%} used"),
            Figure(
                "cores that read it", self.events * read_s(), "cores",
                "JSON decoded, joined, extracted; part of the trainer's computing", ("join",),
            ),
        ]  # fmt: skip
