"""Rules of the publish log: when a restarted trainer resumes with deltas, and which keys count as changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import redis

from livectr.kernels.stream.history import APPEND, HistoryTable
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.store.layout import RowStatus, decode_changed, encode_changed
from livectr.trainer.publish import push
from livectr.trainer.publish.log import entries
from livectr.trainer.publish.log.entries import LogEntry
from livectr.trainer.publish.log.resumption import Resumption
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import VersionSnapshot
from tests.redis_values import value
from tests.trainer.publishing import Trainer, read, rows_at, snapshot, start

KEYS = np.arange(10)


def publish(trainer: Trainer, part: VersionSnapshot, needed: int = 0) -> None:
    trainer.publisher.begin(part, needed=needed)
    assert trainer.drain() is not None


def cut_off(trainer: Trainer, version: int, keys: np.ndarray, *, listed: bool = True, step: int = 99) -> None:
    """Half a push: its keys are listed, and some of its rows written."""
    last = trainer.manifest
    names = (f"livectr:blob:{version}:changed-{trainer.store.connection.epoch}-0",)
    entry = LogEntry(
        last.row_set, step, trainer.store.connection.epoch, f"{version}-x", names, len(keys), last.version
    )
    trainer.store.begin(version, None, entry.taken_by(trainer.store.servers()))
    if listed:
        trainer.store.connection.write_blob(names[0], encode_changed({"ad": keys}))
    trainer.store.rows.write(version, last.row_set, "ad", keys, rows_at(version, keys))


def changed_keys(client: redis.Redis, resumption: Resumption) -> list[list[int]]:
    return [
        decode_changed(value(client, name)).get("ad", np.empty(0, np.int64)).tolist()
        for name in resumption.blobs
    ]


def checkpoint_then(trainers: list[Trainer], url: str) -> tuple[Trainer, Cursor]:
    """A trainer with a checkpoint at version 2, and version 3 after it."""
    first = start(trainers, url)
    publish(first, snapshot(1, KEYS))
    cursor = first.publisher.cursor(2)
    publish(first, snapshot(2, KEYS[:5]))
    publish(first, snapshot(3, KEYS[:3]))
    return first, cursor


def test_redis_ahead_of_the_checkpoint(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    first, cursor = checkpoint_then(trainers, redis_url)
    cut_off(first, 4, KEYS[8:])
    second = start(trainers, redis_url, cursor)
    resumption = second.publisher.resumption
    assert resumption is not None and not second.publisher.full and second.publisher.flipped == 2
    assert (resumption.later, resumption.cut_off, resumption.unpublished) == ((3, 4), (4,), False)
    assert changed_keys(client, resumption) == [[0, 1, 2], [8, 9]]
    # readers of version 3 are not disturbed while version 5 is written over the half push
    row_set = cursor.row_set
    second.store.rows.write(5, row_set, "ad", KEYS, rows_at(5, KEYS))
    rows, status = read(client, second, KEYS, 3, row_set)
    assert (status == RowStatus.FOUND).all()
    assert (rows == rows_at(1, KEYS) + np.array([2] * 3 + [1] * 2 + [0] * 5)[:, None]).all()
    publish(second, snapshot(5, KEYS))
    manifest = second.manifest
    assert (manifest.version, manifest.row_set) == (5, row_set) and second.store.rows.cut_off == ()
    assert manifest.changed_since(3, row_set) == manifest.changed, "servers keep their near-caches"
    assert (read(client, second, KEYS, 5, row_set)[0] == rows_at(5, KEYS)).all()
    third = start(trainers, redis_url, cursor)  # the half push is none of the versions that count
    assert third.publisher.resumption is not None and third.publisher.resumption.later == (3, 5)


def test_redis_behind_the_checkpoint(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    """The version that the checkpoint began was never flipped, or another came under its number."""
    first = start(trainers, redis_url)
    publish(first, snapshot(1, KEYS))
    cursor = first.publisher.cursor(2)
    assert (cursor.version, cursor.served) == (2, 1)
    second = start(trainers, redis_url, cursor)
    resumption = second.publisher.resumption
    assert resumption is not None and resumption.unpublished and resumption.later == ()
    publish(second, snapshot(7, KEYS))
    assert second.manifest.version == 3, "number 2 may have been begun"
    third = start(trainers, redis_url, cursor)
    resumption = third.publisher.resumption
    assert resumption is not None and resumption.unpublished and resumption.later == (3,)
    held = third.publisher.cursor(3, begins=False)
    assert (held.row_set, held.served, held.served_row_set) == ("", 3, cursor.row_set)
    fourth = start(trainers, redis_url, held)
    assert fourth.publisher.resumption is not None and fourth.publisher.resumption.unpublished


def test_the_push_that_the_checkpoint_began_was_cut_off(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    """The next trainer flips a version, and is killed before it has a checkpoint of its own."""
    first = start(trainers, redis_url)
    publish(first, snapshot(1, KEYS))
    cursor = first.publisher.cursor(2)
    cut_off(first, 2, KEYS[8:], step=2)
    second = start(trainers, redis_url, cursor)
    resumption = second.publisher.resumption
    assert resumption is not None and (resumption.later, resumption.cut_off) == ((2,), (2,))
    publish(second, snapshot(7, KEYS))
    third = start(trainers, redis_url, cursor)
    resumption = third.publisher.resumption
    assert resumption is not None and not third.publisher.full
    assert (resumption.later, resumption.cut_off, resumption.unpublished) == ((3,), (), True)


def lose_a_blob(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    client.delete(first.manifest.changed[0])


def lose_an_entry(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    client.delete(first.store.space.log(3))


def restart_redis(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    """It came back with what it had on disk, which may be older than what servers have seen."""
    patch.setattr(type(first.store), "servers", lambda store: ("another process",))


def refuse_info(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(first.store), "servers", lambda store: ())


def push_unlisted(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    cut_off(first, 4, KEYS[8:], listed=False)


def push_without_an_entry(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    first.store.begin(4)


def begin_a_complete_version(first: Trainer, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
    first.publisher.begin_again()
    patch.setattr(type(first.store), "flip", lambda *_, **__: (_ for _ in ()).throw(redis.ConnectionError()))
    first.publisher.begin(snapshot(4, KEYS), needed=0)
    while first.publisher.push.working:
        pass


@pytest.mark.parametrize(
    "fault",
    [
        lose_a_blob,
        lose_an_entry,
        restart_redis,
        refuse_info,
        push_unlisted,
        push_without_an_entry,
        begin_a_complete_version,
    ],
)
def test_what_is_not_known_is_published_again(
    redis_url: str,
    client: redis.Redis,
    trainers: list[Trainer],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Trainer, redis.Redis, pytest.MonkeyPatch], None],
) -> None:
    first, cursor = checkpoint_then(trainers, redis_url)
    with monkeypatch.context() as patch:
        fault(first, client, patch)
        second = start(trainers, redis_url, cursor)
    assert second.publisher.full and second.publisher.resumption is None
    publish(second, snapshot(4, KEYS))
    manifest = second.manifest
    assert manifest.row_set != cursor.row_set
    assert (read(client, second, KEYS, manifest.version, manifest.row_set)[0] == rows_at(4, KEYS)).all()


def test_the_log_begins_at_the_oldest_checkpoint_and_is_bounded(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(trainers, redis_url)

    def logged() -> tuple[list[int], set[int]]:
        logs = sorted(int(name.split(b":")[2]) for name in client.scan_iter("{livectr}:log:*"))
        blobs = {int(name.split(b":")[2]) for name in client.scan_iter("livectr:blob:*:changed-*")}
        return logs, blobs

    for step in range(1, 9):
        publish(trainer, snapshot(step, KEYS))
    assert logged() == ([1, 2, 3, 4, 5, 6, 7, 8], {1, 2, 3, 4, 5, 6, 7, 8})
    for step in (9, 10):
        publish(trainer, snapshot(step, KEYS), needed=5)
    assert logged() == ([5, 6, 7, 8, 9, 10], {5, 6, 7, 8, 9, 10})
    monkeypatch.setattr(entries, "LOGGED_KEYS", 25)  # two versions of ten keys
    for step in (11, 12):
        publish(trainer, snapshot(step, KEYS), needed=5)
    assert logged() == ([10, 11, 12], {9, 10, 11, 12})
    trainer.publisher.begin_again()
    for step in (13, 14):
        publish(trainer, snapshot(step, KEYS), needed=5)
    assert logged()[0] == [13, 14], "nothing extends the row set before"


class Clock:
    """Time that passes while somebody sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_complete_version_keeps_its_rate(
    redis_url: str, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta has none, and a process that ends waits for none."""
    keys, clock = np.arange(2_000), Clock()
    trainer = start(trainers, redis_url, full_rate=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(push, "time", clock)
        publish(trainer, snapshot(1, keys))
        assert 1.8 < clock.now_s <= 2.0
        publish(trainer, snapshot(2, keys))
        assert clock.now_s <= 2.0
    trainer.publisher.begin_again()
    trainer.publisher.begin(snapshot(3, np.arange(2_000_000)))  # half an hour
    trainer.publisher.close()


def test_keys_count_as_changed() -> None:
    layout = RowLayout((Segment("rank.v", 2, AdaGrad()),))
    table = DynamicTable(layout, name="ad", seed=1, track=True)
    table.now(7)
    table.find_or_insert(KEYS)
    before, usage = table.export(), table.usage(KEYS)
    mark = table.mark()
    table.now(9)
    table.touch(np.array([3, 40, 8, 41]))
    assert sorted(table.export(mark)[0].tolist()) == [3, 8] and table.erased(mark).tolist() == [40, 41]
    after = table.export()
    assert len(table) == 10
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(was, now)
    assert all(map(np.array_equal, usage, table.usage(KEYS)))


def test_histories_count_as_changed() -> None:
    table = HistoryTable(2)
    users = np.array([5, 6, 5, 7, 5])
    table.push(np.full(5, APPEND, np.uint8), users, np.arange(5), np.arange(5), [])
    mark = table.mark()
    before = table.export()
    table.touch(np.array([4, 5, 7]))
    assert table.export(mark).users.tolist() == [5, 7]
    for was, now in zip(before, table.export(), strict=True):
        np.testing.assert_array_equal(was, now)
