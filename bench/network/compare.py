"""Contests of `livectr bench network`, their rows, goals and tables.

Panels: P and W (DeepFM beside TorchRec's DMP), and LR, W&D and DeepFM on W beside the mesh in step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.environment import needs_torch, python
from bench.machine import hardware
from bench.mesh.compare import TABLE_4
from bench.network.launch import launch
from bench.network.namespaces import BURST_S, network
from bench.network.predict import Line, crossing, measured_crossing
from bench.peers.compare import PACKAGES, TORCH
from bench.peers.workloads import P, W, Workload
from bench.rows import row

if TYPE_CHECKING:
    from bench.network.measure import Found
    from bench.peers.tables import Sharding

GBITS: tuple[float | None, ...] = (0.5, 1.0, 2.5, 10.0, None)
QUICK_GBITS: tuple[float | None, ...] = (1.0, None)
GOAL_GBIT = 1.0
LEAST_SHOWN = 1000
"""Bytes of a step below which a collective has no column."""
AUTO, BF16, MESH = "ours, auto", "ours, auto, bf16", "mesh, synchronous"
DMP: dict[str, Sharding] = {
    "TorchRec DMP table-wise": "table-wise",
    "TorchRec DMP row-wise": "row-wise",
}
CONTESTS = {"P": 2, "W": 4, "mesh": 4}
"""Contest → ranks."""


@dataclass(frozen=True)
class Panel:
    """Contestants that are compared.

    Attributes:
        work: workload
        world: ranks
        goals: peer → least ratio of samples a second at GOAL_GBIT
    """

    work: Workload
    world: int
    goals: dict[str, float]

    def __str__(self) -> str:
        return f"{self.work}, {self.world} ranks"


PANELS = {
    "P": Panel(P, 2, dict.fromkeys(DMP, 2.0)),
    "W": Panel(W, 4, dict.fromkeys(DMP, 1.8)),
    **{model: Panel(W, 4, {MESH: goal}) for model, goal in TABLE_4.items()},
}


def run_contests(quick: bool) -> dict[str, Any]:
    """Result of `livectr bench network`. Raises ConfigError when rights, programs or peers are missing."""
    from bench.network.measure import Found

    found: dict[str, list[Found]] = {}
    links: dict[str, float] = {}
    for contest, world in CONTESTS.items():
        with network(world) as wires:
            arguments = ["bench.network.contest", contest, str(wires), *["--quick"] * quick]
            if contest == "mesh":
                result = launch(wires, *arguments)
            else:
                needs_torch(TORCH)
                peers = python(PACKAGES, program="bench network", beside_ours=True)
                result = launch(wires, *arguments, python=peers)
        links = result.pop("link")
        found |= {panel: [Found(**one) for one in measured] for panel, measured in result.items()}
    shown = [*link_rows(links), *(one for panel in found for one in panel_rows(panel, found[panel]))]
    settings = {"gbits": list(GBITS), "burst_s": BURST_S, "threads of a rank": 1}
    return {"rows": shown, "settings": settings, "tables": tables(found)}


def lines(found: Sequence[Found]) -> dict[str, Line]:
    """Prediction of each contestant, of its measures without a limit."""
    return {one.contestant: Line(one.seconds, one.busiest) for one in found if one.gbit is None}


def bandwidth(gbit: float | None) -> str:
    """A bandwidth as the rows name it."""
    return "no limit" if gbit is None else f"{gbit:g} Gbit/s"


def link_rows(links: Mapping[str, float]) -> list[dict[str, object]]:
    """Payload between two ranks beside the limit, which counts headers."""
    rows = []
    for limit, rate in links.items():
        bound = None if limit == "None" else float(limit)
        named = "the limit" if bound else None
        figure = f"payload through a wire at {bandwidth(bound)}"
        rows.append(row(figure, "two of four ranks, Gloo", "Gbit/s", rate, peer_name=named, peer=bound))
    return rows


def panel_rows(panel: str, found: Sequence[Found]) -> list[dict[str, object]]:
    """Speeds beside the prediction, bytes by collective, and the goals."""
    of, predicted = PANELS[panel], lines(found)
    workload = f"{panel}: {of}" if panel != of.work.name else str(of)
    rows: list[dict[str, object]] = []
    for one in found:
        rows.append(
            row(
                f"{one.contestant} at {bandwidth(one.gbit)}",
                workload,
                "samples/s",
                of.work.batch / one.seconds,
                peer_name="predicted",
                peer=of.work.batch / predicted[one.contestant].seconds(one.gbit),
            )
        )
    for one in found:
        if one.gbit is None:
            rows.append(row(f"{one.contestant}: busiest wire", workload, "MB/step", one.busiest / 1e6))
            rows.append(row(f"{one.contestant}: all ranks", workload, "MB/step", one.total / 1e6))
            for collective, (sent, _) in sorted(one.collectives.items(), key=lambda item: -item[1][0]):
                rows.append(row(f"{one.contestant}: `{collective}`, rank 0", workload, "MB/step", sent / 1e6))
    speed = {(one.contestant, one.gbit): of.work.batch / one.seconds for one in found}
    for peer, goal in of.goals.items():
        rows.append(
            row(
                f"training at {bandwidth(GOAL_GBIT)}, ours, auto",
                workload,
                "samples/s",
                speed[AUTO, GOAL_GBIT],
                peer_name=peer,
                peer=speed[peer, GOAL_GBIT],
                goal=goal,
            )
        )
    return rows


def tables(found: Mapping[str, Sequence[Found]]) -> list[dict[str, Any]]:
    """Tables of the page."""
    return [
        *(speed_table(panel, measured) for panel, measured in found.items()),
        goal_table(found),
        crossing_table(found),
        *(byte_table(panel, measured) for panel, measured in found.items()),
    ]


def speed_table(panel: str, found: Sequence[Found]) -> dict[str, Any]:
    """Samples a second by bandwidth, the prediction in brackets."""
    of, predicted = PANELS[panel], lines(found)
    gbits = list(dict.fromkeys(one.gbit for one in found))
    seconds = {(one.contestant, one.gbit): one.seconds for one in found}
    shown = [["", "MB", "ms", *(bandwidth(gbit) for gbit in gbits)]]
    for name, line in predicted.items():
        cells = [name, f"{line.sent / 1e6:.2f}", f"{1e3 * line.computing:.0f}"]
        for gbit in gbits:
            own = f"{of.work.batch / seconds[name, gbit]:,.0f}"
            cells.append(own if gbit is None else f"{own} ({of.work.batch / line.seconds(gbit):,.0f})")
        shown.append(cells)
    named = "" if panel == of.work.name else f"{panel} on "
    return {"title": f"Samples a second, {named}{of}", "lines": shown}


def goal_table(found: Mapping[str, Sequence[Found]]) -> dict[str, Any]:
    """Each goal, and the two ratios between which every bandwidth's lies."""
    cores = hardware()["cores"]
    head = ["", "beside", "goal", "computing", "bytes", f"predicted at {bandwidth(GOAL_GBIT)}", "measured"]
    shown = [[*head, "met", "predicted with a core a rank"]]
    for panel, measured in found.items():
        of, predicted = PANELS[panel], lines(measured)
        seconds = {one.contestant: one.seconds for one in measured if one.gbit == GOAL_GBIT}
        share = min(1.0, cores / of.world)
        for peer, goal in of.goals.items():
            ours, theirs = predicted[AUTO], predicted[peer]
            ratio = seconds[peer] / seconds[AUTO]
            apart = theirs.on_cores(share).seconds(GOAL_GBIT) / ours.on_cores(share).seconds(GOAL_GBIT)
            numbers = [
                theirs.computing / ours.computing,
                theirs.sent / ours.sent,
                theirs.seconds(GOAL_GBIT) / ours.seconds(GOAL_GBIT),
                ratio,
            ]
            met = "yes" if ratio >= goal else "**no**"
            shown.append([panel, peer, f"{goal:g}", *(f"{n:.2f}" for n in numbers), met, f"{apart:.2f}"])
    return {"title": "Goals, peer to ours", "lines": shown}


