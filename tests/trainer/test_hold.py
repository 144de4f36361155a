"""Hold of a namespace: exact from the moment at which it is set, and nothing is lost when it is released."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread, current_thread

import numpy as np
import pytest
import redis

from livectr.store.hold import NO_REASON, Hold
from livectr.store.layout import Keyspace, RowStatus
from livectr.store.manifest import VersionManifest
from livectr.system.errors import ConfigError
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import FencedError, HeldError
from livectr.trainer.publish.telemetry import LOST_VERSIONS, PUBLISH_HELD
from livectr.trainer.publish.version import PublishedModel, Push
from livectr.trainer.publish.watch import PublishedWatch
from livectr.versions.holding import hold, release
from tests.metrics_page import metric_value
from tests.trainer.publishing import DIM, Trainer, read, rows_at, snapshot, start
from tests.waiting import until

KEYS = np.arange(40)


class Watching(Trainer):
    """Trainer whose look-out looks often."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, "livectr")
        self.lookout = PublishedWatch(self.store, every_s=0.02)
        model = PublishedModel("f", (("rank.v", DIM),), seed=1)
        self.publisher = Publisher(self.store, Control(), model, lookout=self.lookout)
        self.publisher.start(None)

    def until(self, held: bool) -> None:
        until(lambda: (self.publisher.hold is not None) is held, "the look-out")


@pytest.fixture
def trainer(redis_url: str, client: redis.Redis) -> Iterator[Watching]:
    trainer = Watching(redis_url)
    trainer.publish(snapshot(1, KEYS))
    yield trainer
    trainer.publisher.close()


def served(client: redis.Redis) -> VersionManifest:
    return VersionManifest.from_json(client.get("{livectr}:manifest"))  # type: ignore[arg-type]


def test_a_version_under_way_is_not_flipped_over_a_hold(
    redis_url: str, client: redis.Redis, trainer: Watching
) -> None:
    """The script looks at the hold, not a thread that has looked before."""
    trainer.publisher.begin(snapshot(2, KEYS[:10]))
    until(lambda: trainer.publisher.push.state is not Push.PUSHING)
    assert "servers stay with version 1" in hold(redis_url, "livectr", "sale")
    assert trainer.drain() is None and trainer.publisher.hold == Hold.of(client.get("{livectr}:hold"))
    assert served(client).version == 1 and metric_value(PUBLISH_HELD, reason="operator") == 1
    # as often as it may be tried, and with more rows, the served version stays whole
    for step in (3, 4, 5):
        assert trainer.publish(snapshot(step, KEYS)) is None
        rows, status = read(client, trainer, KEYS, 1, trainer.manifest.row_set)
        assert (status == RowStatus.FOUND).all() and (rows == rows_at(1, KEYS)).all()
    assert "the hold is gone (sale)" in release(redis_url, "livectr")
    trainer.until(held=False)
    done = trainer.publish(snapshot(6, KEYS))
    assert done is not None and done.manifest.version == 2, "no reader has seen the number"
    rows, _ = read(client, trainer, KEYS, 2, done.manifest.row_set)
    assert (rows == rows_at(6, KEYS)).all() and metric_value(PUBLISH_HELD, reason="operator") == 0


