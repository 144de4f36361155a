"""Batch ramp: batches grow with the examples seen, on any number of ranks and over restarts."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from livectr.config.parsing import parse
from livectr.models import LR, TwoTower
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.comm.control import Control
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.header import Flags
from tests.trainer.ad_logs import ad_pipeline, without_statistics, write_files
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.trainer.scripted_source import Log, ScriptedSource
from tests.trainer.short_logs import constants

IMPRESSIONS = 1_500
SLOPE = 10
OPTIONS: dict[str, object] = dict(batch_size=128, batch_ramp=16, threads=1, until_end=True)


def test_sizes_are_a_slope_between_two_bounds() -> None:
    ramp = BatchRamp(most=4096, first=4, slope=1024)
    assert [ramp.size(seen) for seen in (0, 5_119, 5_120, 1 << 20, 1 << 30)] == [4, 4, 5, 1024, 4096]
    assert [BatchRamp(64).size(seen) for seen in (0, 1 << 30)] == [64, 64]
    assert BatchRamp(2, 4).size(0) == 2


def sizes(log: Log, seed: int, seen: int) -> list[int]:
    """Sizes of the batches of a log that arrives as a seed says."""
    source = ScriptedSource(log, seed)
    batcher = Batcher(source, Control(), ramp=BatchRamp(32, 2, 4), seen=seen, times=Times(poll_s=0))
    cuts = []
    while not (round_ := batcher.round(Flags())).ended:
        if round_.cut is not None:
            source.pop(int(round_.cut.counts[0]))
            cuts.append(len(round_.cut.order))
    assert batcher.seen == seen + sum(cuts) == seen + sum(map(len, log.values()))
    return cuts


def test_the_batcher_follows_it_whenever_events_come() -> None:
    log = {p: sorted(random.Random(p).choices(range(50), k=30)) for p in range(4)}
    once = sizes(log, seed=1, seen=0)
    assert once[:6] == [2, 2, 2, 2, 2, 2] and max(once) > 20 and once[:-1] == sorted(once[:-1])
    assert once == sizes(log, seed=2, seen=0)
    assert sizes(log, seed=1, seen=1000) == [32, 32, 32, 24]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


def run(source: str, root: Path, delayed: str = "wait", **options: object) -> Result:
    settings = TrainOptions(source, checkpoint=str(root), **OPTIONS | options)  # type: ignore[arg-type]
    with constants(slope=SLOPE):
        train(ad_pipeline(delayed=delayed), settings)  # type: ignore[arg-type]
    return Result(root)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    return run(source, tmp_path_factory.mktemp("unbroken"))


def test_a_resumed_run_continues_with_its_batches(tmp_path: Path, source: str, unbroken: Result) -> None:
    for steps in (5, 20):
        run(source, tmp_path, max_steps=steps)
    assert_same(run(source, tmp_path), unbroken)


@pytest.mark.parametrize(
    ("also", "first"), [({}, 4), ({"prerank": TwoTower(user=("user",), item=("ad",), dim=4)}, 64)]
)
def test_the_first_batches_are_larger_where_torch_learns_a_model(
    tmp_path: Path, also: dict[str, Any], first: int
) -> None:
    pipeline = replace(without_statistics(), rank=LR(), **also)
    done = train(pipeline, TrainOptions(write_files(tmp_path, 320), until_end=True))
    assert done.steps == 320 // first


def test_late_positives_count(tmp_path: Path, source: str) -> None:
    """They take places in batches and are no examples: the checkpoint keeps a count of its own."""
    whole = run(source, tmp_path / "whole", "fnw")
    run(source, tmp_path / "two", "fnw", max_steps=15)
    manifest = newest_manifest(tmp_path / "two")
    assert manifest is not None and manifest.seen > manifest.examples
    assert_same(run(source, tmp_path / "two", "fnw"), whole)


def test_ranks_choose_their_exchange_once_batches_are_large(
    tmp_path: Path, source: str, unbroken: Result
) -> None:
    """Networks are rebuilt in the middle of the run, and continue with what they have learned."""
    options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path), "slope": SLOPE}
    finish(start(2, {**options, "max_steps": 8}))
    assert FIELD_EXCHANGE_KEY not in Result(tmp_path).dense
    finish(start(2, options))
    result = Result(tmp_path)
    assert FIELD_EXCHANGE_KEY in result.dense
    assert_close(result, unbroken)


@pytest.mark.parametrize(("parts", "continues"), [("full", True), ("network", False), ("embeddings", False)])
def test_a_warm_start_resumes_with_a_whole_model(
    tmp_path: Path, source: str, parts: str, continues: bool
) -> None:
    run(source, tmp_path / "old", max_steps=20)
    run(source, tmp_path / "new", max_steps=1, warm_start=str(tmp_path / "old"), warm_parts=parts)
    old, new = newest_manifest(tmp_path / "old"), newest_manifest(tmp_path / "new")
    assert old is not None and new is not None
    assert new.examples == (old.seen // 10 if continues else 16)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_ramp is -1, but must be at least 0"):
        TrainOptions("file:logs", batch_ramp=-1)


@pytest.mark.parametrize(
    ("name", "instead"),
    [("batch_min", "batch_ramp is the size of the first"), ("online_batch", "leave it out")],
)
def test_settings_that_it_had_name_what_replaces_them(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is no setting any more; {instead}"):
        parse(name, 8, "livectr.toml")
