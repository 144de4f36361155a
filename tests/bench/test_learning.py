"""The rows of bench.learning, from made-up scores."""

import numpy as np
import pytest

from bench.learning.compare import calibrated, compared, slices, table
from bench.learning.logs import Log, market
from livectr.trainer.quality.metrics import auc

CURVES = {
    "DeepFM": [[0.60, 0.72], [0.62, 0.74]],
    "LR": [[0.9, 0.9], [0.9, 0.9]],
    "LightGBM, refit": [[0.9, 0.9], [0.9, 0.9]],
    "Vowpal Wabbit": [[0.61, 0.70], [0.612, 0.70]],
    "river, FTRL": [[0.5, 0.73], [0.5, 0.728]],
    "Bayes": [[1.0, 1.0], [1.0, 1.0]],
}


def made(logits: np.ndarray, label: np.ndarray) -> Log:
    return Log("made", {}, np.empty((len(label), 0), np.float32), label.astype(np.float32))


def test_ours_stands_beside_the_peer_that_is_best_at_each_point() -> None:
    first, end = compared("made", [100, 200], CURVES)
    assert (first["peer_name"], end["peer_name"]) == ("Vowpal Wabbit", "river, FTRL")
    assert first["peer"] == pytest.approx(0.611) and first["ours"] == pytest.approx(0.61)
    assert first["met"] is True and end["met"] is True  # behind by less than the tolerance; ahead at the end
    behind = {**CURVES, "DeepFM": [[0.6, 0.729], [0.6, 0.728]]}
    first, end = compared("made", [100, 200], behind)
    assert (first["met"], end["met"]) == (False, False)


def test_calibration_is_of_the_worst_twentieth_after_the_first() -> None:
    label = np.tile([1.0, 0.0], 400)
    logits = np.zeros(800, np.float32)
    logits[:40] = 9  # the first twentieth does not count
    logits[400:440] = np.log(3)
    log = made(logits, label)
    assert len(slices(log, logits)) == 19
    least, most = calibrated([log], [{"DeepFM": logits}])
    assert (least["ours"], least["met"]) == (pytest.approx(1.0), True)
    assert (most["ours"], most["met"]) == (pytest.approx(1.5), False)


def test_all_learners_are_in_the_table() -> None:
    shown = table("made", [100, 200], CURVES)
    assert shown["lines"][0] == ["learner", "100", "200"]  # type: ignore[index]
    assert shown["lines"][1] == ["DeepFM", "0.6100", "0.7300"]  # type: ignore[index]
    assert len(shown["lines"]) == 7  # type: ignore[arg-type]


def test_a_log_of_few_clicks_has_no_calibration() -> None:
    log = made(np.zeros(100, np.float32), np.zeros(100))
    assert calibrated([log], [{"DeepFM": np.zeros(100, np.float32)}]) == []


def test_the_market_is_the_simulators() -> None:
    """A seed's log; crosses are of their columns, and the truth ranks the clicks."""
    log, longer = market(1, 4_000), market(1, 5_000)
    assert len(log) == 4_000 and len(log.fields) == 23
    assert all(np.array_equal(column, market(1, 4_000).fields[name]) for name, column in log.fields.items())
    assert np.array_equal(longer.fields["user"][:4_000], log.fields["user"])
    crossed = {(g, c) for g, c in zip(log.fields["gender"], log.fields["category"], strict=True)}
    assert len(np.unique(log.fields["gender_x_category"])) == len(crossed)
    assert log.bayes is not None
    assert auc(log.bayes.astype(np.float32), log.label) > 0.7
    assert not np.array_equal(market(2, 4_000).label, log.label)
