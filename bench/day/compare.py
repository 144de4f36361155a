"""A trainer over the emulated day: memory at its end, beside memory after a quarter and after a half.

Rows live 3 hours, an ad's look-up row up to 7, and the day is read in minutes, so that versions are hours of
the log behind: after a quarter, not all that may live has come. The half tells this from growth.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import redis

from bench.day.log import FULL, HOURS, QUICK, write
from bench.memory import ROOT, train
from bench.rows import row
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis

GOAL = 0.95
"""Memory after a part of the day, as a share of that at its end."""
PARTS = {"a quarter": 0.25, "a half": 0.5}
"""Parts of the day after which memory is compared with its end."""
Sample = tuple[float, float]


def rows(quick: bool) -> list[dict[str, object]]:
    """Memory of the trainer and of Redis. The log is written first, and read as fast as it goes."""
    with (
        tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder,
        LocalRedis(f"127.0.0.1:{free_ports(1)}") as server,
    ):
        events, users = write(Path(folder) / "logs", QUICK if quick else FULL)
        in_redis: list[Sample] = []

        def look(examples: float) -> None:
            used = client.info("memory")["used_memory"]
            in_redis.append((examples, used / 2**20))

        with redis.Redis.from_url(server.url) as client:
            resident = train(
                f"file:{folder}/logs",
                Path(folder) / "checkpoint",
                server.url,
                pipeline=str(ROOT / "bench/day/pipeline.py"),
                look=look,
            )
    workload = f"{HOURS} h of event time, {events:,} events of {users:,} users, rows expire after 3 h"
    of = {"resident memory of the trainer": resident, "memory of Redis": in_redis}
    return [
        _flat(f"{figure}, last tenth of a day", workload, samples, part, quick=quick)
        for figure, samples in of.items()
        for part in PARTS
    ]


def _flat(
    figure: str, workload: str, samples: Sequence[Sample], part: str, *, quick: bool
) -> dict[str, object]:
    trained, at = samples[-1][0], PARTS[part]
    early = [mib for examples, mib in samples if at - 0.05 <= examples / trained <= at + 0.05]
    late = [mib for examples, mib in samples if examples / trained >= 0.9 and mib]
    return row(
        figure,
        workload,
        "MiB",
        statistics.median(late),
        peer_name=f"the same run after {part}",
        peer=statistics.median(early),
        better="less",
        goal=None if quick else GOAL,
    )
