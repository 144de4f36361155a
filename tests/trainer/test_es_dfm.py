"""Runs with ES-DFM: what finals teach, what they leave alone, and that nothing is learned from the future."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from livectr.ingest.language.delays import Delayed
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.models.losses import Lesson
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.delayed.heads import PREFIX, Heads
from livectr.trainer.stages import Learned, LearnStage
from livectr.trainer.stream.feed import Batch
from tests.redis_values import value
from tests.trainer.ad_logs import write_files
from tests.trainer.delayed_run import (
    IMPRESSIONS,
    Run,
    by_instance,
    run,
    scores_of_what_was_not_learned_have_final_labels,
)
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same

WINDOW_MS, WAIT_MS = 5_000, 1_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


@dataclass
class Recorded:
    """Scores and weights of the main model and the heads, batch by batch."""

    batches: list[Batch] = field(default_factory=list)
    weights: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)


@contextmanager
def recording(patch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Look on while a run trains in this process; it does the same as without."""
    seen = Recorded()
    heads_learn, learn = Heads.learn, LearnStage.__call__

    def watched_heads(self: Heads, prepared: Any, batch: Batch) -> Lesson:
        lesson = heads_learn(self, prepared, batch)
        seen.batches.append(batch)
        seen.weights.append(lesson.target.numpy().tobytes() + lesson.weight.numpy().tobytes())
        biases = [self.step.models[name].bias.item() for name in ("clicked", "in_time")]
        seen.heads.append(np.array(biases).tobytes())
        return lesson

    def watched(self: LearnStage, ready: Any) -> Learned | None:
        learned = learn(self, ready)
        if learned is not None:
            seen.logits.append(b"".join(z.tobytes() for z in learned.result.logits.values()))
        return learned

    with patch.context() as patched:
        patched.setattr(Heads, "learn", watched_heads)
        patched.setattr(LearnStage, "__call__", watched)
        yield seen


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, source: str, patch: pytest.MonkeyPatch
) -> tuple[Run, Recorded]:
    with recording(patch) as seen:
        return run(source, tmp_path_factory.mktemp("es_dfm"), "es_dfm"), seen


def test_finals_are_no_examples(recorded: tuple[Run, Recorded], source: str, tmp_path: Path) -> None:
    """Neither counted, scored, observed by statistics, nor in the batch ramp's count."""
    es_dfm, seen = recorded
    fnw = run(source, tmp_path, "fnw")
    want, got = by_instance(fnw), by_instance(es_dfm)
    for name in ("instance", "user", "item", "time_ms", "label", "seen"):
        assert np.array_equal(got[name], want[name]), name
    assert es_dfm.report.examples_trained == es_dfm.report.stream["examples"] == IMPRESSIONS
    for name in ("late_positives", "clicked"):
        assert es_dfm.report.stream[name] == fnw.report.stream[name]
    assert es_dfm.report.field_keys == fnw.report.field_keys
    finals = sum(int((batch.outcome >= FINAL_NEGATIVE).sum()) for batch in seen.batches)
    assert finals == IMPRESSIONS
    one, other = newest_manifest(es_dfm.root), newest_manifest(fnw.root)
    assert one is not None and other is not None
    assert one.seen == other.seen == IMPRESSIONS + fnw.report.stream["late_positives"]
    assert Result(es_dfm.root).statistics == Result(fnw.root).statistics


def test_a_final_comes_when_its_window_has_passed_and_heads_learn_before(
    recorded: tuple[Run, Recorded],
) -> None:
    _, seen = recorded
    ends = []
    for batch in seen.batches:
        final = batch.outcome[batch.sequence] >= FINAL_NEGATIVE
        assert (batch.order[final] >= batch.time_ms[final] + WINDOW_MS).all()
        assert (batch.order[~final & ~batch.late] <= batch.time_ms[~final & ~batch.late] + WINDOW_MS).all()
        ends.append(bool(final.any()))
    first = ends.index(True)
    click_rate, in_time = np.frombuffer(b"".join(seen.heads)).reshape(-1, 2).T
    assert first > 3 and len({*click_rate[:first]}) == len({*in_time[:first]}) == first
    clicked = [batch.outcome[batch.outcome < FINAL_NEGATIVE] for batch in seen.batches[:first]]
    assert any((labels == 2).any() for labels in clicked), "late positives came before the first final"


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_nothing_is_learned_from_the_future(
    recorded: tuple[Run, Recorded],
    source: str,
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    share: float,
) -> None:
    """Without any click after a time T, every batch before T is scored, weighed and learned with the same
    bits, by the main model and by the heads."""
    _, before = recorded
    end = max(int(batch.order.max()) for batch in before.batches)
    begin = min(int(batch.order.min()) for batch in before.batches)
    at = int(begin + share * (end - begin))
    changed = rewritten(Path(source.removeprefix("file:")), tmp_path / "logs", lambda row: row["ts"] <= at)
    with recording(patch) as after:
        run(changed, tmp_path / "run", "es_dfm")
    same = next(i for i, batch in enumerate(before.batches) if batch.order.max() > at)
    assert same > 5 and any((batch.outcome >= FINAL_NEGATIVE).any() for batch in before.batches[:same]), (
        "the heads have learned by then"
    )
    for name in ("weights", "heads", "logits"):
        one, other = getattr(before, name), getattr(after, name)
        assert one[:same] == other[:same], name
        assert one[same:] != other[same:], f"{name}: clicks after T do matter after T"


