"""Numbers that are not finite: no version has one, a run that learns nothing ends, generations say so."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import livectr.trainer.schedule
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, DeepFM, sgd
from livectr.store.keyspace import Keyspace
from livectr.system.errors import NotLearningError
from livectr.trainer.build import build
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.comm.collectives import connect
from livectr.trainer.des.skipped import SKIPPED_IN_A_ROW, Skipped
from livectr.trainer.options import TrainOptions
from livectr.trainer.publish.telemetry import PUBLISH_HELD, WITHHELD_VERSIONS
from livectr.trainer.run import Training, train
from livectr.trainer.stream import batcher
from tests import commands
from tests.metrics_page import metric_value
from tests.redis_values import manifest_in
from tests.trainer.planted_log import contest_pipeline, write_log
from tests.waiting import left_s

BATCH = 16
OVERFLOWS = LR(optimiser=sgd(lr=3e38))
"""Model whose rows are infinite after its first batch."""


def pipeline(model: Any = None) -> Pipeline:
    return contest_pipeline(challengers={}, promotion=Promotion(), rank=model or LR())


def options(source: str, folder: Path, **changes: Any) -> TrainOptions:
    run: dict[str, Any] = dict(
        until_end=True, batch_size=BATCH, batch_ramp=0, threads=1, min_examples=0,
        checkpoint=str(folder / "checkpoint"),
    )  # fmt: skip
    return TrainOptions(source, **run | changes)


def test_a_broken_model_is_not_published(
    tmp_path: Path, client: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A learning rate that overflows: the log says which table and key. Later batches are not learned."""
    withheld = metric_value(WITHHELD_VERSIONS)
    source = write_log(tmp_path / "logs", 20 * BATCH)
    run = options(source, tmp_path, publish=redis_url, max_steps=1)
    with caplog.at_level(logging.INFO):
        train(pipeline(OVERFLOWS), run)
    assert manifest_in(client).examples == 0, "the model that has learned nothing"
    assert metric_value(WITHHELD_VERSIONS) == withheld + 1
    assert metric_value(PUBLISH_HELD, reason="not_finite") == 1
    assert " rows of table C" in caplog.text and ", the first of key " in caplog.text, caplog.text
    assert "the last version was not published: numbers of the model are not finite" in caplog.text
    newest = readable(tmp_path / "checkpoint")[-1]
    assert not newest.sound and newest.quality["held"].startswith("not finite: ")

    train(pipeline(OVERFLOWS), replace(run, max_steps=None))
    newest = readable(tmp_path / "checkpoint")[-1]
    assert newest.quality["held"].startswith("not finite: ") and newest.quality["skipped"]["batches"] == 19
    assert manifest_in(client).examples == 0 and metric_value(PUBLISH_HELD, reason="not_finite") == 1


def test_a_model_that_cannot_score_is_told_from_rows_that_overflow() -> None:
    one, none = np.array([np.nan], np.float32), np.zeros(3, np.float32)
    some = np.array([np.inf, 0.0, 1.0], np.float32)
    assert not Skipped().and_one([one]).blind and Skipped().and_one([one]).and_one([one]).blind
    assert not Skipped().and_one([some, none]).blind and Skipped().and_one([some, some[::-1]]).blind
    row = Skipped()
    for _ in range(SKIPPED_IN_A_ROW):
        assert not row.blind
        row = row.and_one([some])
    assert row.blind and (row.batches, row.examples, row.unscored) == (100, 300, 100)


