"""Blocks: many small batches are cut, read and extracted at once, and are learned as if each came alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.common_features import FEW
from livectr.ingest.language.delays import Delayed
from livectr.ingest.operators.statistics import Quantiles
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stages import Stages
from livectr.trainer.stream import batcher
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.cut import Cut, block
from livectr.trainer.stream.header import Flags
from tests.tiers import examples
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.run_result import Result, assert_same
from tests.trainer.scripted_batches import logs
from tests.trainer.scripted_source import Batch, Log, ScriptedSource, is_final
from tests.trainer.short_logs import constants

IMPRESSIONS = 700
FAILING = {3, 4, 301, 302, 699}
RAMP, SLOPE = dict(batch_size=80, batch_ramp=3), 30


@given(st.integers(1, 90), st.integers(0, 9), st.integers(1, 9), st.integers(0, 999))
def test_a_ramp_knows_how_many_batches_are_alike(most: int, first: int, slope: int, seen: int) -> None:
    ramp = BatchRamp(most, first, slope)
    size, alike = ramp.size(seen), ramp.alike(seen)
    assert all(ramp.size(seen + n * size) == size for n in range(min(alike, 100)))
    assert alike > 10**9 or ramp.size(seen + alike * size) > size


def batches(
    log: Log, seed: int, together: int | None, until: int | None, *, finals: bool = False
) -> tuple[list[Batch], bool]:
    """Batches of a log that arrives as a seed says, and whether some were cut as a block."""
    source, rng = ScriptedSource(log, seed, most=9), random.Random(seed)
    room = None if together is None else (lambda: rng.randint(0, together))
    ramp = BatchRamp(12, 2, 6)
    times = Times(poll_s=0)
    cuts = Batcher(source, Control(), ramp=ramp, times=times, together=room, until=until, finals=finals)
    found: list[Batch] = []
    blocks = False
    while cuts.steps != until and not (round_ := cuts.round(Flags())).ended:
        if round_.cut is not None:
            rows, parts = source.pop(int(round_.cut.counts[0])), round_.cut.parts
            assert [row[0] for row in rows] == round_.cut.order.tolist()
            ends = [len(rows)] if round_.cut.ends is None else round_.cut.ends.tolist()
            found += [rows[start:end] for start, end in pairwise([0, *ends])]
            blocks |= parts > 1
            assert round_.cut.examples == sum(not (finals and is_final(*row)) for row in rows)
    return found, blocks


@examples(100)
@given(logs(), st.integers(0, 99), st.sampled_from([None, 3, 9]), st.booleans())
def test_batches_of_blocks_are_those_that_are_cut_alone(
    log: Log, seed: int, until: int | None, finals: bool
) -> None:
    want, _ = batches(log, seed, None, until, finals=finals)
    assert batches(log, seed + 1, 30, until, finals=finals)[0] == want


@pytest.mark.parametrize("finals", [False, True])
def test_blocks_are_cut(finals: bool) -> None:
    log = {p: sorted(random.Random(p).choices(range(50), k=30)) for p in range(4)}
    assert batches(log, 1, 30, None, finals=finals)[1]


def test_a_block_ends_before_a_batch_of_many_finals() -> None:
    """Batches of 40 examples; 39 finals ride with those of the third."""
    finals = np.zeros(160, np.bool_)
    finals[81::2] = True
    order = np.arange(len(finals))
    found = [block(order, order, finals, batch_size=40, parts=9, most=most) for most in (FEW, 79)]
    ends = [cut.ends.tolist() for cut in found if cut is not None and cut.ends is not None]
    assert ends == [[40, 80], [40, 80, 159]]
    assert block(order[80:], order[80:], finals[80:], batch_size=40, parts=9, most=FEW) is None


@given(st.integers(2, 5), st.integers(0, 60), st.lists(st.integers(0, 30), max_size=9), st.integers(0, 99))
def test_bins_stay_until_they_are_fitted_again(n: int, more: int, sizes: list[int], seed: int) -> None:
    """As many values as `steady` says are one update, and no bound moves before the last of them."""
    rng, bins = np.random.default_rng(seed), Quantiles(n, n + more)
    state = bins.initial()
    for size in sizes:
        values = rng.normal(size=min(size, bins.steady(state)))
        values[rng.random(len(values)) < 0.2] = np.nan
        each = state
        for value in values[:-1]:
            each = bins.update(each, np.array([value]))
            np.testing.assert_array_equal(bounds(each), bounds(state))
        for value in values[-1:]:
            each = bins.update(each, np.array([value]))
        state = bins.update(state, values)
        np.testing.assert_array_equal(each, state)


def bounds(state: np.ndarray) -> np.ndarray:
    return state[1 : 1 + int(state[0])]


def pipeline(delayed: Delayed = "wait") -> Pipeline:
    """Fields of users, histories and bins."""
    whole = ad_pipeline(delayed=delayed)
    return replace(whole, dense={"price": whole.dense["price"]}, prerank=None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS, failing=FAILING)


def run(source: str, root: Path, delayed: Delayed, **options: int) -> Result:
    given_: dict[str, object] = dict(checkpoint=str(root), threads=1, until_end=True, **RAMP, **options)
    given_["run_log"] = str(root.with_suffix(".log"))
    with constants(slope=SLOPE):
        train(pipeline(delayed), TrainOptions(source, **given_))  # type: ignore[arg-type]
    return Result(root, pipeline(delayed))


@pytest.mark.parametrize("delayed", ["wait", "fnw", "es_dfm"])
def test_a_run_in_blocks_has_the_bits_of_batches_alone(
    tmp_path: Path, source: str, delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that cannot be extracted, bins that are fitted again, an end after a step inside a block."""
    cuts: list[int] = []
    advance = Stages.advance

    def noting(self: Stages, cut: Cut | None) -> None:
        cuts.append(0 if cut is None else cut.parts)
        advance(self, cut)

    monkeypatch.setattr(Stages, "advance", noting)
    for steps in (7, 30):
        run(source, tmp_path / "blocks", delayed, max_steps=steps)
        manifest = newest_manifest(tmp_path / "blocks")
        assert manifest is not None and manifest.step == steps
    found = run(source, tmp_path / "blocks", delayed)
    assert max(cuts) > 9
    cuts.clear()
    monkeypatch.setattr(batcher, "BLOCK", 1)
    alone = run(source, tmp_path / "alone", delayed)
    assert set(cuts) == {0, 1} and len(alone.predictions) == IMPRESSIONS - len(FAILING)
    assert_same(found, alone, statistics=1)
    assert windows(tmp_path / "blocks.log") == windows(tmp_path / "alone.log") != []


def windows(run_log: Path) -> list[dict[str, object]]:
    """Windows of a run log, with the steps that filled them."""
    lines = [json.loads(line) for line in run_log.read_text().splitlines()]
    return [line | {"at_ms": 0} for line in lines if line.get("kind") == "window"]
