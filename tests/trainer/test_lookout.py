"""The trainer sees by itself that Redis lost what it had published, and publishes everything again."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.store.layout import Keyspace, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.comm.control import Control
from livectr.trainer.publish import garbage
from livectr.trainer.publish.garbage import collect_garbage
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import FencedError, LostError
from livectr.trainer.publish.version import PublishedModel, Push
from livectr.trainer.publish.watch import PublishedWatch
from tests.redis_servers import SERVER_AND_CLUSTER
from tests.redis_values import manifest_in, values
from tests.trainer.ad_logs import write_files
from tests.trainer.processes import start as start_process
from tests.trainer.publishing import DIM, Trainer, rows_at, snapshot
from tests.waiting import left_s, until

KEYS = np.arange(200)


class Watching(Trainer):
    """A trainer whose look-out looks often."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, "livectr")
        lookout = PublishedWatch(self.store, every_s=0.02, evicted_again_s=0.0)
        self.publisher = Publisher(
            self.store, Control(), PublishedModel("f", (("rank.v", DIM),), seed=1), lookout=lookout
        )
        self.publisher.start(None)

    def idle_until_lost(self) -> None:
        """The header exchange of a run without events."""

        def exchange() -> None:
            assert self.publisher.observe([self.publisher.flag]) is None
            time.sleep(0.005)

        until(lambda: self.publisher.full, "the loss", turn=exchange)


@pytest.fixture
def limited(client: redis.Redis) -> Iterator[redis.Redis]:
    """Client of a server whose limit of memory a test may set."""
    yield client
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")


@pytest.fixture
def trainer(redis_url: str, client: redis.Redis) -> Iterator[Watching]:
    trainer = Watching(redis_url)
    trainer.publish(snapshot(1, KEYS))
    yield trainer
    trainer.publisher.close()


def assert_whole(client: redis.Redis, trainer: Watching, step: int) -> None:
    """All rows of the step are in Redis, and its sentinels."""
    manifest = manifest_in(client)
    assert manifest == trainer.publisher.last
    names = trainer.store.space.rows(manifest.row_set, "ad", KEYS)
    rows, status = decode_rows(values(client, names), manifest.version, DIM)
    assert not status.any() and (rows == rows_at(step, KEYS)).all()
    assert trainer.store.is_complete(manifest)


@SERVER_AND_CLUSTER
@pytest.mark.parametrize("lost", ["everything", "the manifest", "one sentinel", "one bucket of values"])
def test_an_idle_trainer_sees_the_loss(client: redis.Redis, trainer: Watching, lost: str) -> None:
    row_set, space = trainer.manifest.row_set, trainer.store.space
    sentinel = trainer.manifest.sentinel
    for _ in range(3):
        time.sleep(0.02)
        assert trainer.publisher.flag is Push.IDLE
    if lost == "everything":
        client.flushall()
    elif lost == "the manifest":
        client.unlink(space.manifest)
    else:
        client.unlink(*space.sentinels(row_set if lost == "one sentinel" else "values", [11]))
    trainer.idle_until_lost()
    assert trainer.publisher.flag is Push.IDLE  # told once
    done = trainer.publish(snapshot(2, KEYS))
    assert done is not None and done.manifest.row_set != row_set and done.manifest.sentinel != sentinel
    assert_whole(client, trainer, 2)
    for _ in range(5):
        time.sleep(0.02)
        assert trainer.publisher.flag is Push.IDLE


@pytest.mark.usefixtures("limited")
def test_evicted_keys_are_published_again(client: redis.Redis, trainer: Watching) -> None:
    before = client.info()["evicted_keys"]
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info()["used_memory"] + 100_000)
    number = 0
    while client.info()["evicted_keys"] < before + 50:
        client.set(f"filler {number}", bytes(10_000))
        number += 1
    trainer.idle_until_lost()
    client.config_set("maxmemory", 0)
    lookout = trainer.publisher._lookout
    assert lookout is not None
    until(lambda: lookout.evictions.keys >= client.info()["evicted_keys"])
    done = trainer.publish(snapshot(2, KEYS))
    if done is None:  # the fence of a bucket was among the keys
        done = trainer.publish(snapshot(2, KEYS))
    assert done is not None and done.manifest.evictions.keys >= before + 50
    assert_whole(client, trainer, 2)
    for _ in range(5):
        time.sleep(0.02)
        assert trainer.publisher.flag is Push.IDLE


def test_a_successor_is_told_apart_from_a_loss(
    redis_url: str, client: redis.Redis, trainer: Watching
) -> None:
    """Another manifest in place of ours: the complete publish that follows finds the fence."""
    other = Trainer(redis_url, take_over=True)
    other.publish(snapshot(9, KEYS))
    trainer.idle_until_lost()
    with pytest.raises(FencedError):
        trainer.publish(snapshot(2, KEYS))
    assert manifest_in(client) == other.publisher.last
    other.publisher.close()