def crossing_table(found: Mapping[str, Sequence[Found]]) -> dict[str, Any]:
    """Bandwidths at which two contestants are equally fast."""
    shown = [["", "fewer bytes", "more bytes", "predicted", "measured"]]
    for panel, measured in found.items():
        predicted = lines(measured)
        seconds = {
            name: {one.gbit: one.seconds for one in measured if one.contestant == name} for name in predicted
        }
        names = list(predicted)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                light, heavy = sorted((a, b), key=lambda name: predicted[name].sent)
                at = crossing(predicted[light], predicted[heavy])
                seen = measured_crossing(seconds[light], seconds[heavy])
                if at is not None or seen is not None:
                    shown.append([panel, light, heavy, _gbit(at), _gbit(seen)])
    return {"title": "Crossing points, Gbit/s: below, who sends fewer bytes is faster", "lines": shown}


def _gbit(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def byte_table(panel: str, found: Sequence[Found]) -> dict[str, Any]:
    """Bytes of rank 0 by collective, and the time in them at the goal's bandwidth and without a limit."""
    ours = [one for one in found if one.collectives]
    total: dict[str, float] = {}
    for one in ours:
        for collective, (sent, _) in one.collectives.items():
            total[collective] = max(total.get(collective, 0.0), sent)
    order = sorted((name for name in total if total[name] >= LEAST_SHOWN), key=lambda name: -total[name])
    shown = [["", "at", *(f"`{name}`" for name in order), "step"]]
    for one in ours:
        if one.gbit in (GOAL_GBIT, None):
            pairs = [one.collectives.get(name, (0.0, 0.0)) for name in order]
            cells = [f"{sent / 1e6:.2f} MB, {1e3 * spent:.1f} ms" if spent else "–" for sent, spent in pairs]
            shown.append([one.contestant, bandwidth(one.gbit), *cells, f"{1e3 * one.seconds:.1f} ms"])
    return {
        "title": f"Bytes that rank 0 sends in a step, and time in the collective, {panel}",
        "lines": shown,
    }
