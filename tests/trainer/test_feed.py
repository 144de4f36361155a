"""The feed: features beside the step, running statistics of the past alone, rows that cannot be extracted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.control import Control
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stream.batcher import Batcher
from livectr.trainer.stream.cut import Cut
from livectr.trainer.stream.feed import Batch, Feed
from livectr.trainer.stream.header import Flags
from tests.trainer.ad_logs import ad_pipeline, events, without_statistics, write_files
from tests.trainer.processes import finish, start
from tests.waiting import left_s

IMPRESSIONS, BATCH = 1_500, 64
FAILING = {3, 4, 700, 701, 702, 1_499}


class SlowExtractor:
    """The pipeline's extractor, which waits until it is let go."""

    def __init__(self) -> None:
        self.extract = Extractor(ad_pipeline().plan)
        self.go = threading.Event()
        self.begun: list[int] = []

    def __call__(self, examples: Examples, statistics: Statistics) -> Features:
        self.begun.append(len(examples))
        assert self.go.wait(left_s())
        return self.extract(examples.columns, statistics)


@contextmanager
def opened(
    source: str,
    extract: Callable[[Examples, Statistics], Features],
    pipeline: Pipeline | None = None,
    depth: int = 1,
) -> Iterator[tuple[Feed, ExampleSource, Batcher]]:
    pipeline = pipeline or ad_pipeline()
    with ExitStack() as stack:
        letters = DeadLetters(None)
        examples = ExampleSource(
            pipeline, source, ReadOptions(until_end=True), rank=0, world=1, dead_letters=letters
        )
        stack.callback(examples.close)
        feed = Feed(
            examples,
            extract,
            Control(),
            statistics=Statistics(pipeline.plan),
            dead_letters=letters,
            depth=depth,
        )
        stack.callback(feed.close)
        yield feed, examples, Batcher(examples, Control(), ramp=BatchRamp(BATCH))


def next_cut(batcher: Batcher) -> Cut | None:
    while True:
        round_ = batcher.round(Flags())
        if round_.cut is not None or round_.ended:
            return round_.cut


def test_a_batch_is_extracted_while_its_caller_continues(tmp_path: Path) -> None:
    extract = SlowExtractor()
    with opened(write_files(tmp_path, 300), extract) as (feed, source, batcher):
        assert feed(None) is None and feed.in_flight == 0
        assert feed(next_cut(batcher)) is None
        assert feed.in_flight == 1  # and this thread is not held up
        next_cut(batcher)
        assert len(source.orders(300)[0]) + BATCH <= 300, "nothing more is taken"
        before = feed.statistics
        threading.Timer(0.2, extract.go.set).start()
        batch = feed(None)
        assert batch is not None and len(batch) == batch.features.rows == BATCH and feed.in_flight == 0
        assert extract.begun == [BATCH]
        assert feed.statistics is not before and before.arrays[0][0] == 0, "a snapshot stays what it was"


def test_two_batches_are_extracted_at_a_time(tmp_path: Path) -> None:
    """Batches that no statistics tie to the one before come the same, in the same order."""
    source, pipeline = write_files(tmp_path, 400), without_statistics()
    host, both = Extractor(pipeline.plan), threading.Barrier(2)

    def alone(examples: Examples, statistics: Statistics) -> Features:
        return host(examples.columns, statistics)

    def meeting(examples: Examples, statistics: Statistics) -> Features:
        both.wait(left_s())  # for the thread that extracts the other batch
        return host(examples.columns, statistics)

    found: list[list[Batch]] = []
    for depth, extract in ((1, alone), (2, meeting)):
        with opened(source, extract, pipeline, depth) as (feed, _, batcher):
            batches, held = [], []
            for turn in range(8):
                batches.append(feed(next_cut(batcher) if turn < 6 else None))
                held.append(feed.in_flight)
            assert held == ([1] * 6 + [0, 0] if depth == 1 else [1] + [2] * 5 + [1, 0])
            found.append([batch for batch in batches if batch is not None])
    assert [len(batches) for batches in found] == [6, 6]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.instance, other.instance)
        np.testing.assert_array_equal(one.features.host().keys, other.features.host().keys)
    with pytest.raises(ValueError, match="statistics after the batch before"), opened(source, alone, depth=2):
        pass


def test_an_extractor_that_fails_fails_the_run(tmp_path: Path) -> None:
    def broken(examples: Examples, statistics: Statistics) -> Features:
        raise MemoryError("no more")

    with opened(write_files(tmp_path, 100), broken) as (feed, _, batcher):
        assert feed(next_cut(batcher)) is None
        with pytest.raises(MemoryError, match="no more"):
            feed(None)