@SERVER_AND_CLUSTER
def test_a_restart_publishes_everything_when_a_sentinel_is_gone(
    redis_url: str, client: redis.Redis, trainer: Watching
) -> None:
    cursor = trainer.publisher.cursor(2)
    trainer.publish(snapshot(2, KEYS))
    client.unlink(*trainer.store.space.sentinels(cursor.row_set, [3]))
    second = Trainer(redis_url, cursor)
    assert second.publisher.full
    second.publisher.close()


def test_a_redis_emptied_between_two_ranks_is_not_sealed(redis_url: str, client: redis.Redis) -> None:
    """Rank 1 has pushed its share; Redis is emptied; rank 0 claims and pushes: half of the rows are gone."""
    ranks = [RedisStore(redis_url, "livectr") for _ in range(2)]
    ranks[0].fence.take(None)
    manifest = VersionManifest(
        version=1,
        epoch=ranks[0].connection.epoch,
        row_set="1-0",
        step=1,
        fingerprint="f",
        world=2,
        created_ms=0,
        dim=DIM,
        segments=(),
        tables={},
        sentinel="w",
    )
    for order in ((1, 0), (0, 1)):
        client.flushall()
        for turn, rank in enumerate(order):
            store = ranks[rank]
            store.fence.claim(1)
            store.open(rank, manifest)
            store.rows.write(1, "1-0", "ad", KEYS[rank::2], rows_at(1, KEYS[rank::2]))
            if turn == 0:
                client.flushall()
        with pytest.raises(LostError):
            ranks[0].seal(manifest)
        assert not any(client.mget(ranks[0].space.sentinels("1-0", range(16))))
    for rank, store in enumerate(ranks):
        store.open(rank, manifest)
    ranks[0].seal(manifest)
    assert ranks[0].is_complete(manifest)
    for store in ranks:
        store.close()


@SERVER_AND_CLUSTER
def test_a_garbage_collection_takes_the_sentinels_first(client: redis.Redis, trainer: Watching) -> None:
    """A reader in the middle of a collection must not take a removed row for one that never was."""
    old = trainer.manifest
    client.unlink("{livectr}:manifest")
    trainer.idle_until_lost()
    done = trainer.publish(snapshot(2, KEYS))
    assert done is not None
    sentinels = trainer.store.space.sentinels(old.row_set, range(16))
    rows, held = trainer.store.space.rows(old.row_set, "ad", KEYS), trainer.store.client.remove
    seen = []

    def unlink(names: Iterable[str | bytes]) -> int:
        every = [*names]
        if set(every) & {*rows}:
            seen.append(client.exists(*sentinels))
        return held(every)

    trainer.store.client.remove = unlink  # type: ignore[method-assign]
    collect_garbage(trainer.store, done.manifest)
    assert seen and not any(seen) and not client.exists(*rows)
    assert_whole(client, trainer, 2)


def test_a_garbage_collection_reads_a_row_set_once_not_with_every_key(
    client: redis.Redis, trainer: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of millions of keys would cost the training process microseconds."""
    client.unlink("{livectr}:manifest")
    trainer.idle_until_lost()
    done = trainer.publish(snapshot(2, KEYS))
    assert done is not None
    parts: list[bytes] = []

    def counted(part: bytes, row_set: str, real: Callable[[bytes, str], bool] = garbage._is_before) -> bool:
        parts.append(part)
        return real(part, row_set)

    monkeypatch.setattr(garbage, "_is_before", counted)
    assert collect_garbage(trainer.store, done.manifest) >= len(KEYS)
    assert parts and len(parts) == len(set(parts))


def test_two_ranks_without_events_publish_again(tmp_path: Path, redis_url: str, client: redis.Redis) -> None:
    """The loop of a live run: the log is quiet, Redis is emptied, and comes back."""
    source = write_files(tmp_path, 1_000)
    options = dict(
        source=source,
        batch_size=128,
        batch_ramp=0,
        publish=redis_url,
        publish_interval_s=0.1,
        threads=1,
        min_examples=0,
    )
    process = start_process(2, options)
    try:
        before = stable_manifest(client)
        client.flushall()
        after = stable_manifest(client)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=left_s())
    assert after.version > before.version and after.row_set != before.row_set
    assert after.tables.keys() == before.tables.keys()


def stable_manifest(client: redis.Redis) -> VersionManifest:
    """The manifest once it has not changed for two seconds."""
    text, since = None, time.monotonic()

    def stable() -> bool:
        nonlocal text, since
        now = client.get(Keyspace().manifest)
        if now != text:
            text, since = now, time.monotonic()
        return text is not None and time.monotonic() - since >= 2.0

    until(stable, why=lambda: text)
    assert text is not None
    return VersionManifest.from_json(text)