def test_an_older_answer_does_not_take_the_place_of_a_newer(
    redis_url: str, client: redis.Redis, trainer: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-out's thread has read that there is no hold; then a flip is refused, which reads the hold."""
    answered, proceed, looked, seen = Event(), Event(), Event(), Event()
    fetch, waits = trainer.store.client.fetch, iter([(answered, proceed), (looked, seen)])

    def stopped(keys: list[bytes]) -> list[bytes | None]:
        """Stop the look-out when its first answer has come, and again before it acts on its second."""
        values = fetch(keys)
        if current_thread().name == "lookout" and (wait := next(waits, None)):
            wait[0].set()
            wait[1].wait()
        return values

    monkeypatch.setattr(trainer.store.client, "fetch", stopped)
    until(answered.is_set, "the look-out's answer")
    hold(redis_url, "livectr", "sale")
    newer = Thread(target=trainer.lookout.read_hold)
    newer.start()
    newer.join(0.3)  # it has either overtaken the look-out, or waits for it
    proceed.set()
    newer.join()
    until(looked.is_set, "the next look")
    found = trainer.publisher.hold
    seen.set()
    assert found is not None and found.reason == "sale"


def test_a_successor_finds_the_hold_and_obeys(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    first = start(trainers, redis_url)
    cursor = first.publisher.cursor(1)
    first.publish(snapshot(1, KEYS))
    hold(redis_url, "livectr", "")
    second = start(trainers, redis_url, cursor)
    assert second.publisher.hold is not None and second.publisher.hold.reason == NO_REASON
    assert second.publish(snapshot(2, KEYS)) is None and served(client).version == 1


def test_what_redis_loses_under_a_hold_is_published_after_it(
    redis_url: str, client: redis.Redis, trainer: Watching
) -> None:
    hold(redis_url, "livectr", "")
    trainer.until(held=True)
    sentinel = trainer.store.space.sentinels(trainer.manifest.row_set, [3])[0]
    client.delete(sentinel)
    publisher = trainer.publisher
    until(lambda: publisher.full, turn=lambda: publisher.observe([publisher.flag]))
    assert trainer.publish(snapshot(2, KEYS)) is None
    release(redis_url, "livectr")
    trainer.until(held=False)
    done = trainer.publish(snapshot(3, KEYS))
    assert done is not None and trainer.store.is_complete(done.manifest)


def test_the_owner_takes_a_new_epoch_after_a_rollback_and_not_under_a_hold(
    redis_url: str, client: redis.Redis, trainer: Watching
) -> None:
    """A rollback writes beside the trainer: it fences the trainer out, and hands the namespace back."""
    lost, epoch = metric_value(LOST_VERSIONS), trainer.store.connection.epoch
    hold(redis_url, "livectr", "rolled back")
    trainer.until(held=True)
    other = RedisStore(redis_url, "livectr")
    other.fence.share_owner()
    assert other.fence.take(other.manifest_text()) == 1
    trainer.publisher.begin(snapshot(2, KEYS))  # the trainer had not seen the hold
    trainer.publisher.push.check()
    assert trainer.publisher.push.state is Push.UNKNOWN
    assert trainer.publisher.observe([Push.UNKNOWN]) is None
    with pytest.raises(HeldError):
        trainer.store.fence.renew()
    assert other.connection.epoch == epoch + 1 == int(client.get("{livectr}:epoch"))  # type: ignore[arg-type]
    before = served(client)
    manifest = VersionManifest.from_json(before.to_json().replace(b'"version":1', b'"version":2'))
    manifest = VersionManifest.from_json(
        manifest.to_json().replace(b'"epoch":%d' % epoch, b'"epoch":%d' % other.connection.epoch)
    )
    other.flip(manifest.to_json(), 2, before.to_json(), over_hold=True)
    release(redis_url, "livectr")
    assert trainer.drain() is None and trainer.publisher.full
    done = trainer.publish(snapshot(3, KEYS))
    assert (
        done is not None and done.manifest.version == 3 and done.manifest.epoch == other.connection.epoch + 1
    )
    assert metric_value(LOST_VERSIONS) == lost, "a rollback is no loss"
    with pytest.raises(FencedError):
        other.flip(b"{}", 9, b"", over_hold=True)
    other.close()


def test_a_hold_of_nothing_is_refused(redis_url: str, client: redis.Redis) -> None:
    with pytest.raises(ConfigError, match="nothing is published under the namespace 'nobody'"):
        hold(redis_url, "nobody", "")
    assert client.get(Keyspace("nobody").hold) is None
    assert "there was no hold" in release(redis_url, "nobody")
    assert 0 < client.ttl(Keyspace("nobody").release) <= 60


@pytest.mark.parametrize("text", [b"yes", b"{}", b'{"reason": 1, "since_ms": null}'])
def test_a_hold_that_somebody_wrote_by_hand_holds(text: bytes) -> None:
    assert Hold.of(text) == Hold()


def test_a_gate_is_told_once_of_a_release(redis_url: str, client: redis.Redis, trainer: Watching) -> None:
    assert not trainer.publisher.released()
    release(redis_url, "livectr")
    until(trainer.publisher.released, "the look-out")
    assert not trainer.publisher.released() and client.get(Keyspace().release) is None
