"""Publishing: one atomic flip, readers undisturbed, zombies refused, an emptied Redis filled again.

Steps are those of trainer.publish.publisher: 5 push, 6 flip.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest
import redis

from livectr.store.layout import LOOKUP, RowStatus, decode_changed, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors
from livectr.system.errors import ConfigError, ConnectError, MismatchError
from livectr.trainer.publish.garbage import collect_garbage
from livectr.trainer.publish.items import Items
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import FencedError, LostError
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.values import Values
from livectr.trainer.publish.version import Push, VersionSnapshot
from tests.redis_servers import SERVER_AND_CLUSTER
from tests.redis_values import manifest_in, value, values
from tests.trainer.publishing import DIM, BrokenConnection, Trainer, read, rows_at, snapshot, start
from tests.waiting import left_s, until


@SERVER_AND_CLUSTER
def test_a_version_has_all_its_parts(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(5_000) * 7 - 9_000
    listener = client.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe("livectr:versions")
    assert listener.get_message(timeout=left_s())
    trainer.publisher.trained(np.array([1_050, 1_099, 1_250]))
    items = Items.of(np.array([4, 5]), np.ones((2, 8), np.float32))
    facts = Values(np.array([7]), trainer.store.space.lookup_rows("ads", np.array([7])), [b"[7]"])
    expected = trainer.publisher.cursor(1)
    done = trainer.publish(snapshot(1, keys, items=items, values=[facts]))
    assert done is not None and done.rows == 5_000
    text = value(client, "{livectr}:manifest")
    manifest = VersionManifest.from_json(text)
    assert manifest == done.manifest
    assert expected == Cursor(
        manifest.version, manifest.epoch, manifest.row_set, manifest.step, manifest.run_id
    )
    assert manifest.freshness.bin_ms == (1_000, 1_200) and manifest.freshness.counts == (2, 1)
    assert manifest.tables == {"ad": 5_000}
    rows, status = read(client, trainer, keys, 1, manifest.row_set)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(1, keys)).all()
    assert client.get(manifest.dense[0]) == b"dense 1"
    assert (
        decode_changed(value(client, manifest.changed[0])) == {}
    )  # nobody served an earlier one of its row set
    assert decode_vectors(value(client, manifest.item_vectors[0]))[0].tolist() == [4, 5]
    assert client.get(facts.names[0]) == b"[7]"
    message = listener.get_message(timeout=left_s())
    assert message and message["data"] == b"1"


@SERVER_AND_CLUSTER
def test_a_reader_of_the_version_before_is_not_disturbed(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(100)
    for step in (1, 2):
        trainer.publish(snapshot(step, keys[:50] if step == 1 else keys))
    row_set = trainer.manifest.row_set
    rows, status = read(client, trainer, keys, 1, row_set)
    assert (rows[:50] == rows_at(1, keys[:50])).all()
    assert (status[50:] == RowStatus.MISSING).all()
    # the push of version 3 began, and was repeated, but is not flipped
    for _ in range(2):
        trainer.store.rows.write(3, row_set, "ad", keys, rows_at(3, keys))
    rows, status = read(client, trainer, keys, 2, row_set)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(2, keys)).all()
    assert (read(client, trainer, keys[:50], 1, row_set)[1] == RowStatus.OVERWRITTEN).all()


@SERVER_AND_CLUSTER
def test_a_delta_lists_changed_look_up_rows(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer, keys = start(trainers, redis_url), np.array([7, 9])
    names = trainer.store.space.lookup_rows("ads", keys)
    facts = Values(keys, names, [b"[7]", None], LOOKUP + "ads")
    unlisted = Values(keys, trainer.store.space.lookup_rows("users", keys), [b"[7]", b"[9]"])
    for step in (1, 2):
        done = trainer.publish(snapshot(step, np.array([step]), values=[facts, unlisted]))
    assert done is not None
    changed = decode_changed(value(client, done.manifest.changed[0]))
    assert {name: found.tolist() for name, found in changed.items()} == {"ad": [2], "lookup:ads": [7, 9]}


@SERVER_AND_CLUSTER
def test_deltas_name_what_changed_and_old_blobs_go(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    for step in range(1, 8):
        trainer.publish(snapshot(step, np.array([step])))
    manifest = trainer.manifest
    assert manifest.version == 7
    changed = manifest.changed_since(4, manifest.row_set)
    assert changed is not None
    assert [decode_changed(value(client, blob))["ad"].tolist() for blob in changed] == [[5], [6], [7]]
    assert manifest.changed_since(3, manifest.row_set) is None
    versions = {int(name.split(b":")[2]) for name in client.scan_iter("livectr:blob:*")}
    assert versions == {4, 5, 6, 7}


@SERVER_AND_CLUSTER
def test_a_zombie_is_refused(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    """A trainer that was thought dead wakes up after its successor has published."""
    zombie = start(trainers, redis_url)
    keys = np.arange(10)
    zombie.publish(snapshot(1, keys))
    successor = start(trainers, redis_url, take_over=True)
    successor.publish(snapshot(2, keys))
    before = client.get("{livectr}:manifest")
    with pytest.raises(FencedError, match="another trainer has taken over"):
        zombie.publish(snapshot(3, keys))
    with pytest.raises(FencedError):
        zombie.store.flip(b"{}", 9, b"")
    assert client.get("{livectr}:manifest") == before
    row_set = successor.manifest.row_set
    assert (read(client, successor, keys, 2, row_set)[0] == rows_at(2, keys)).all()


@SERVER_AND_CLUSTER
def test_a_zombie_between_push_and_flip_is_refused(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    """Between steps 5 and 6."""
    zombie = start(trainers, redis_url)
    zombie.publisher.begin(snapshot(1, np.arange(10)))
    until(lambda: zombie.publisher.push.state is not Push.PUSHING)
    start(trainers, redis_url)
    with pytest.raises(FencedError):
        zombie.drain()
    assert client.get("{livectr}:manifest") is None


@SERVER_AND_CLUSTER
def test_a_restart_resumes_with_deltas_when_redis_holds_the_checkpoint(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    keys = np.arange(10)
    first = start(trainers, redis_url)
    cursor = first.publisher.cursor(1)
    first.publish(snapshot(1, keys))
    second = start(trainers, redis_url, cursor)
    assert not second.publisher.full
    second.publish(snapshot(2, keys[:3]))
    manifest = second.manifest
    assert (manifest.version, manifest.row_set) == (2, cursor.row_set) and manifest.epoch > cursor.epoch
    assert manifest.changed_since(1, cursor.row_set) == manifest.changed
    rows, _ = read(client, second, keys, 2, manifest.row_set)
    assert (rows[:3] == rows_at(2, keys[:3])).all() and (rows[3:] == rows_at(1, keys[3:])).all()


@SERVER_AND_CLUSTER
@pytest.mark.parametrize("fault", ["older checkpoint", "half a push", "no checkpoint"])
def test_a_restart_publishes_all_under_a_fresh_ns_otherwise(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], fault: str
) -> None:
    keys = np.arange(10)
    first = start(trainers, redis_url)
    cursor = first.publisher.cursor(1)
    first.publish(snapshot(1, keys))
    if fault == "older checkpoint":
        first.publish(snapshot(2, keys))
    elif fault == "half a push":
        first.store.begin(2)
        first.store.rows.write(2, cursor.row_set, "ad", keys[:5], rows_at(99, keys[:5]))
    old = first.manifest
    none = fault == "no checkpoint"
    second = start(trainers, redis_url, None if none else cursor, take_over=none, collect_after_s=0)
    assert second.publisher.full
    second.publish(snapshot(3, keys))
    manifest = second.manifest
    begun = old.version + (fault == "half a push")  # no number is used again
    assert manifest.version == begun + 1 and manifest.row_set != old.row_set
    assert manifest.changed_since(old.version, old.row_set) is None
    assert (read(client, second, keys, manifest.version, manifest.row_set)[0] == rows_at(3, keys)).all()
    second.end_collection()
    assert not any(client.mget(second.store.space.rows(old.row_set, "ad", keys)))
    assert not second.store.pushing()


@SERVER_AND_CLUSTER
def test_an_emptied_redis_is_filled_again(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(10)
    trainer.publish(snapshot(1, keys))
    trainer.publisher.trained(np.array([5]))
    client.flushall()
    assert trainer.publish(snapshot(2, keys[:2])) is None
    assert trainer.publisher.full
    done = trainer.publish(snapshot(3, keys))
    assert done is not None and done.manifest.version == 3  # 2 was begun, who knows who saw it
    assert done.manifest.freshness.counts == (1,)
    assert (read(client, trainer, keys, 3, done.manifest.row_set)[0] == rows_at(3, keys)).all()


@SERVER_AND_CLUSTER
def test_another_manifest_in_place_of_ours_is_a_loss(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    trainer.publish(snapshot(1, np.arange(3)))
    client.set("{livectr}:manifest", b"{}")
    with pytest.raises(LostError):
        trainer.store.flip(b"new", 2, trainer.manifest.to_json())


@SERVER_AND_CLUSTER
def test_a_push_that_broke_is_repeated_under_its_number(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 5 dies between two tables."""
    trainer = start(trainers, redis_url)
    keys = np.arange(200)
    trainer.publish(snapshot(1, keys))
    with monkeypatch.context() as patch:
        patch.setattr(trainer.store.rows, "write", BrokenConnection(trainer.store.rows.write, 1))
        two = snapshot(2, keys)
        two = replace(two, rows={**two.rows, "user": two.rows["ad"]})
        assert trainer.publish(two) is None
    assert not trainer.publisher.full
    row_set = trainer.manifest.row_set
    assert (read(client, trainer, keys, 1, row_set)[0] == rows_at(1, keys)).all()
    done = trainer.publish(snapshot(3, keys))
    assert done is not None and done.manifest.version == 2
    assert (read(client, trainer, keys, 2, row_set)[0] == rows_at(3, keys)).all()
    assert (read(client, trainer, keys, 1, row_set)[0] == rows_at(1, keys)).all()


