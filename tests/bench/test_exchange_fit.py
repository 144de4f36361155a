"""Work of the field exchange: the fit that the trainer has, and the exchanges that it picks."""

import statistics
from dataclasses import astuple

from bench.plan.exchange_fit import contests, fit, seconds
from bench.plan.runs import Run, network
from bench.scaling_page import PAGE
from livectr.plan.trainer import exchange_s, wire_s
from livectr.trainer.placement.exchange_cost import WORK


def test_the_trainer_has_the_fit() -> None:
    assert fit() == WORK


def test_the_page_has_the_fit() -> None:
    text = PAGE.read_text()
    for seconds_ in astuple(WORK):
        assert f"{1e9 * seconds_:.3g} ns" in text


def test_picks_beside_the_fastest() -> None:
    """By bytes alone, the pick would take 14 % longer than the fastest exchange, by the mean."""
    lost, by_bytes = [], []
    for runs in contests().values():
        fastest = min(run.seconds for run in runs)
        lost.append(min(runs, key=lambda run: seconds(run, WORK)).seconds / fastest - 1)
        by_bytes.append(min(runs, key=lambda run: run.sent or 0.0).seconds / fastest - 1)
    assert len(lost) == 12 and statistics.mean(by_bytes) > 0.1
    assert statistics.mean(lost) < 0.03 and max(lost) < 0.2


def test_picks_over_wires() -> None:
    """These runs were not fitted, and their CPU is another."""
    found: dict[tuple[int, float | None], list[Run]] = {}
    for run in network():
        if run.wire == 4 and run.way != "auto":
            found.setdefault((run.ranks, run.gbit), []).append(run)
    assert len(found) == 10
    for (_, gbit), runs in found.items():
        picked = min(runs, key=lambda run: seconds(run, WORK) + wire_s(run.sent or 0.0, gbit))
        assert picked.seconds < 1.1 * min(run.seconds for run in runs), picked.name


def test_the_plan_picks_alike() -> None:
    """N = 2, B = 2048, F = 32, K = 4: rows send fewest bytes, and vectors are the fastest."""
    runs = next(runs for name, runs in contests().items() if name.endswith("F = 32, K = 4"))
    one = runs[0]
    found = exchange_s(one.model, one.ids, one.ranks, one.batch, None)
    assert min(found, key=lambda way: found[way]) == "vectors"
    assert min(runs, key=lambda run: run.sent or 0.0).way == "rows"
    assert min(runs, key=lambda run: run.seconds).way == "vectors"