def rewritten(source: Path, target: Path, keeps: Callable[[dict[str, Any]], bool]) -> str:
    """Copy of a folder of logs with the clicks that `keeps` accepts."""
    for path in source.rglob("*"):
        if path.is_dir():
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines(keepends=True)
        if path.relative_to(source).parts[0] == "clicks":
            lines = [line for line in lines if keeps(json.loads(line))]
        copy.write_text("".join(lines))
    return f"file:{target}"


def test_finals_make_no_rows_of_the_main_model(source: str, tmp_path: Path) -> None:
    """Rows of the main model come from examples alone: their tables have the keys that fnw's have."""
    one = Result(run(source, tmp_path / "one", "es_dfm").root)
    other = Result(run(source, tmp_path / "other", "fnw").root)
    for name, (keys, _) in other.tables.items():
        assert np.array_equal(one.tables[name][0], keys), name
    heads = {name: table for name, table in one.tables.items() if name.startswith(PREFIX)}
    assert heads.keys() == {PREFIX + name for name in other.tables}
    assert all(len(keys) for keys, _ in heads.values())


def test_a_resumed_run_ends_with_the_same_bits(
    recorded: tuple[Run, Recorded], source: str, tmp_path: Path
) -> None:
    es_dfm, seen = recorded
    waits = run(source, tmp_path / "wait", "wait")
    for steps in (15, 40):
        stopped = run(source, tmp_path, "es_dfm", max_steps=steps)
        assert stopped.report.steps == steps < len(seen.batches)
        if steps == 15:  # the checkpoint scores a log, and its finals are no examples
            scores_of_what_was_not_learned_have_final_labels(source, stopped, waits, "es_dfm")
    run(source, tmp_path, "es_dfm")
    assert_same(Result(tmp_path), Result(es_dfm.root))


@pytest.mark.parametrize("delayed", ["fnw", "es_dfm"])
def test_two_ranks_learn_what_one_learns(tmp_path: Path, source: str, delayed: Delayed) -> None:
    options: dict[str, object] = dict(batch_size=64, batch_ramp=0, threads=1, until_end=True)
    for world in (1, 2):
        root = str(tmp_path / str(world))
        finish(start(world, {**options, "source": source, "checkpoint": root}, delayed=delayed))
    one, two = Result(tmp_path / "1"), Result(tmp_path / "2")
    assert_close(two, one)
    assert any(name.startswith(PREFIX) for name in one.tables) == (delayed == "es_dfm")


def test_policies_hold_for_the_heads_and_survive_a_restart(tmp_path: Path, source: str) -> None:
    policy: dict[str, object] = dict(max_age="20s", admit_after=60)
    options: dict[str, object] = dict(batch_size=32, batch_ramp=0, threads=1, until_end=True, source=source)
    for root, stops in (("whole", [None]), ("parts", [20, None])):
        for steps in stops:
            given = {**options, "checkpoint": str(tmp_path / root), "max_steps": steps}
            finish(start(1, given, policy=policy, delayed="es_dfm"))
    assert_same(Result(tmp_path / "parts"), Result(tmp_path / "whole"))
    heads = {
        n: len(keys) for n, (keys, _) in Result(tmp_path / "whole").tables.items() if n.startswith(PREFIX)
    }
    free = Result(run(source, tmp_path / "free", "es_dfm").root)
    assert any(size < len(free.tables[name][0]) for name, size in heads.items())


def test_a_version_holds_nothing_of_the_heads(source: str, tmp_path: Path, redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    es_dfm = run(source, tmp_path, "es_dfm", publish=redis_url)
    text = value(client, "{livectr}:manifest")
    manifest = VersionManifest.from_json(text)
    assert es_dfm.report.published_versions and manifest.step
    assert PREFIX.encode() not in text and b"clicked" not in text and b"in_time" not in text
    keys = client.keys("*")
    assert keys and not [key for key in keys if PREFIX.encode() in key]
    blobs = [client.get(key) or b"" for key in keys if client.type(key) == b"string"]
    assert not [blob for blob in blobs if b"es_dfm.clicked" in blob or b"clicked.bias" in blob]
