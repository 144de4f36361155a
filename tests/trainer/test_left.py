"""Expired users and ads are in Redis no longer: a version removes their histories and look-up rows."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.sources.source import open_source
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.publish import boundary, outcome
from livectr.trainer.run import Training, TrainOptions
from tests.commands import run
from tests.tiers import few
from tests.trainer.expiring_log import PIPELINE, check_redis, write
from tests.trainer.redis_proxy import Proxy

pytestmark = pytest.mark.usefixtures("batches_alone")


@pytest.mark.parametrize(("world", "room"), few([(1, False), (2, False), (1, True), (2, True)], (1, False)))
def test_redis_holds_those_who_have_not_left(
    tmp_path: Path, redis_url: str, client: redis.Redis, world: int, room: bool
) -> None:
    source, report = write(tmp_path / "logs"), tmp_path / "report.json"
    words = [sys.executable, "-m", "livectr", "train", "--pipeline", str(PIPELINE), "--source", source]
    words += ["--until-end", "--publish", redis_url, "--ranks", str(world), "--report", str(report)]
    bound = {"LEFT_ROOM": "yes"} if room else {}
    done = run(words, capture_output=True, text=True, env={**os.environ, **bound})
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["published_versions"] > 1  # how many is up to the clock
    check_redis(client)
    warnings = done.stderr.count("look-up table ads is full: rows that changed longest ago leave")
    assert warnings == (world if room else 0)


def test_a_complete_version_removes_who_left_before_it(
    tmp_path: Path, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Redis is away the lists of changed rows are dropped: the next version is complete."""
    monkeypatch.setattr(boundary, "LISTED_ROWS", 100)
    monkeypatch.setattr(boundary, "LISTED_SHARE", 1.0)
    # as if erased keys were what is listed
    monkeypatch.setattr(DynamicTable, "compact", lambda table: None)
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    monkeypatch.setattr(open_source, "__kwdefaults__", {"max_queue_bytes": 1 << 14})
    row_sets: list[str] = []
    with Proxy(redis_url) as proxy, connect() as collectives, ExitStack() as resources:
        options = TrainOptions(
            write(tmp_path / "logs"), until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0,
            publish=proxy.url, publish_interval_s=1e-6,
        )  # fmt: skip
        parts, stages = build(load_pipeline(PIPELINE), options, collectives, resources)
        commit = Committer.commit

        def watched(self: Committer, state: CommitState) -> bool:
            assert parts.publisher is not None
            if state.steps == 60:
                row_sets.append(parts.publisher.last.row_set if parts.publisher.last else "")
                proxy.go_away()
            if state.steps == 150:
                proxy.away = False
            return commit(self, state)

        monkeypatch.setattr(Committer, "commit", watched)
        Training(parts, stages).run()
        assert parts.publisher is not None and parts.publisher.last is not None
        assert row_sets[0] and parts.publisher.last.row_set != row_sets[0], "a complete version came"
    check_redis(client)
