"""kill -9 at any moment: the resumed run's tables, networks and predictions are those of an unbroken run."""

import functools
import json
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.store.layout import Keyspace, decode_rows
from livectr.system.errors import MismatchError
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.checkpoint.lease import hold
from livectr.trainer.checkpoint.manifest import Folder, newest_manifest
from livectr.trainer.checkpoint.step_back import MARK, ask
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.placement.measured import row_bytes
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import train
from tests.redis_values import manifest_in, values
from tests.trainer.ad_logs import ad_pipeline, write_files, write_kafka
from tests.trainer.kills import (
    IMPRESSIONS,
    OPTIONS,
    generation,
    kill_group,
    kill_one_rank,
    kill_somewhere,
    kill_up_to,
)
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.waiting import until


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    root = tmp_path_factory.mktemp("unbroken")
    finish(start(1, {**OPTIONS, "source": source, "checkpoint": str(root)}))
    result = Result(root)
    assert len(result.predictions) == IMPRESSIONS
    return result


def test_killed_anywhere_it_ends_as_if_nothing_had_been(
    tmp_path: Path, source: str, unbroken: Result, redis_url: str
) -> None:
    root = tmp_path / "checkpoint"
    options = {**OPTIONS, "source": source, "checkpoint": str(root), "publish": redis_url}
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    kill = functools.partial(kill_somewhere, root=root, rng=random.Random(), sudden=kill_group)
    kill_up_to(3, lambda: start(1, options), kill, lambda: shutil.rmtree(root), client.flushall)
    finish(start(1, options))
    result = Result(root)
    assert_same(result, unbroken)
    # what servers read is the model that was trained
    manifest = manifest_in(client)
    assert manifest.step == unbroken.step
    for name, (keys, rows) in unbroken.tables.items():
        held = values(client, Keyspace().rows(manifest.row_set, name, keys))
        served, status = decode_rows(held, manifest.version, manifest.dim)
        assert not status.any()
        assert served.tobytes() == np.ascontiguousarray(rows[:, : manifest.dim]).tobytes()


def test_ranks_killed_and_resumed_by_another_number_of_ranks(
    tmp_path: Path, source: str, unbroken: Result
) -> None:
    rng = random.Random()
    root = tmp_path / "checkpoint"
    options = {**OPTIONS, "source": source, "checkpoint": str(root)}
    for world in (2, 3):
        if not kill_somewhere(start(world, options), root, rng, kill_one_rank):
            break
    finish(start(1, options))
    assert_close(Result(root), unbroken)


def test_two_ranks_go_back_and_end_as_if_nothing_had_been(
    tmp_path: Path, source: str, unbroken: Result
) -> None:
    """In the processes that run; those of the next start, if the log has ended before they look."""
    options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path)}
    ranks = start(2, options)
    until(lambda: any(m.examples for m in readable(tmp_path)), turn=lambda: time.sleep(0.005))
    with closing(hold(Folder(tmp_path), readable(tmp_path)[-1].generation)) as held:
        ask(tmp_path, held.manifest, held.restored.root)
        text = finish(ranks)
        if (tmp_path / MARK).exists():
            text = finish(start(2, options))
    assert f"goes back to generation {held.manifest.generation}" in text and not (tmp_path / MARK).exists()
    assert_close(Result(tmp_path), unbroken)


@pytest.mark.full
@pytest.mark.parametrize("delayed", ["fnw", "es_dfm"])
def test_late_labels_on_any_number_of_ranks_killed_anywhere(
    tmp_path: Path, source: str, delayed: str
) -> None:
    """Provisional negatives, late positives, finals, heads, and scores that wait for their labels are in the
    commit."""
    options = {**OPTIONS, "source": source}
    finish(start(1, {**options, "checkpoint": str(tmp_path / "unbroken")}, delayed=delayed))
    unbroken = Result(tmp_path / "unbroken")
    assert len(unbroken.predictions) == IMPRESSIONS
    rng = random.Random()
    one = {**options, "checkpoint": str(tmp_path / "one")}
    for _ in range(2):
        kill_somewhere(start(1, one, delayed=delayed), tmp_path / "one", rng, kill_group)
    finish(start(1, one, delayed=delayed))
    assert_same(Result(tmp_path / "one"), unbroken)
    others = {**options, "checkpoint": str(tmp_path / "others")}
    for world in (2, 4):
        kill_somewhere(start(world, others, delayed=delayed), tmp_path / "others", rng, kill_one_rank)
    finish(start(2, others, delayed=delayed))
    assert_close(Result(tmp_path / "others"), unbroken)
    every = {**options, "checkpoint": str(tmp_path / "every"), "aggregate": "allreduce"}
    finish(start(2, every, delayed=delayed))
    assert_close(Result(tmp_path / "every"), unbroken)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, source: str) -> Path:
    """The checkpoint of two ranks in the middle of the log."""
    root = tmp_path_factory.mktemp("half")
    finish(start(2, {**OPTIONS, "source": source, "checkpoint": str(root), "max_steps": 40}))
    manifest = newest_manifest(root)
    assert manifest is not None and (manifest.world, manifest.step) == (2, 40)
    return root


