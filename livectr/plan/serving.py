"""Servers: cores for a rate of rank requests, and memory.

    request = measured core-seconds · growth
    growth  = Σ over stages of µs · factor / Σ µs; the factor is
              candidates                 parse, respond, protobuf
              candidates · fields        extract, look_up
              candidates · parameters    score
              1                          enrich, gRPC
    cores   = requests · request

Factors are relative to the measured request. Its core-seconds are those of an open loop with p99 ≤ 20 ms. A
closed loop, without a bound of the latency, gives the least number of cores. In both, the client that
measured had a share of the same cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from livectr.plan.figure import Figure
from livectr.plan.model import Model
from livectr.plan.points import points, value
from livectr.plan.trainer import MIB


@dataclass(frozen=True)
class Serving:
    """Servers of a plan.

    Attributes:
        requests: a second.
        candidates: of a request.
        items: that may be candidates.
        near_cache_rows: rows that a server keeps.
        cores: of a server; a worker has one.
    """

    model: Model
    requests: float
    candidates: int
    items: float
    near_cache_rows: int
    cores: float

    @property
    def growth(self) -> float:
        """Core-seconds of a request, as a multiple of the measured."""
        rows = self.candidates / value("most candidates")
        factors = {
            "request fixed": 1.0,
            "request rows": rows,
            "request values": rows * self.model.fields / value("most ids of an example"),
            "request score": rows * self.model.parameters / value("parameters of a request"),
        }
        grown = sum(value(name) * factor for name, factor in factors.items())
        return grown / sum(value(name) for name in factors)

    def request_s(self, point: str) -> float:
        """Core-seconds of a request by a measured rate."""
        measured = points()[point]
        return measured.cores / measured.value * self.growth

    @property
    def worker_cores(self) -> int:
        """Cores, a worker each."""
        return math.ceil(self.requests * self.request_s("open_loop"))

    @property
    def servers(self) -> int:
        """Machines."""
        return math.ceil(self.worker_cores / self.cores)

    @property
    def item_bytes(self) -> float:
        """Kept partial results of items, S float32 each."""
        return 4 * self.model.partial * self.items

    @property
    def cache_bytes(self) -> float:
        """Rows that are kept: values without optimizer state, with key and index."""
        return self.near_cache_rows * (-(-(16 + 4 * self.model.served) // 8) * 8 + 37)

    @property
    def server_bytes(self) -> float:
        """Memory of a server and its workers."""
        workers = min(self.worker_cores, math.ceil(self.cores))
        fixed = (value("server_memory") + workers * value("worker_memory")) * MIB
        return fixed + workers * (self.cache_bytes + self.item_bytes)

    def figures(self) -> list[Figure]:
        """Figures of the servers."""
        least = math.ceil(self.requests * self.request_s("closed_loop"))
        stages = ("request fixed", "request rows", "request values", "request score")
        return [
            Figure("requests", self.requests, "1/s", f"{self.candidates:,} candidates each"),
            Figure(
                "core time of a request", self.request_s("open_loop"), "s",
                f"{self.growth:.3g} times the measured, by stages", ("open_loop", *stages),
            ),
            Figure("worker cores", self.worker_cores, "cores", "p99 ≤ 20 ms, open loop", ("open_loop",)),
            Figure("least worker cores", least, "cores", "closed loop, any latency", ("closed_loop",)),
            Figure("servers", self.servers, "", f"{self.cores:g} cores each, a worker a core"),
            Figure(
                "partial results of items", self.item_bytes, "bytes",
                f"a worker, {self.items:,.0f} items; item_partials_mb bounds it",
            ),
            Figure("near-cache", self.cache_bytes, "bytes", f"a worker, {self.near_cache_rows:,} rows"),
            Figure(
                "memory of a server", self.server_bytes, "bytes", "all its workers",
                ("server_memory", "worker_memory"),
            ),
        ]  # fmt: skip