@pytest.mark.usefixtures("batches_alone")
def test_servers_stay_with_the_last_whole_model(
    tmp_path: Path, client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that no batch has is spoiled in memory, as by a fault of the program; it is erased later."""
    monkeypatch.setattr(livectr.trainer.schedule, "CHECKPOINT_PAUSE", 0.0)
    source = write_log(tmp_path / "logs", 300 * BATCH)
    run = options(
        source, tmp_path, publish=redis_url, publish_interval_s=1e-6, checkpoint_interval_s=0.0,
        keep_ages="1ms,1s,2s,3s",
    )  # fmt: skip
    unused = np.array([10**6])
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(pipeline(), run, collectives, resources)
        table, commits = parts.step.tables["C2"], stages.commits

        def spoil() -> Iterator[None]:
            while commits.versions < 3:
                yield
            before = metric_value(WITHHELD_VERSIONS)
            table.find_or_insert(unused)
            table.assign(unused, np.full_like(table.export()[1][:1], np.nan))
            while metric_value(WITHHELD_VERSIONS) == before:
                yield
            served = manifest_in(client).version
            while metric_value(WITHHELD_VERSIONS) < before + 10:
                yield
            assert manifest_in(client).version == served, "no version came while a row was spoiled"
            # Generations are pruned while they are read.
            while not (kept := readable(tmp_path / "checkpoint")) or kept[-1].sound:
                yield
            assert kept[-1].quality["held"] == "not finite: 1 rows of table C2, the first of key 1000000"
            table.erase(unused)
            while commits.versions < served + 3:
                yield
            ended.append(served)

        ended: list[int] = []
        script = spoil()
        Training(parts, stages, lambda: next(script, None) is not None).run()
    assert ended and manifest_in(client).version > ended[0]
    assert metric_value(PUBLISH_HELD, reason="not_finite") == 0


def test_a_run_whose_model_is_broken_ends(tmp_path: Path, client: redis.Redis, redis_url: str) -> None:
    source = write_log(tmp_path / "logs", (SKIPPED_IN_A_ROW + 20) * BATCH)
    with pytest.raises(NotLearningError) as ended:
        train(pipeline(OVERFLOWS), options(source, tmp_path, publish=redis_url))
    said = str(ended.value)
    assert re.match(r"\d+ batches in a row were not learned, since their gradients", said), said
    assert "the model holds numbers that are not finite (" in said and " rows of table C" in said
    assert "no generation of a whole model is kept: lower the learning rates" in said
    # It ends before the version of the model that has learned nothing need be published.
    assert not client.exists(Keyspace().manifest) or manifest_in(client).examples == 0


FILE = """\
from livectr.ingest.language.promotion import Promotion
from livectr.models import LR, sgd
from tests.trainer.planted_log import contest_pipeline

pipeline = contest_pipeline(challengers={}, promotion=Promotion(), rank=LR(optimiser=sgd(lr=3e38)))
"""


def test_two_ranks_end_alike(tmp_path: Path, client: redis.Redis, redis_url: str) -> None:
    """A row that is broken on one rank withholds the version of both; one of them says why they end."""
    write_log(tmp_path / "logs", (SKIPPED_IN_A_ROW + 20) * BATCH)
    (tmp_path / "p.py").write_text(FILE)
    words = ["train", "--pipeline", "p.py", "--source", "file:logs", "--ranks", "2", "--publish", redis_url]
    words += [
        "--checkpoint",
        "c",
        "--until-end",
        "--set",
        "threads=1",
        f"batch_size={BATCH}",
        "batch_ramp=16",
    ]
    words += ["min_examples=0", "publish_interval_s=0.01"]
    ended = commands.run(
        [sys.executable, "-m", "livectr", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=left_s(),
    )
    said = [line for line in ended.stderr.splitlines() if line.startswith("livectr: ")]
    assert ended.returncode == 1 and len(said) == 2, ended.stderr
    assert re.search(r"10\d batches in a row were not learned", said[0]), said[0]  # some are under way
    assert "training failed: rank 0 ended with exit code 1; rank 1 ended with exit code 1" in said[1]
    assert manifest_in(client).examples == 0


STRETCH = SKIPPED_IN_A_ROW + 20
"""Batches that overflow."""


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    """Log of examples with a price, of which a stretch overflows after the first ten batches."""
    write_prices(tmp_path, [1.0] * (10 * BATCH) + [3e38] * (STRETCH * BATCH) + [1.0] * (20 * BATCH))
    return tmp_path


def write_prices(folder: Path, prices: list[float]) -> None:
    (folder / "logs" / "shown").mkdir(parents=True)
    rows = ({"user": i % 7, "price": price, "label": float(i % 3 == 0)} for i, price in enumerate(prices))
    (folder / "logs" / "shown" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def priced_pipeline() -> Pipeline:
    """The sum of two prices' gradients overflows in the first order; the network takes their logarithm."""
    shown = Stream("shown", key="user", columns={"user": "int64", "price": "float32", "label": "float32"})
    log = labelled(shown, label="label")
    dense = {"price": shown.price, "again": shown.price}
    return Pipeline(log, sparse={"user": shown.user}, dense=dense, rank=DeepFM(dim=2, hidden=(4,)))


@pytest.mark.usefixtures("batches_alone")
def test_a_run_learns_again_after_a_stretch_of_the_log_that_overflows(
    priced: Path, client: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its model is whole. It is stopped in the stretch, where versions are held by then, and goes on."""
    run = options(f"file:{priced / 'logs'}", priced, publish=redis_url, publish_interval_s=1e-6)
    train(priced_pipeline(), replace(run, max_steps=10 + STRETCH))
    assert re.search(r"10\d batches in a row were not learned", caplog.text)
    assert "The model's numbers are finite, so look at the dense features that come (clip(" in caplog.text
    held = readable(priced / "checkpoint")[-1].quality
    assert held["skipped"] == {"batches": STRETCH, "examples": STRETCH * BATCH, "unscored": 0}
    assert 10 * BATCH <= manifest_in(client).examples < (10 + SKIPPED_IN_A_ROW) * BATCH
    assert metric_value(PUBLISH_HELD, reason="not_learned") == 1

    train(priced_pipeline(), run)
    assert readable(priced / "checkpoint")[-1].sound
    assert manifest_in(client).examples == (10 + STRETCH + 20) * BATCH
    assert metric_value(PUBLISH_HELD, reason="not_learned") == 0


def test_a_stretch_that_ends_within_a_block_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that is learned after it is of the same compiled call."""
    prices = [1.0] * 40 + [3e38] * (4 * STRETCH) + [1.0] * 80
    write_prices(tmp_path, prices)
    monkeypatch.setattr(batcher, "BLOCK", len(prices))
    run = options(f"file:{tmp_path / 'logs'}", tmp_path, batch_size=4)
    train(priced_pipeline(), run)
    assert [line for line in caplog.messages if "batches in a row" in line] == [
        f"{STRETCH} batches in a row were not learned, since their gradients are not finite. The model's "
        "numbers are finite, so look at the dense features that come (clip(x, low, high) bounds one) and at "
        "the learning rates"
    ]


def test_a_log_whose_last_rows_overflow_is_published(
    tmp_path: Path, client: redis.Redis, redis_url: str
) -> None:
    """The rows are a batch of their own, and say nothing of the model. One of them is predicted wrongly."""
    write_prices(tmp_path, [1.0] * (10 * BATCH) + [3e38] * 3)
    train(priced_pipeline(), options(f"file:{tmp_path / 'logs'}", tmp_path, publish=redis_url))
    assert readable(tmp_path / "checkpoint")[-1].quality["skipped"]["batches"] == 1
    assert manifest_in(client).examples == 10 * BATCH + 3


def test_a_generation_says_that_batches_are_not_learned(priced: Path) -> None:
    run = options(f"file:{priced / 'logs'}", priced, max_steps=13)
    train(priced_pipeline(), run)
    newest = readable(priced / "checkpoint")[-1]
    assert newest.quality["skipped"]["batches"] == 3 and not newest.sound
    train(priced_pipeline(), replace(run, max_steps=14))
    newest = readable(priced / "checkpoint")[-1]
    assert newest.quality["skipped"]["batches"] == 4 and not newest.sound, "a restart makes nothing good"
