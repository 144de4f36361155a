"""The rows of bench.carry, from made-up scores, and its three runs over a small log."""

import numpy as np
import pytest

from bench.carry import AGAIN, BATCH, CROSSES, HALF, WORSE, again_name, compared, rows


def test_each_peer_is_compared_on_the_same_examples() -> None:
    label = np.tile(np.array([0, 1], np.float32), 50)
    even = np.full(100, 0.5, np.float32)
    late = np.where(np.arange(100) < 50, even, label)
    again = {again_name(share): label for share in AGAIN}
    scores = {"label": label, "carried": late, "old": even, "relearned": label, "other": label, **again}
    found = rows("a, b", [scores], 16 * BATCH, 50)
    shown = [(line["figure"], line["peer_name"], line["ours"], line["peer"], line["met"]) for line in found]
    assert shown[:4] == [
        ("AUC of examples 1 to 50", "old run", 0.5, 0.5, True),
        ("AUC of examples 1 to 100", "old run", 0.875, 0.5, True),
        ("AUC of examples 1 to 50", "relearned run", 0.5, 1.0, None),
        ("AUC of examples 51 to 100", "relearned run", 1.0, 1.0, True),
    ]
    assert [line["figure"] for line in found[4:8]] == [line["figure"] for line in found[:4]]
    assert f"{int(16 * HALF) * BATCH:,} of them learned again" in str(found[4]["workload"])
    assert len(found) == 8 + 2 * len(AGAIN) and all(line["ours"] == 1 for line in found[4:])
    assert found[0]["goal"] == pytest.approx(1 - WORSE / 0.5)


def test_three_runs_score_the_same_examples() -> None:
    scores = compared(CROSSES[0], seed=1, learned=4 * BATCH, ahead=300)
    assert set(scores) == {"label", "old", "relearned", "other", "carried", *map(again_name, AGAIN)}
    assert all(len(of) == 300 for of in scores.values())
    # Examples of a batch are learned one after another: the first is scored by what the old run had learned.
    assert scores["carried"][0] == scores["old"][0] != scores["relearned"][0]
    assert (scores["carried"] != scores["old"]).any()
