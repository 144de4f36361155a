"""Rows of `livectr bench peers`: every contest's samples a second, and bytes on the loopback device.

Goals on bytes are given as the least ratio peer / ours: 0.4 × the peer's bytes is a ratio of 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.environment import needs_torch, python
from bench.launch import launch
from bench.machine import processor
from bench.peers.ours import OURS
from bench.peers.workloads import P, W, Workload
from bench.rows import products, row

PACKAGES = Path(__file__).with_name("packages.txt")
TORCH = "2.13.0"
"""Release of torch that fbgemm-gpu-cpu in packages.txt is built for. Its 1.9.0 does not load on it;
TorchRec 1.9 runs with 1.8.0."""
TABLE_WISE = "TorchRec DMP table-wise"
MCH_INTERVAL = 10
MCH = f"TorchRec MCH, new ids every {MCH_INTERVAL} batches"
TBE = "FBGEMM TBE, fused row-wise Adagrad"
BESIDE_TBE = 1.3 if processor().startswith("Intel") else 1.5
"""Goal in fp32: on AMD's CPUs torch, and so the peer, multiplies with less of the CPU than on Intel's."""

Found = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Contest:
    """goals: (our settings, peer, "rate" or "bytes") → the least ratio that will do."""

    work: Workload
    world: int
    goals: dict[tuple[str, str, str], float]


CONTESTS = (
    Contest(
        P,
        1,
        {
            ("fp32", TBE, "rate"): BESIDE_TBE,
            ("bf16", TBE, "rate"): 2.2,
            ("fp32", MCH, "rate"): 2.2,
            ("bf16", MCH, "rate"): 2.2,
        },
    ),
    Contest(
        P,
        2,
        {
            ("fp32", TABLE_WISE, "rate"): 1.4,
            ("fp32", TABLE_WISE, "bytes"): 1 / 0.4,
            ("bf16", TABLE_WISE, "bytes"): 1 / 0.25,
        },
    ),
    *(
        Contest(
            W,
            world,
            {
                ("fp32", TABLE_WISE, "rate"): 1.5,
                ("fp32", TABLE_WISE, "bytes"): 1 / 0.67,
                ("bf16", TABLE_WISE, "bytes"): 1 / 0.35,
            },
        )
        for world in (2, 4)
    ),
)


WAITING: tuple[dict[str, str], ...] = ({}, {"OMP_WAIT_POLICY": "PASSIVE"})
"""Environments of a contest of a rank with several threads. By default OpenMP's threads spin while they wait,
which is faster for peers; `livectr train` lets them sleep, which is faster for ours."""


def rows(quick: bool) -> list[dict[str, object]]:
    """All rows. Raises ConfigError when the peers cannot be had."""
    needs_torch(TORCH)
    peers = python(PACKAGES, program="bench peers", beside_ours=True)
    found: list[dict[str, object]] = []
    for contest in CONTESTS:
        results: list[Found] = [
            launch(
                "bench.peers.contest",
                contest.work.name,
                *["--quick"] * quick,
                world=contest.world,
                python=peers,
                environment=waiting,
            )
            for waiting in WAITING[: None if contest.world == 1 else 1]
        ]
        found += contest_rows(contest, fastest(results))
    return found + map_rows(launch("bench.peers.pruned_map", *["--quick"] * quick, world=1, python=peers))


def fastest(results: Sequence[Found]) -> Found:
    """Fastest run of each contestant."""
    return {
        name: max((result[name] for result in results), key=lambda found: found["rate"])
        for name in results[0]
    }


def map_rows(found: Found) -> list[dict[str, object]]:
    """Finding and inserting beside FBGEMM's map of ids."""
    goals = {"find": 1.5, "insert": 3.0}
    return [
        row(
            figure,
            "1,000,000 random ids below 2³¹, one call",
            "Mkeys/s",
            found[figure]["ours"],
            peer_name="FBGEMM PrunedMapCPU",
            peer=found[figure]["peer"],
            better="more",
            goal=goal,
        )
        for figure, goal in goals.items()
    ]


def contest_rows(contest: Contest, found: Found) -> list[dict[str, object]]:
    """Ours beside each peer, in each of our settings: speed, and bytes where there are ranks."""
    ranks = f"{contest.world} rank" + "s" * (contest.world > 1)
    figures: list[tuple[str, str, str, float, Literal["more", "less"]]] = [
        ("rate", "DeepFM training", "samples/s", 1.0, "more"),
        ("bytes", "bytes of all ranks on loopback", "MB/step", 1e6, "less"),
    ]
    rows = []
    for measure, figure, unit, scale, better in figures[: 2 if contest.world > 1 else 1]:
        for name, how in OURS.items():
            for peer in (one for one in found if one not in OURS):
                rows.append(
                    row(
                        f"{figure}, {name}",
                        f"{contest.work}, {ranks}{products(how.settings.precision)}",
                        unit,
                        found[name][measure] / scale,
                        peer_name=f"{peer}, fp32",
                        peer=found[peer][measure] / scale,
                        better=better,
                        goal=contest.goals.get((name, peer, measure)),
                    )
                )
    return rows
