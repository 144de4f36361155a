"""Calibration of keys that start, stop and pause, where most clicks come after the wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import livectr
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Label, Stream, label_join
from livectr.ingest.language.targets import Target
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.livectr.wrong_logs import write_json

START_MS, HOUR_MS, WINDOW_MS, WAIT_MS = 1_764_000_000_000, 3_600_000, 300_000, 30_000
RATE, LATE, SHOWN, OPENED = 0.3, 0.6, 1_500, 0.4
"""Click rate, share of the clicks after the wait, and impressions of a key in an hour."""
HOURS: dict[int, list[tuple[float, float]]] = {
    0: [(0, 6)],
    1: [(0, 2)],
    2: [(0, 2), (4, 6)],
    3: [(2, 6)],
    4: [(1.5, 3.5)],
    5: [(3, 3.5), (5.5, 6)],
}
"""Key → times at which it is shown."""


def pipeline(delayed: Delayed) -> Pipeline:
    ids = {"imp": "int64", "user": "int64", "ts": "int64"}
    shown = Stream("shown", key="user", time="ts", columns={**ids, "campaign": "int64"})
    clicked = Stream("clicked", key="user", time="ts", columns=ids)
    wait = None if delayed == "wait" else WAIT_MS
    log = label_join(shown, clicked, on="imp", window=WINDOW_MS, wait=wait, delayed=delayed)
    return Pipeline(log, sparse={"campaign": log.campaign}, rank=LR())


def of_orders(delayed: Delayed, after: str | None) -> Pipeline:
    """The same labels beside a click, which comes within seconds."""
    ids = {"imp": "int64", "user": "int64", "ts": "int64"}
    shown = Stream("shown", key="user", time="ts", columns={**ids, "campaign": "int64"})
    opened, ordered = (Stream(name, key="user", time="ts", columns=ids) for name in ("opened", "clicked"))
    order = Label("order", ordered, window=WINDOW_MS, wait=WAIT_MS, delayed=delayed)
    log = label_join(shown, opened, on="imp", window=WAIT_MS // 2, labels=[order])
    targets = [Target("order", after=after)]
    return Pipeline(log, sparse={"campaign": log.campaign}, rank=LR(), targets=targets)


@dataclass(frozen=True)
class Planted:
    """Log of the keys; late clicks come evenly up to the window's end.

    Attributes:
        key_of: time of an impression, which no other has → its key.
    """

    source: str
    key_of: dict[int, int]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    random = np.random.default_rng(7)
    key_of = {
        START_MS + int(HOUR_MS * t): key
        for key, spans in HOURS.items()
        for begin, end in spans
        for t in random.uniform(begin, end, int(SHOWN * (end - begin)))
    }
    shown, clicked, opened = [], [], []
    pick = np.random.default_rng(8)
    for number, ts in enumerate(sorted(key_of)):
        row = {"imp": number, "user": number % 50, "ts": ts}
        shown.append(row | {"campaign": key_of[ts]})
        came = random.random() < RATE
        if came or pick.random() < OPENED:
            opened.append(row | {"ts": ts + int(pick.integers(WAIT_MS // 4))})
        if came:
            late = random.random() < LATE
            delay = random.integers(WAIT_MS, WINDOW_MS) if late else random.integers(WAIT_MS)
            clicked.append(row | {"ts": ts + int(delay)})
    root = tmp_path_factory.mktemp("logs")
    write_json(root, "shown", shown)
    for topic, rows in (("clicked", clicked), ("opened", opened)):
        write_json(root, topic, sorted(rows, key=lambda row: row["ts"]))
    return Planted(f"file:{root}", key_of)


def calibrations(
    planted: Planted, root: Path, of: Pipeline, target: str | None = None
) -> dict[tuple[int, str], float]:
    """Prediction by click rate: (key, "hour H") → mean of its impressions of the hour, when they are shown;
    (key, "after H") → of the key itself when its impressions of H hours are learned, shown or not."""
    role = "rank" if target is None else f"rank.{target}"
    found: dict[tuple[int, str], float] = {}
    for steps in (60, 120, 180, None):
        options = TrainOptions(
            planted.source,
            until_end=True,
            batch_size=128,
            batch_ramp=0,
            threads=1,
            checkpoint=str(root),
            max_steps=steps,
        )
        train(of, options).whole()
        held = read_predictions(root / "predictions")
        now = float(held["time_ms"].max() - START_MS) / HOUR_MS
        begun = [key for key, spans in HOURS.items() if spans[0][0] + 0.5 < now]
        rows = [{"imp": 0, "user": 0, "ts": START_MS, "campaign": key} for key in begun]
        after = livectr.score(of, str(root), rows, target=target)
        found |= {(key, f"after {now:.1f}"): float(x) for key, x in zip(begun, after, strict=True)}
    p = 1 / (1 + np.exp(-held[role].astype(np.float64)))
    key = np.array([planted.key_of[ts] for ts in held["time_ms"].tolist()])
    hour = (held["time_ms"] - START_MS) // HOUR_MS
    for one, at in {*zip(key.tolist(), hour.tolist(), strict=True)}:
        found[one, f"hour {at}"] = float(p[(key == one) & (hour == at)].mean())
    return {one: x / RATE for one, x in found.items()}


@pytest.mark.parametrize("delayed", ["fnw", "es_dfm"])
def test_keys_are_calibrated_in_every_hour_and_after(
    planted: Planted, tmp_path: Path, delayed: Delayed
) -> None:
    """Late positives of a key that has stopped do not push it, though no negatives come to answer them."""
    found = calibrations(planted, tmp_path, pipeline(delayed))
    assert len({at for _, at in found}) == 6 + 4
    assert {one: x for one, x in found.items() if not 0.9 <= x <= 1.1} == {}


@pytest.mark.parametrize(("delayed", "after"), [("fnw", "click"), ("es_dfm", None)])
def test_a_label_beside_the_click_is_calibrated_as_well(
    planted: Planted, tmp_path: Path, delayed: Delayed, after: str | None
) -> None:
    """Each head has its own late events; that of the click waits for its window."""
    found = calibrations(planted, tmp_path, of_orders(delayed, after), "order")
    assert len({at for _, at in found}) == 6 + 4
    assert {one: x for one, x in found.items() if not 0.9 <= x <= 1.1} == {}


STAIRS = [0.04, 0.06, 0.09, 0.13, 0.17, 0.22]
"""Click rates of keys that are shown one after the other, an hour each."""


@pytest.mark.parametrize(("delayed", "rates"), [("fnw", STAIRS), ("es_dfm", STAIRS[::-1])])
def test_keys_of_other_rates_do_not_move_a_key_that_has_stopped(
    tmp_path: Path, delayed: Delayed, rates: list[float]
) -> None:
    """All keys share bias and scale, and no lesson of a key that has stopped answers what moves them."""
    random = np.random.default_rng(5)
    shown, clicked = [], []
    seen, clicks = 2_000, [0] * len(rates)
    for number in range(seen * len(rates)):
        campaign = number // seen
        row = {"imp": number, "user": number % 50, "ts": START_MS + HOUR_MS // seen * number}
        shown.append(row | {"campaign": campaign})
        if random.random() < rates[campaign]:
            delay = random.integers(WINDOW_MS if random.random() < LATE else WAIT_MS)
            clicked.append(row | {"ts": row["ts"] + int(delay)})
            clicks[campaign] += 1
    logs = tmp_path / "logs"
    write_json(logs, "shown", shown)
    write_json(logs, "clicked", sorted(clicked, key=lambda row: row["ts"]))
    of, root = pipeline(delayed), tmp_path / "run"
    train(of, TrainOptions(f"file:{logs}", until_end=True, threads=1, checkpoint=str(root))).whole()
    rows = [{"imp": 0, "user": 0, "ts": START_MS, "campaign": key} for key in range(len(rates))]
    found = np.asarray(livectr.score(of, str(root), rows)) * seen / clicks
    assert np.abs(np.log(found)).max() < np.log(1.3), found
    assert np.abs(np.log(found)).mean() < np.log(1.15), found