def test_a_batch_of_other_examples_than_its_cut_is_refused(tmp_path: Path) -> None:
    host = Extractor(ad_pipeline().plan)
    with opened(write_files(tmp_path, 300), lambda e, s: host(e.columns, s)) as (feed, source, batcher):
        cut = next_cut(batcher)
        source.pop(1)
        with pytest.raises(RuntimeError, match="other examples than its cut"):
            feed(cut)


def test_features_know_the_batches_before_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recomputed from the log in plain Python, batch after batch, with the batches pipelined."""
    seen: list[np.ndarray] = []
    prepare = DesStep.prepare

    def noting(self: DesStep, features: Features, *more: np.ndarray) -> PreparedBatch:
        seen.append(features.dense[:, 1:])
        return prepare(self, features, *more)

    monkeypatch.setattr(DesStep, "prepare", noting)
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    options = dict(until_end=True, batch_size=BATCH, batch_ramp=0, predictions=str(tmp_path / "predictions"))
    train(ad_pipeline(), TrainOptions(source, **options))  # type: ignore[arg-type]
    order = read_predictions(tmp_path / "predictions")["instance"]
    ads = [record["ad_id"] for _, record in events(IMPRESSIONS)["impressions"]]
    ad = np.array([ads[instance] for instance in order])
    shown: Counter[int] = Counter()
    past: list[float] = []
    for number, got in enumerate(seen):
        batch = ad[number * BATCH : (number + 1) * BATCH]
        price = (batch / 10).astype(np.float32).astype(np.float64)
        z = (price - np.mean(past)) / np.std(past) if past else np.zeros(len(batch))
        np.testing.assert_allclose(got[:, 0], z, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[:, 1], np.log1p([shown[a] for a in batch]).astype(np.float32))
        shown.update(batch.tolist())
        past += price.tolist()
    assert sum(map(len, seen)) == IMPRESSIONS


class Failing:
    """Checkpoint of a run over a log whose rows cannot all be extracted."""

    def __init__(self, root: Path, world: int) -> None:
        source = write_files(root / "logs", IMPRESSIONS, failing=FAILING)
        options = dict(
            source=source, until_end=True, batch_size=BATCH, batch_ramp=0, threads=1, publish_interval_s=0.2
        )
        more = dict(checkpoint=str(root / "checkpoint"), report=str(root / "report.json"))
        letters = dict(dead_letters=str(root / "letters"))
        finish(start(world, {**options, **more, **letters}))
        self.report = json.loads((root / "report.json").read_text())
        self.predictions = read_predictions(root / "checkpoint" / "predictions")
        self.letters = [
            json.loads(line)
            for path in sorted((root / "letters").iterdir())
            for line in path.read_text().splitlines()
        ]
        manifest = newest_manifest(root / "checkpoint")
        assert manifest is not None
        statistics = Restored(root / "checkpoint", manifest).statistics()
        self.statistics = {name: array.tobytes() for name, array in statistics.items()}
        (self.counts,) = (array for name, array in statistics.items() if name.startswith("frequency"))


def test_a_row_that_fails_is_a_dead_letter_and_its_batch_continues(tmp_path: Path) -> None:
    one, two = Failing(tmp_path / "one", 1), Failing(tmp_path / "two", 2)
    for run in (one, two):
        kept = IMPRESSIONS - len(FAILING)
        assert run.report["examples_trained"] == kept == len(run.predictions)
        assert run.report["dead_letters"] == len(FAILING) == len(run.letters)
        assert set(run.predictions["instance"]) == set(range(IMPRESSIONS)) - FAILING
        assert {letter["index"] for letter in run.letters} == FAILING
        assert run.counts.reshape(4, -1).sum(axis=1).tolist() == [kept] * 4
        assert np.isfinite(run.predictions["rank"]).all()
    for name in ("instance", "user", "item", "time_ms", "seen", "label"):
        assert (one.predictions[name] == two.predictions[name]).all()
    np.testing.assert_allclose(one.predictions["rank"], two.predictions["rank"], atol=2e-3)
    assert one.statistics == two.statistics, "bit for bit, whatever N"
    letter = next(letter for letter in one.letters if letter["index"] == 700)
    user = int(str(events(IMPRESSIONS)["impressions"][700][1]["user_id"]))
    assert (letter["reason"], letter["topic"], letter["offset"]) == ("not_extracted", "impressions", -1)
    assert letter["partition"] == user % 4 and "instance 700 " in letter["detail"]
    assert json.loads(letter["value"])["impressions.user_id"] == user
