"""Expired users and keys are in Redis no longer, whatever happened to it, the trainer, and their lists.

The server is a process that is killed and started again with the keys that it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.ingest.join import histories, lookup
from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.sources.source import open_source
from livectr.local.ports import free_ports
from livectr.store.layout import Keyspace
from livectr.trainer import schedule
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.publish import outcome
from livectr.trainer.publish.boundary import Left
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.sweep import sweep
from livectr.trainer.publish.values import Values
from livectr.trainer.run import Training, TrainOptions
from tests.redis_cluster import Servers, until_redis
from tests.trainer.expiring_log import PIPELINE, check_redis, write

pytestmark = pytest.mark.usefixtures("batches_alone")

AWAY, BACK = 60, 150
"""Steps between which the server is away."""
LISTED = 50


class DiedError(Exception):
    """The trainer ends here."""


class Server(Servers):
    """A server that keeps its keys on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}?socket_timeout=1"

    def begin(self) -> None:
        self.start(self.port, "--appendonly", "yes", "--appendfsync", "always")
        until_redis(lambda: bool(self.client(self.port).ping()))

    def end(self) -> None:
        self.kill(self.port)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    monkeypatch.setattr(schedule, "CHECKPOINT_PAUSE", 0.0)
    monkeypatch.setattr(open_source, "__kwdefaults__", {"max_queue_bytes": 1 << 14})
    with Server() as server:
        server.begin()
        yield server


def train(source: str, url: str, checkpoint: str | None = None) -> None:
    options = TrainOptions(
        source, until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=url,
        publish_interval_s=1e-6, checkpoint=checkpoint, checkpoint_interval_s=0.0,
    )  # fmt: skip
    with connect() as collectives, ExitStack() as resources:
        Training(*build(load_pipeline(PIPELINE), options, collectives, resources)).run()


def listed(left: Left) -> int:
    """Users and keys in the lists of expired users and keys."""
    users = (table.listed for behaviors in left.behaviors for table in behaviors.tables.values())
    return max(*users, *(table.listed for table in left.lookups))


def test_lists_of_those_who_left_are_bounded_while_redis_is_away(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(histories, "LISTED_USERS", LISTED)
    monkeypatch.setattr(lookup, "LISTED_KEYS", LISTED)
    commit, longest = Committer.commit, []

    def watched(self: Committer, state: CommitState) -> bool:
        if state.steps == AWAY:
            server.end()
        if state.steps == BACK:
            server.begin()
        began = commit(self, state)
        longest.append(listed(state.left))
        return began

    monkeypatch.setattr(Committer, "commit", watched)
    train(write(tmp_path / "logs"), server.url)
    assert max(longest) <= LISTED + 20  # a step's come on top before they are dropped
    assert "the next version is complete, and removes expired users and keys from Redis" in caplog.text
    check_redis(server.client(server.port))


def test_who_left_before_a_crash_is_removed_after_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is away, users leave, checkpoints continue without them, and the trainer dies with its lists."""
    source, checkpoint = write(tmp_path / "logs"), str(tmp_path / "checkpoint")
    commit = Committer.commit

    def watched(self: Committer, state: CommitState) -> bool:
        if state.steps == AWAY:
            server.end()
        if state.steps == BACK:
            raise DiedError
        return commit(self, state)

    with monkeypatch.context() as patch, suppress(DiedError):
        patch.setattr(Committer, "commit", watched)
        train(source, server.url, checkpoint)
        raise AssertionError("it continued")
    server.begin()
    client = server.client(server.port)
    known = len([*client.scan_iter("livectr:*:history:*", count=1000)])
    assert known > 1
    train(source, server.url, checkpoint)
    check_redis(client)


def test_a_sweep_leaves_what_is_kept_and_everything_else(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, keys = Keyspace(), np.arange(-5000, 5000)
    store = RedisStore(redis_url, "livectr")
    store.fence.take(None)
    past, where = "recent(c.ad,3,9)", "recent(c.ad,3,9) where [*]"
    names = {f"lookup:{topic}": space.lookup_rows(topic, keys) for topic in ("ads", "old")}
    names |= {f"history:{name}": space.histories(name, keys) for name in (past, where)}
    for some in names.values():
        store.rows.write_values(Values(keys, some, [b"x"] * len(keys)))
    rows = space.rows("1-0", "ad", keys[:50])
    other = Keyspace("livectr2").histories(past, keys[:50])
    client.mset(dict.fromkeys([*rows, *other], b"y"))
    kept = {
        "lookup:ads": keys[::2],
        f"history:{past}": keys[:0],
        f"history:{where}": keys[7:],
    }
    before = set(client.keys())
    patterns: list[str] = []
    scan = store.client.scan_all

    def counted(pattern: str) -> Iterator[list[bytes]]:
        patterns.append(pattern)
        return scan(pattern)

    monkeypatch.setattr(store.client, "scan_all", counted)
    assert sweep(store, kept) == 5000 + 10_000 + 10_000 + 7
    assert len(patterns) == 1, "a scan goes through every key of Redis, the rows, too"
    wanted = {name for name, key in zip(names["lookup:ads"], keys, strict=True) if key % 2 == keys[0] % 2}
    wanted |= set(names[f"history:{where}"][7:])
    gone = {name for some in names.values() for name in some} - wanted
    assert set(client.keys()) == before - gone
    assert sweep(store, kept) == 0
    store.close()
