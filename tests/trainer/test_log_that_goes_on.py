"""Runs to the end of a log that goes on: the next run gives waiting impressions their labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import livectr
from livectr.ingest.language.delays import Delayed
from livectr.ingest.pipeline import Pipeline
from livectr.store.layout import Keyspace, RowStatus, decode_rows
from livectr.system.errors import ConfigError
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.report import Report
from livectr.trainer.run import TrainOptions, train
from tests.ranks import Processes
from tests.redis_values import manifest_in, values
from tests.trainer.growing_log import (
    CUT_MS,
    PARTITIONS,
    ROWS,
    START_MS,
    STEP_MS,
    WINDOW_MS,
    log,
    pipeline,
    write,
)
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_same


def run(pipe: Pipeline, root: Path, checkpoint: Path, **options: Any) -> Report:
    given = dict(until_end=True, batch_size=16, batch_ramp=0, threads=1, checkpoint=str(checkpoint))
    return train(pipe, TrainOptions(f"file:{root}", **given | options))  # type: ignore[arg-type]


def labels(checkpoint: Path, role: str = "label") -> dict[int, float]:
    found = read_predictions(checkpoint / "predictions")
    assert len(np.unique(found["instance"])) == len(found)
    return dict(zip(found["instance"].tolist(), found[role].tolist(), strict=True))


@pytest.mark.parametrize("late_s", [0, 20])
@pytest.mark.parametrize("delayed", ["wait", "fnw"])
@pytest.mark.parametrize("at_end", ["auto", "keep"])
def test_two_runs_learn_the_labels_of_one(tmp_path: Path, at_end: str, delayed: Delayed, late_s: int) -> None:
    """The log of clicks may end a little before that of impressions."""
    pipe, root = pipeline(delayed), tmp_path / "logs"
    ends = {"shown": CUT_MS, "clicks": CUT_MS - late_s * 1_000, "orders": CUT_MS}
    write(root, "day-1", START_MS, ends)
    first = run(pipe, root, tmp_path / "twice", at_end=at_end)
    waits = first.waiting["impressions"]
    assert 0 < waits <= (WINDOW_MS + 30_000) / STEP_MS
    if delayed == "wait" or at_end == "auto":
        assert first.examples_trained == ROWS // 2 - (0 if at_end == "auto" else waits)
    write(root, "day-2", CUT_MS, ends)
    run(pipe, root, tmp_path / "twice")
    run(pipe, root, tmp_path / "once")
    got, want = labels(tmp_path / "twice"), labels(tmp_path / "once")
    assert len(want) == ROWS and sum(want.values()) == ROWS // 3
    assert got == want


@pytest.mark.parametrize("at_end", ["auto", "learn"])
def test_a_partition_is_learned_bit_by_bit_as_in_one_run(tmp_path: Path, at_end: str) -> None:
    """Each run goes on at a whole batch; ended for good, the first would have left clicks without a row."""
    ends = {"shown": CUT_MS, "clicks": CUT_MS - 20_000, "orders": CUT_MS}
    write(tmp_path / "logs", "day-1", START_MS, ends, partitions=1)
    first = run(pipeline(), tmp_path / "logs", tmp_path / "twice", at_end=at_end)
    again = run(pipeline(), tmp_path / "logs", tmp_path / "twice", at_end=at_end)
    assert (first.examples_trained, first.steps) == (again.examples_trained, again.steps)
    write(tmp_path / "logs", "day-2", CUT_MS, ends, partitions=1)
    twice = run(pipeline(), tmp_path / "logs", tmp_path / "twice")
    once = run(pipeline(), tmp_path / "logs", tmp_path / "once")
    assert twice.examples_trained == once.examples_trained == ROWS
    got, want = (Result(tmp_path / name, pipeline()) for name in ("twice", "once"))
    if at_end == "auto":
        assert_same(got, want, statistics=0, items=())
    else:
        assert labels(tmp_path / "twice") != labels(tmp_path / "once")


def test_a_changed_pipeline_goes_on_there_too(tmp_path: Path) -> None:
    ends = dict.fromkeys(("shown", "clicks", "orders"), CUT_MS)
    write(tmp_path / "logs", "day-1", START_MS, ends)
    run(pipeline(), tmp_path / "logs", tmp_path / "old")
    write(tmp_path / "logs", "day-2", CUT_MS, ends)
    changed = pipeline()
    changed = replace(changed, sparse={**changed.sparse, "user": changed.log.user})
    more = dict(warm_start=str(tmp_path / "old"), warm_parts="run")
    run(changed, tmp_path / "logs", tmp_path / "new", **more)
    run(pipeline(), tmp_path / "logs", tmp_path / "once")
    got, want = labels(tmp_path / "new"), labels(tmp_path / "once")
    assert ROWS // 2 <= len(got) < ROWS // 2 + 100
    assert got == {instance: label for instance, label in want.items() if instance in got}


def test_what_is_served_follows(tmp_path: Path, redis_url: str, client: redis.Redis) -> None:
    """The next run learns other rows than those that were published, and publishes them."""
    ends = dict.fromkeys(("shown", "clicks", "orders"), CUT_MS)
    write(tmp_path / "logs", "day-1", START_MS, ends, partitions=1)
    run(pipeline(), tmp_path / "logs", tmp_path / "c", publish=redis_url, min_examples=0)
    before = manifest_in(client)
    write(tmp_path / "logs", "day-2", CUT_MS, ends, partitions=1)
    report = run(pipeline(), tmp_path / "logs", tmp_path / "c", publish=redis_url, min_examples=0)
    manifest = manifest_in(client)
    assert before.examples == ROWS // 2 and manifest.examples == ROWS and manifest.version > before.version
    assert report.complete_versions == 1
    result = Result(tmp_path / "c", pipeline())
    for name, (keys, rows) in result.tables.items():
        held = values(client, Keyspace("livectr").rows(manifest.row_set, name, keys))
        found, status = decode_rows(held, manifest.version, manifest.dim)
        assert (status == RowStatus.FOUND).all() and len(keys) > 5
        np.testing.assert_array_equal(found, rows[:, : manifest.dim])


def test_labels_of_their_own_streams_wait_too(tmp_path: Path) -> None:
    pipe, root = pipeline(orders=True), tmp_path / "logs"
    ends = dict.fromkeys(("shown", "clicks", "orders"), CUT_MS)
    write(root, "day-1", START_MS, ends)
    run(pipe, root, tmp_path / "twice")
    write(root, "day-2", CUT_MS, ends)
    run(pipe, root, tmp_path / "twice")
    run(pipe, root, tmp_path / "once")
    for role in ("label", "rank.order.label"):
        assert labels(tmp_path / "twice", role) == labels(tmp_path / "once", role)
    assert sum(labels(tmp_path / "twice", "rank.order.label").values()) == ROWS // 5


def test_without_a_checkpoint_all_impressions_are_learned(tmp_path: Path) -> None:
    """No later run could give them their clicks."""
    ends = dict.fromkeys(("shown", "clicks", "orders"), CUT_MS)
    write(tmp_path / "logs", "day-1", START_MS, ends)
    source = f"file:{tmp_path / 'logs'}"
    for report in (
        train(pipeline(), TrainOptions(source, until_end=True, threads=1)),
        livectr.train(pipeline(), source=source, threads=1).report,
        livectr.train(pipeline(), {name: rows for name, rows in log().items() if name != "orders"}).report,
    ):
        assert report.examples_trained in (ROWS // 2, ROWS) and report.waiting == {}
    with pytest.raises(ConfigError, match="at_end is keep, but there is no checkpoint"):
        TrainOptions(source, until_end=True, at_end="keep")


def test_a_topic_that_gives_no_more_holds_nothing_back_for_long(tmp_path: Path) -> None:
    """Clicks that end more than a window before the impressions: the log of them is quiet."""
    ends = {"shown": CUT_MS, "clicks": CUT_MS - 3 * WINDOW_MS, "orders": CUT_MS}
    write(tmp_path / "logs", "day-1", START_MS, ends)
    report = run(pipeline(), tmp_path / "logs", tmp_path / "c", at_end="keep")
    assert report.waiting["impressions"] == pytest.approx(2 * WINDOW_MS / STEP_MS, abs=5)


def test_a_log_shorter_than_its_window_says_so(tmp_path: Path) -> None:
    rows = {topic: found[:20] for topic, found in log().items()}
    for topic, found in rows.items():
        (tmp_path / topic).mkdir()
        (tmp_path / topic / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    report = run(pipeline(), tmp_path, tmp_path / "c", at_end="keep")
    assert report.examples_trained == 0 and report.waiting["impressions"] == 20
    assert report.hints == [
        "nothing was learned: the log ends before window=1m of an impression has passed. Give more of the "
        "log, or leave at_end=keep out"
    ]
    assert run(pipeline(), tmp_path, tmp_path / "c").examples_trained == 20


def test_ranks_equal_one_where_a_partition_is_quiet(tmp_path: Path) -> None:
    """One rank's log ends long before that of the other, which still reads."""
    ends = dict.fromkeys(("shown", "clicks", "orders"), CUT_MS)
    for topic, found in log().items():
        for number, until in enumerate((CUT_MS, CUT_MS - 5 * WINDOW_MS)):
            (tmp_path / "logs" / topic).mkdir(parents=True, exist_ok=True)
            own = [r for r in found if r["user"] % PARTITIONS == number and r["ts"] < min(until, ends[topic])]
            file = tmp_path / "logs" / topic / f"{number}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in own))
    run(pipeline(), tmp_path / "logs", tmp_path / "one")
    given = dict(until_end=True, batch_size=16, batch_ramp=0, threads=1, checkpoint=str(tmp_path / "two"))
    words = json.dumps({"source": f"file:{tmp_path / 'logs'}", **given})
    finish(Processes(2, "tests.trainer.growing_log", [words]))
    one, two = (read_predictions(tmp_path / name / "predictions") for name in ("one", "two"))
    for column in ("instance", "label"):
        assert one[column].tolist() == two[column].tolist()
    np.testing.assert_allclose(one["rank"], two["rank"], atol=1e-4)


def test_a_replay_follows_both_runs(tmp_path: Path) -> None:
    """It reads the whole log, and learns the batches of two runs that had each come to its end."""
    ends = {"shown": CUT_MS, "clicks": CUT_MS - 20_000, "orders": CUT_MS}
    write(tmp_path / "logs", "day-1", START_MS, ends)
    run(pipeline(), tmp_path / "logs", tmp_path / "twice")
    write(tmp_path / "logs", "day-2", CUT_MS, ends)
    run(pipeline(), tmp_path / "logs", tmp_path / "twice")
    run(pipeline(), tmp_path / "logs", tmp_path / "replay", order_of=str(tmp_path / "twice"))
    got, want = (read_predictions(tmp_path / name / "predictions") for name in ("replay", "twice"))
    assert got.tobytes() == want.tobytes()
