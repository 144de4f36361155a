"""Training-serving skew: features of real requests beside those that a trainer learned of the same hours."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from livectr.client.clients import RankClient
from livectr.ingest.drift import psi
from livectr.ingest.drift.counts import BIN, Counts
from livectr.ingest.drift.learned import Learned
from livectr.serving.app import App
from livectr.serving.native.build import BUILT, build, front_library
from livectr.serving.score import rank
from livectr.serving.score.rank_scorer import RankScorer, rank_scorer
from livectr.system.errors import MismatchError
from livectr.trainer.drift import feature_drift
from livectr.trainer.run import TrainOptions, train
from tests.metrics_page import metric_value
from tests.trainer.shifting_log import START_MS, pipeline, rows, write_log

NAMES = "ad", "user", "device", "tags", "hour", "price", "wait"
PERIOD_MS = 10_000
OF_CANDIDATES = "ad", "price", "wait"


def ask(ranks: RankClient, row: dict[str, Any], period: int) -> None:
    """Request in a period, with a second candidate that is worth nothing, in any order."""
    ts = START_MS + period * PERIOD_MS + 5_000
    context = {name: value for name, value in row.items() if name not in OF_CANDIDATES} | {"ts": ts}
    other = {"ad": 7, "price": 1e9, "wait": -1e9}
    both = (row, other) if row["ad"] % 2 else (other, row)
    ranks.rank(
        context,
        {name: [each[name] for each in both] for name in OF_CANDIDATES},
        bids=[float(each is row) for each in both],
    )


def skew() -> dict[str, float]:
    return {name: metric_value("livectr_feature_skew_psi", feature=name, side="stable") for name in NAMES}


def test_servers_with_either_front_tell_which_features_are_skewed(
    tmp_path: Path, redis_url: str, serve: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_drift, "EVERY", 1)
    monkeypatch.setattr(psi, "MOST_BIAS", 0.04)
    monkeypatch.setattr(rank, "EVERY", 2)
    if isinstance(front_library(), str):
        build(BUILT)
        front_library.cache_clear()
    source = write_log(tmp_path / "logs", 9_000, every_ms=4, moves=False)
    train(pipeline(), TrainOptions(source, until_end=True, publish=redis_url, drift_window_s=40))
    served = [row | {"tags": row["tags"] or [1]} for row in rows(640, moved=True, seed=3)]
    found = {}
    for front in ("python", "native"):
        app = serve("rank", pipeline(), front=front)
        (method,) = app.sides.methods
        assert method.plain is not None
        with RankClient(app.server.address) as ranks:
            for row in served:  # rows of users are read
                ask(ranks, row, 1)
            assert all(map(math.isnan, skew().values())), "the period has begun before the process"
            method.plain.take()
            for row in served:
                ask(ranks, row, 2)
            assert method.plain.take().requests > 250, "the others need no interpreter"
            assert all(map(math.isnan, skew().values())), "the period is not whole"
            for row in served[:20]:
                ask(ranks, row, 3)
        found[front] = skew()
        current = app.sides.stable.follower.current
        assert current is not None and rank_scorer(current).learned is not None
        damaged = {**current.dense, "drift.codes": current.dense["drift.codes"].flip(0)}
        assert RankScorer(pipeline(), damaged).learned is None, "requests are answered without it"
    assert {name for name, value in found["python"].items() if value > 0.25} == {"device", "tags", "price"}
    assert all(found["python"][name] < 0.1 for name in ("ad", "user", "hour", "wait")), found
    assert found["native"] == found["python"]


LEARNED = Learned(3, 10, Counts(np.array([0, BIN, BIN + 5, 3 * BIN - 1]), np.array([5, 2, 3, 5])))
"""Distributions of a sparse field and a dense number."""
DAMAGED: dict[str, dict[str, npt.NDArray[Any]]] = {
    "shapes": {"counts": np.zeros(3, np.int64)},
    "a table": {"codes": np.zeros((2, 2), np.int64), "counts": np.zeros((2, 2), np.int64)},
    "types": {"counts": np.ones(4, np.float32)},
    "nothing": {"codes": np.empty(0, np.int64), "counts": np.empty(0, np.int64)},
    "no order": {"codes": np.array([0, BIN + 5, BIN, 3 * BIN - 1])},
    "other features": {"codes": np.array([0, BIN, 3 * BIN - 1, 3 * BIN])},
    "before the rows": {"codes": np.array([-7, BIN, BIN + 5, 3 * BIN - 1])},
    "no greatest bin": {"codes": np.array([0, BIN, BIN + 5, 2 * BIN + 9])},
    "negative counts": {"counts": np.array([5, -2, 3, 5])},
    "no period": {"period": np.array([3, 0])},
    "a period past int64": {"period": np.array([1 << 40, 10])},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_distributions_are_refused(name: str) -> None:
    damaged = {f"drift.{part}": array for part, array in DAMAGED[name].items()}
    with pytest.raises(MismatchError, match="the published distributions"):
        Learned.from_arrays(LEARNED.arrays() | damaged, 1, 2)


def test_distributions_are_those_that_were_published() -> None:
    arrays = LEARNED.arrays()
    again = Learned.from_arrays(arrays, 1, 2)
    assert again is not None and again.period == 3 and again.counts.rows == 5
    assert Learned.from_arrays({}, 1, 2) is None
    with pytest.raises(MismatchError, match="lack"):
        Learned.from_arrays({name: array for name, array in arrays.items() if "codes" not in name}, 1, 2)