@pytest.mark.parametrize("world", [1, 3, pytest.param(4, marks=pytest.mark.full)])
def test_two_ranks_resumed_by_another_number(
    tmp_path: Path, source: str, unbroken: Result, half: Path, world: int
) -> None:
    """DES §5's f mod N puts every row on another rank, where it is found and continues."""
    root = shutil.copytree(half, tmp_path / "checkpoint")
    report = tmp_path / "report.json"
    finish(start(world, {**OPTIONS, "source": source, "checkpoint": str(root), "report": str(report)}))
    assert_close(Result(root), unbroken)
    stream = json.loads(report.read_text())["stream"]
    clicked = int(unbroken.predictions["label"].sum())
    assert (stream["examples"], stream["clicked"]) == (IMPRESSIONS, clicked)
    found = {"found": IMPRESSIONS, "missing": 0}
    assert stream["lookups"] == {"users": found, "ads": found}
    manifest = newest_manifest(root)
    assert manifest is not None and manifest.world == world
    assert manifest.field_keys["ad"] == IMPRESSIONS  # those of both runs and all ranks
    assert manifest.table_rows == {name: len(keys) for name, (keys, _) in unbroken.tables.items()}


def test_balanced_ranks_resumed_by_another_number(
    tmp_path: Path, source: str, unbroken: Result, half: Path, redis_url: str
) -> None:
    """Resumed, a run places by what was measured; with hardly room for all rows, tables are split by key.
    Their rows find their ranks again, and all of them are published."""
    root = shutil.copytree(half, tmp_path / "checkpoint")
    options = {**OPTIONS, "source": source, "checkpoint": str(root), "placement": "balanced"}
    manifest = newest_manifest(root)
    assert manifest is not None
    each = row_bytes(DesStep(ad_pipeline(), seed=1).spec.layout)
    total = sum(manifest.table_rows.values()) * each
    reported = finish(
        start(4, {**options, "rank_memory": manifest.table_rows["user"] * each - 1, "max_steps": 50})
    )
    assert "split by key: user" in reported
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    reported = finish(start(2, {**options, "rank_memory": total // 2 + 1, "publish": redis_url}))
    assert "placement balanced: the rank with most keys has 1." in reported and "split by key: " in reported
    assert_close(Result(root), unbroken)
    rows = {name: len(keys) for name, (keys, _) in unbroken.tables.items()}
    manifest = newest_manifest(root)
    assert manifest is not None and manifest.table_rows == rows
    version = manifest_in(client)
    assert (version.step, version.tables) == (unbroken.step, rows)
    for name, (keys, _) in unbroken.tables.items():
        _, status = decode_rows(
            values(client, Keyspace().rows(version.row_set, name, keys)), version.version, version.dim
        )
        assert not status.any()


def test_killed_on_a_real_broker(
    tmp_path: Path, unbroken: Result, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """Records arrive in other chunks and with other pauses than from files, and nothing changes."""
    prefix = topic_name("resume")
    write_kafka(kafka_url, prefix, IMPRESSIONS)
    root = tmp_path / "checkpoint"
    options = {**OPTIONS, "source": kafka_url, "checkpoint": str(root)}
    kill_somewhere(start(1, options, prefix), root, random.Random(), kill_group)
    finish(start(1, options, prefix))
    result = Result(root)
    assert result.predictions.tobytes() == unbroken.predictions.tobytes()
    assert_same(result, unbroken)


def test_sigterm_commits_and_ends_well(tmp_path: Path, source: str, unbroken: Result) -> None:
    root = tmp_path / "checkpoint"
    options = {**OPTIONS, "source": source, "checkpoint": str(root), "publish_interval_s": 0.5}
    process = start(1, options)
    until(lambda: generation(root) != 0)
    process.terminate()
    assert "asked to stop" in finish(process)
    stopped = newest_manifest(root)
    assert stopped is not None and 0 <= stopped.step < unbroken.step
    assert len(read_predictions(root / "predictions")) == stopped.predictions
    finish(start(1, options))
    assert_same(Result(root), unbroken)


def test_positions_of_files_are_none_of_a_broker(tmp_path: Path) -> None:
    """An offset counts messages there and rows here: the log would be read again, or not at all."""
    root = tmp_path / "checkpoint"
    options = TrainOptions(write_files(tmp_path / "logs", 200), checkpoint=str(root), until_end=True)
    train(ad_pipeline(), options)
    kafka = replace(options, source="kafka://127.0.0.1:9")
    with pytest.raises(
        MismatchError, match=r"goes on in files.* Kafka topics.*--checkpoint DIR --warm-start"
    ):
        train(ad_pipeline(), kafka)
    moved = shutil.move(tmp_path / "logs", tmp_path / "moved")
    report = train(ad_pipeline(), replace(options, source=f"file:{moved}"))
    assert report.examples_trained == 200, "the same files in another place"
