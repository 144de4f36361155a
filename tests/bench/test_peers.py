"""The parts of the peers' benchmark that need no peer."""

import numpy as np
import pytest

from bench.environment import needs_torch
from bench.peers.compare import BESIDE_TBE, CONTESTS, MCH, TABLE_WISE, TBE, TORCH, contest_rows, fastest
from bench.peers.ours import OURS, trainer
from bench.peers.workloads import P, W
from bench.turns import in_turns
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import Collectives


def test_ids_are_the_keys_renamed() -> None:
    for work in (P, W):
        (batch,) = work.batches(0, 8, 1)
        assert batch.ids.min() == 0
        assert len(np.unique(batch.ids)) == len(np.unique(batch.features.keys))
        bounds = batch.features.offsets[:: batch.features.rows]
        for f, rows in enumerate(work.cardinality):
            assert batch.ids[bounds[f] : bounds[f + 1]].max(initial=0) < rows


def test_a_sample_of_w_has_950_keys() -> None:
    (batch,) = W.batches(0, 4, 1)
    assert batch.features.fields == 200
    assert batch.features.lengths.sum(axis=0).mean() == pytest.approx(950, rel=0.02)
    assert (batch.features.lengths[0] == 1).all()


def test_ranks_and_batches_differ_and_are_drawn_again_alike() -> None:
    first, second = P.batches(0, 8, 2)
    assert (first.ids == P.batches(0, 8, 1)[0].ids).all()
    assert (first.ids != second.ids).any()
    assert (first.ids != P.batches(1, 8, 1)[0].ids).any()


def test_contestants_take_turns_and_warm_up_does_not_count() -> None:
    calls: list[str] = []
    found = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warm_up=1)
    assert calls == ["a", "b"] * 4
    assert found.keys() == {"a", "b"} and all(one.seconds > 0 for one in found.values())


def test_our_side_learns_a_batch() -> None:
    batches = P.batches(0, 16, 2)
    step = trainer(P, Collectives(), OURS["fp32"])
    first, second = (step(batch).loss for batch in (batches[0], batches[0]))
    assert second < first


def test_a_row_for_each_peer_with_its_goal() -> None:
    found = {name: {"rate": 100.0, "bytes": 1e6} for name in (*OURS, TBE, MCH)}
    rows = {row["peer_name"]: row for row in contest_rows(CONTESTS[0], found) if "fp32" in str(row["figure"])}
    assert rows[f"{TBE}, fp32"]["goal"] == BESIDE_TBE and rows[f"{TBE}, fp32"]["met"] is False
    found = {name: {"rate": 100.0, "bytes": 1e6} for name in (*OURS, TABLE_WISE)}
    found["fp32"]["bytes"] = 0.39e6
    (wire,) = [
        row
        for row in contest_rows(CONTESTS[1], found)
        if row["figure"] == "bytes of all ranks on loopback, fp32"
    ]
    assert wire["met"] is True


def test_another_torch_is_refused() -> None:
    needs_torch(TORCH)
    with pytest.raises(ConfigError, match=r"install torch==1\.2"):
        needs_torch("1.2")


def test_each_side_has_the_threads_that_suit_it() -> None:
    spinning = {"fp32": {"rate": 60.0, "bytes": 1.0}, TBE: {"rate": 80.0, "bytes": 2.0}}
    sleeping = {"fp32": {"rate": 75.0, "bytes": 1.0}, TBE: {"rate": 50.0, "bytes": 2.0}}
    assert fastest([spinning, sleeping]) == {"fp32": sleeping["fp32"], TBE: spinning[TBE]}
