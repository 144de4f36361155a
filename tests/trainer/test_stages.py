"""Stages of a rank: none holds more than its depth; a commit finds no batch in flight. Times of commits."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from livectr.trainer.build import build
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.keeping import NOTHING_KEPT, KeptGenerations
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.publish.boundary import Boundary
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.run import Training, TrainOptions
from livectr.trainer.schedule import Due, Schedule
from livectr.trainer.stages import Stages
from tests.redis_values import manifest_in
from tests.trainer.ad_logs import ad_pipeline, write_files

IMPRESSIONS = 600


@pytest.mark.parametrize("spilled", [False, True])
def test_no_stage_holds_more_than_its_depth(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, spilled: bool
) -> None:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    options = TrainOptions(
        write_files(tmp_path / "logs", IMPRESSIONS), until_end=True, batch_size=16, batch_ramp=0, threads=1,
        publish=redis_url, publish_interval_s=1e-6, min_examples=0,
        checkpoint=str(tmp_path / "checkpoint"), checkpoint_interval_s=0.0,
        spill=str(tmp_path / "spill") if spilled else None, dram_bytes=1 << 20 if spilled else None,
    )  # fmt: skip
    advance, commit, flip = Stages.advance, Committer.commit, RedisStore.flip
    held: dict[str, set[int]] = {name: set() for name in ("extract", "fetch", "push")}
    in_commits: list[int] = []

    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(ad_pipeline(), options, collectives, resources)
        assert stages.push is not None

        def look() -> None:
            for name in held:
                stage = getattr(stages, name)
                assert stage.in_flight <= stage.depth, name
                held[name].add(stage.in_flight)

        def advanced(self: Stages, *args: object) -> None:
            advance(self, *args)  # type: ignore[arg-type]
            look()

        def committed(self: Committer, state: CommitState) -> bool:
            in_commits.append(stages.in_flight)
            began = commit(self, state)
            look()
            assert not began or stages.push.in_flight == 1  # type: ignore[union-attr]
            return began

        def slow_flip(self: RedisStore, *args: Any, **options: Any) -> None:
            time.sleep(0.05)  # other commits come meanwhile
            flip(self, *args, **options)

        monkeypatch.setattr(Stages, "advance", advanced)
        monkeypatch.setattr(Committer, "commit", committed)
        monkeypatch.setattr(RedisStore, "flip", slow_flip)
        report = Training(parts, stages).run()
        look()

        assert report.examples_trained == IMPRESSIONS
        assert [stages.extract.depth, stages.fetch.depth, stages.push.depth] == [1, int(spilled), 1]
        assert held == {"extract": {0, 1}, "fetch": {0, 1} if spilled else {0}, "push": {0, 1}}
        assert in_commits and not any(in_commits)
        # the end of the run has drained the push: its version is served
        assert stages.in_flight == 0 and stages.push.in_flight == 0
        manifest = manifest_in(client)
        assert manifest.examples == IMPRESSIONS and report.published_versions >= 1


class StuckPublisher:
    """Publisher whose push is under way until a test says otherwise."""

    full, least_examples, last, busy, begun = False, 0, None, False, 0

    def serve(self, champion: str) -> None:
        pass

    def cursor(self, step: int, *, begins: bool) -> Cursor:
        return Cursor(self.begun + begins, 1, "", step, "run")

    def begin(self, snapshot: object, **counts: int) -> None:
        self.begun, self.busy = self.begun + 1, True


class SlowCheckpoint:
    """Checkpointer whose write ends when a test says so."""

    busy, begun, kept = False, 0, KeptGenerations(NOTHING_KEPT)
    tables = SimpleNamespace(copied=True, copying=False, large=False)

    def begin(self, content: CheckpointState) -> None:
        assert not self.busy
        self.busy, self.begun = True, self.begun + 1

    def advance(self) -> bool:
        self.busy = False
        return True


def test_the_end_of_a_log_that_falls_silent_is_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its version went ahead of the checkpoint, as the write before took so long; once, and alone."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    first, publisher, checkpoint = Boundary({}, 0, 0), StuckPublisher(), SlowCheckpoint()
    given: dict[str, Any] = dict(control=Control(), checkpoint=checkpoint, publisher=publisher, first=first)
    commits = Committer(**given, schedule=Schedule(publish_interval_s=1.0, checkpoint_interval_s=10.0))
    snapshots: Any = SimpleNamespace(
        take=lambda step, since: SimpleNamespace(broken=""), keys_since=lambda since: {}
    )
    content = CheckpointState(1, 1, 0, None, {}, {}, {}, {}, {})

    def round_() -> tuple[int, int]:
        """Commit as the training loop does; versions and checkpoints that have begun."""
        due = commits.due
        if commits.begins(due):
            state = CommitState(
                1, 1, first, {}, began_s=now_s, checkpoint=content if due is Due.ALL else None,
                snapshots=snapshots, publish=commits.publishes(due),
            )  # fmt: skip
            commits.commit(state)
            publisher.busy = False  # a fast Redis
        return publisher.begun, checkpoint.begun

    commits.changed()
    assert round_() == (1, 1)
    now_s += 1.0
    commits.changed()
    assert round_() == (2, 1), "the checkpoint before is still being written"
    now_s += 100.0
    assert round_() == (2, 1) and commits.complete_checkpoint([True])
    now_s += 9.0 * 101.0 - 0.1
    assert round_() == (2, 1), "checkpoints take a tenth of the time"
    now_s += 0.2
    assert round_() == (2, 2), "the checkpoint alone: Redis lacks nothing"
    now_s += 1.0
    assert commits.complete_checkpoint([True])
    now_s += 1000.0
    assert round_() == (2, 2)


def test_a_version_that_the_push_before_held_up_follows_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one more interval later: examples would be served late by the whole of it."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    first, publisher = Boundary({}, 0, 0), StuckPublisher()
    given: dict[str, Any] = dict(control=Control(), checkpoint=None, publisher=publisher)
    schedule = Schedule(publish_interval_s=1.0, checkpoint_interval_s=0.0)
    commits = Committer(**given, first=first, schedule=schedule)
    snapshots: Any = SimpleNamespace(take=lambda step, since: SimpleNamespace(broken=""))
    state = CommitState(1, 1, first, {}, began_s=now_s, checkpoint=None, snapshots=snapshots)

    assert commits.due and commits.commit(state) and publisher.busy
    assert commits.due is Due.NOTHING
    now_s += 1.0
    assert commits.due and not commits.commit(state), "the push before is under way"
    now_s += 0.1
    assert commits.due is Due.NOTHING
    publisher.busy = False
    assert commits.due and commits.dirty and commits.commit(state) and publisher.begun == 2
    publisher.busy = False
    now_s += 0.9
    assert commits.due is Due.NOTHING, "none was missed"
    now_s += 0.1
    assert commits.due