@SERVER_AND_CLUSTER
def test_a_flip_whose_answer_was_lost_is_asked_again(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 6 takes place, but its answer does not arrive."""
    trainer = start(trainers, redis_url)
    check = trainer.store.connection.check
    lost: list[object] = []

    def lose_one(answer: object) -> None:
        check(answer)
        if client.exists("{livectr}:manifest") and not lost:
            lost.append(answer)
            raise redis.ConnectionError("gone")

    monkeypatch.setattr(trainer.store.connection, "check", lose_one)
    done = trainer.publish(snapshot(1, np.arange(3)))
    assert lost and done is not None and not trainer.publisher.full


def test_readers_never_see_a_mixed_version(redis_url: str, trainers: list[Trainer]) -> None:
    """All rows of a version hold its number; readers run while versions are pushed and flipped."""
    trainer = start(trainers, redis_url)
    keys = np.arange(3_000)
    trainer.publish(VersionSnapshot(1, {"ad": (keys, np.full((3_000, DIM), 1, np.float32))}, {}, b""))
    stop, mixed, reads = threading.Event(), [], []

    def reader() -> None:
        client = redis.Redis.from_url(redis_url)
        while not stop.is_set():
            manifest = manifest_in(client)
            held = values(client, trainer.store.space.rows(manifest.row_set, "ad", keys))
            rows, status = decode_rows(held, manifest.version, DIM)
            if (status == RowStatus.OVERWRITTEN).any():
                continue
            reads.append(manifest.version)
            if not (rows == manifest.version).all():
                mixed.append(manifest.version)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(2, 30):
        trainer.publish(
            VersionSnapshot(version, {"ad": (keys, np.full((3_000, DIM), version, np.float32))}, {}, b"")
        )
    stop.set()
    for thread in threads:
        thread.join()
    assert not mixed and len(set(reads)) > 3


def test_what_a_user_gets_wrong_is_told(redis_url: str, client: redis.Redis) -> None:
    with pytest.raises(ConnectError, match="does not answer") as raised:
        RedisStore("redis://:secret@127.0.0.1:1/0", "livectr")
    assert "secret" not in str(raised.value) and "127.0.0.1:1" in str(raised.value)
    with pytest.raises(ConfigError, match="nonsense"):
        RedisStore("nonsense", "livectr")
    with pytest.raises(ConfigError, match="namespace"):
        RedisStore(redis_url, "a:b")
    client.set("{livectr}:manifest", b'{"some": 1}')
    with pytest.raises(MismatchError, match="another program"):
        Trainer(redis_url)


@pytest.mark.parametrize("name", ["epoch", "highest", "pushing"])
def test_a_number_of_another_program_is_told(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], name: str
) -> None:
    trainer = start(trainers, redis_url)
    trainer.publish(snapshot(1, np.arange(3)))
    cursor = trainer.publisher.cursor(1)
    client.set(f"{{livectr}}:{name}", b"abc")
    with pytest.raises(MismatchError, match=f"livectr.:{name} in Redis .*another program .b'abc'.*namespace"):
        Trainer(redis_url, cursor).store.begun()
    assert client.get(f"{{livectr}}:{name}") == b"abc"


def test_keys_of_another_program_stay(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    """Names that look like ours are no reason to end a garbage collection, and are not ours to remove."""
    foreign = ["livectr:blob:of-others:dense", f"livectr:blob:{'1' * 5_000}", "{livectr}:log:of-others"]
    for name in foreign:
        client.set(name, b"theirs")
    trainer = start(trainers, redis_url)
    trainer.publish(snapshot(1, np.arange(3)))
    assert trainer.publisher.last is not None
    collect_garbage(trainer.store, trainer.publisher.last, trainer.publisher.log)
    assert client.mget(foreign) == [b"theirs"] * 3
