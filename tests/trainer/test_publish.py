"""Publishing: one atomic flip, readers undisturbed, zombies refused, an emptied Redis filled again.

Steps are those of trainer.publish.publisher: 5 push, 6 flip.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import redis

from livectr.kernels.errors import ConfigError, ConnectError, MismatchError
from livectr.protos.manifest import VersionManifest
from livectr.protos.store import RowStatus, decode_changed, decode_rows, decode_vectors
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import FencedError, LostError, RedisStore, Values
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import Published, PublishedModel, Push, VersionSnapshot

DIM = 3


def rows_at(version: int, keys: np.ndarray) -> np.ndarray:
    """Row of a key at a version, as these tests define it."""
    return (keys[:, None] * 100 + version + np.zeros(DIM)).astype(np.float32)


def snapshot(step: int, keys: np.ndarray, **changes: object) -> VersionSnapshot:
    rows = {"ad": (keys, rows_at(step, keys))}
    return replace(VersionSnapshot(step, rows, {"ad": len(keys)}, b"dense %d" % step), **changes)


class Trainer:
    """A publisher of one rank, driven as the training loop drives it."""

    def __init__(
        self, url: str, cursor: Cursor | None = None, take_over: bool = False, **options: float
    ) -> None:
        self.store = RedisStore(url, "livectr")
        self.publisher = Publisher(
            self.store,
            Control(),
            PublishedModel("f", (("rank.v", DIM),), seed=1),
            **options,
        )
        self.publisher.start(cursor, take_over=take_over)

    def publish(self, part: VersionSnapshot) -> Published | None:
        self.publisher.begin(part)
        return self.drain()

    def drain(self) -> Published | None:
        """The header exchange until nothing is under way."""
        done = None
        while self.publisher.busy:
            done = self.publisher.observe([self.publisher.push.state])
            time.sleep(0.001)
        return done


@pytest.fixture
def trainers(redis_url: str) -> Iterator[list[Trainer]]:
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.publisher.close()


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.flushall()


def start(
    trainers: list[Trainer],
    url: str,
    cursor: Cursor | None = None,
    take_over: bool = False,
    **options: float,
) -> Trainer:
    trainers.append(Trainer(url, cursor, take_over, **options))
    return trainers[-1]


def read(client: redis.Redis, trainer: Trainer, keys: np.ndarray, version: int, ns: str) -> tuple:
    return decode_rows(client.mget(trainer.store.space.rows(ns, "ad", keys)), version, DIM)


def test_a_version_has_all_its_parts(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(5_000) * 7 - 9_000
    listener = client.pubsub()
    listener.subscribe("livectr:versions")
    assert listener.get_message(timeout=5)
    trainer.publisher.trained(np.array([1_050, 1_099, 1_250]))
    items = (np.array([4, 5]), np.ones((2, 8), np.float32))
    facts = Values(np.array([7]), trainer.store.space.lookup_rows("ads", np.array([7])), [b"[7]"])
    expected = trainer.publisher.cursor(1)
    done = trainer.publish(snapshot(1, keys, items=items, values=[facts]))
    assert done is not None and done.rows == 5_000
    text = client.get("{livectr}:manifest")
    manifest = VersionManifest.from_json(text)
    assert manifest == done.manifest
    assert expected == Cursor(manifest.version, manifest.epoch, manifest.ns, manifest.step, manifest.run)
    assert manifest.freshness.bin_ms == (1_000, 1_200) and manifest.freshness.counts == (2, 1)
    assert manifest.tables == {"ad": 5_000}
    rows, status = read(client, trainer, keys, 1, manifest.ns)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(1, keys)).all()
    assert client.get(manifest.dense[0]) == b"dense 1"
    assert decode_changed(client.get(manifest.changed[0])) == {}  # nobody served an earlier one of its ns
    assert decode_vectors(client.get(manifest.item_vectors))[0].tolist() == [4, 5]
    assert client.get(facts.names[0]) == b"[7]"
    message = listener.get_message(timeout=5)
    assert message and message["data"] == b"1"


def test_a_reader_of_the_version_before_is_not_disturbed(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(100)
    for step in (1, 2):
        trainer.publish(snapshot(step, keys[:50] if step == 1 else keys))
    ns = trainer.publisher.last.ns
    rows, status = read(client, trainer, keys, 1, ns)
    assert (rows[:50] == rows_at(1, keys[:50])).all()
    assert (status[50:] == RowStatus.MISSING).all()
    # the push of version 3 began, and was repeated, but is not flipped
    for _ in range(2):
        trainer.store.write_rows(3, ns, "ad", keys, rows_at(3, keys))
    rows, status = read(client, trainer, keys, 2, ns)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(2, keys)).all()
    assert (read(client, trainer, keys[:50], 1, ns)[1] == RowStatus.OVERWRITTEN).all()


def test_deltas_name_what_changed_and_old_blobs_go(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    for step in range(1, 8):
        trainer.publish(snapshot(step, np.array([step])))
    manifest = trainer.publisher.last
    assert manifest.version == 7
    changed = manifest.changed_since(4, manifest.ns)
    assert [decode_changed(client.get(blob))["ad"].tolist() for blob in changed] == [[5], [6], [7]]
    assert manifest.changed_since(3, manifest.ns) is None
    versions = {int(name.split(b":")[2]) for name in client.scan_iter("livectr:blob:*")}
    assert versions == {4, 5, 6, 7}


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
    ns = successor.publisher.last.ns
    assert (read(client, successor, keys, 2, ns)[0] == rows_at(2, keys)).all()


def test_a_zombie_between_push_and_flip_is_refused(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    """Between steps 5 and 6."""
    zombie = start(trainers, redis_url)
    zombie.publisher.begin(snapshot(1, np.arange(10)))
    while zombie.publisher.push.state is Push.PUSHING:
        time.sleep(0.001)
    start(trainers, redis_url)
    with pytest.raises(FencedError):
        zombie.drain()
    assert client.get("{livectr}:manifest") is None


def test_a_restart_goes_on_with_deltas_when_redis_holds_the_checkpoint(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    keys = np.arange(10)
    first = start(trainers, redis_url)
    cursor = first.publisher.cursor(1)
    first.publish(snapshot(1, keys))
    second = start(trainers, redis_url, cursor)
    assert not second.publisher.full
    second.publish(snapshot(2, keys[:3]))
    manifest = second.publisher.last
    assert (manifest.version, manifest.ns) == (2, cursor.ns) and manifest.epoch > cursor.epoch
    assert manifest.changed_since(1, cursor.ns) == manifest.changed
    rows, _ = read(client, second, keys, 2, manifest.ns)
    assert (rows[:3] == rows_at(2, keys[:3])).all() and (rows[3:] == rows_at(1, keys[3:])).all()


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
        first.store.write_rows(2, cursor.ns, "ad", keys[:5], rows_at(99, keys[:5]))
    old = first.publisher.last
    none = fault == "no checkpoint"
    second = start(trainers, redis_url, None if none else cursor, take_over=none, collect_after_s=0)
    assert second.publisher.full
    second.publish(snapshot(3, keys))
    manifest = second.publisher.last
    begun = old.version + (fault == "half a push")  # no number is used again
    assert manifest.version == begun + 1 and manifest.ns != old.ns
    assert manifest.changed_since(old.version, old.ns) is None
    assert (read(client, second, keys, manifest.version, manifest.ns)[0] == rows_at(3, keys)).all()
    second.publisher._garbage.thread.join()
    assert not any(client.mget(second.store.space.rows(old.ns, "ad", keys)))
    assert not second.store.pushing()


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
    assert (read(client, trainer, keys, 3, done.manifest.ns)[0] == rows_at(3, keys)).all()


def test_another_manifest_in_place_of_ours_is_a_loss(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = start(trainers, redis_url)
    trainer.publish(snapshot(1, np.arange(3)))
    client.set("{livectr}:manifest", b"{}")
    with pytest.raises(LostError):
        trainer.store.flip(b"new", 2, trainer.publisher.last.to_json())


class BrokenConnection:
    """Writes fail as if Redis had gone away, from the n-th call on."""

    def __init__(self, write: Callable[..., None], calls: int) -> None:
        self.calls, self.write = calls, write

    def __call__(self, *args: object) -> None:
        if self.calls == 0:
            raise redis.ConnectionError("gone")
        self.calls -= 1
        self.write(*args)


def test_a_push_that_broke_is_repeated_under_its_number(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 5 dies between two tables."""
    trainer = start(trainers, redis_url)
    keys = np.arange(200)
    trainer.publish(snapshot(1, keys))
    with monkeypatch.context() as patch:
        patch.setattr(trainer.store, "write_rows", BrokenConnection(trainer.store.write_rows, 1))
        two = snapshot(2, keys)
        two = replace(two, rows={**two.rows, "user": two.rows["ad"]})
        assert trainer.publish(two) is None
    assert not trainer.publisher.full
    ns = trainer.publisher.last.ns
    assert (read(client, trainer, keys, 1, ns)[0] == rows_at(1, keys)).all()
    done = trainer.publish(snapshot(3, keys))
    assert done is not None and done.manifest.version == 2
    assert (read(client, trainer, keys, 2, ns)[0] == rows_at(3, keys)).all()
    assert (read(client, trainer, keys, 1, ns)[0] == rows_at(1, keys)).all()


def test_a_flip_whose_answer_was_lost_is_asked_again(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 6 takes place, but its answer does not arrive."""
    trainer = start(trainers, redis_url)
    check, lost = trainer.store._check, []

    def lose_one(answer: object) -> None:
        check(answer)
        if client.exists("{livectr}:manifest") and not lost:
            lost.append(answer)
            raise redis.ConnectionError("gone")

    monkeypatch.setattr(trainer.store, "_check", lose_one)
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
            manifest = VersionManifest.from_json(client.get("{livectr}:manifest"))
            values = client.mget(trainer.store.space.rows(manifest.ns, "ad", keys))
            rows, status = decode_rows(values, manifest.version, DIM)
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


def erasing(step: int, written: list[int], erased: list[int]) -> VersionSnapshot:
    """Rows written with the step as their version, and rows erased."""
    return snapshot(step, np.array(written, np.int64), erased={"ad": np.array(erased, np.int64)})


def floor_of(client: redis.Redis) -> int:
    return int(client.get("{livectr}:floor") or 0)


def test_an_erased_row_leaves_redis_and_no_reader_is_told_otherwise(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    """Erased by 2: read at version 1, missing at 2, gone when 4 is pushed; a reader still at 1 must go on."""
    trainer = start(trainers, redis_url)
    keys = np.arange(3)
    trainer.publish(snapshot(1, keys))
    trainer.publish(erasing(2, [], [1, 2, 77]))
    ns = trainer.publisher.last.ns
    rows, status = read(client, trainer, keys, 1, ns)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(1, keys)).all()
    assert read(client, trainer, keys, 2, ns)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.MISSING,
        RowStatus.MISSING,
    ]
    assert not client.exists(*trainer.store.space.rows(ns, "ad", np.array([77])))
    trainer.publish(erasing(3, [2], []))  # it comes back
    assert floor_of(client) == 0
    assert read(client, trainer, keys, 2, ns)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.MISSING,
        RowStatus.MISSING,
    ]
    trainer.publish(erasing(4, [], []))
    assert [client.exists(name) for name in trainer.store.space.rows(ns, "ad", keys)] == [1, 0, 1]
    assert floor_of(client) == 2
    values = client.mget(trainer.store.space.rows(ns, "ad", keys))
    assert decode_rows(values, 1, DIM, 2)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.OVERWRITTEN,
        RowStatus.OVERWRITTEN,
    ]
    assert decode_rows(values, 4, DIM, 2)[1].tolist() == [RowStatus.FOUND, RowStatus.MISSING, RowStatus.FOUND]


def test_what_a_trainer_erased_its_successor_removes(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    first = start(trainers, redis_url)
    first.publish(snapshot(1, np.arange(9)))
    cursor = first.publisher.cursor(2)
    first.publish(erasing(2, [0], [5, 6]))
    second = start(trainers, redis_url, cursor)
    assert not second.publisher.full
    second.publish(erasing(3, [1], []))
    second.publish(erasing(4, [1], []))
    names = second.store.space.rows(cursor.ns, "ad", np.arange(9))
    assert [k for k, name in enumerate(names) if not client.exists(name)] == [5, 6]


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_and_go_and_every_version_is_right(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random versions, some of whose pushes break and are repeated with other rows: a reader of any version
    finds what was there at it, or is told to go on; one of the newest version always finds it."""
    rng = np.random.default_rng(seed)
    trainer = start(trainers, redis_url)
    keys = np.arange(12)
    states: dict[int, dict[int, int]] = {}  # version -> key -> step whose row it has
    state: dict[int, int] = {}
    last: dict[int, int] = {}
    step = 0

    def look() -> None:
        # what a server does: the floor is read with or after the rows
        values = client.mget(trainer.store.space.rows(trainer.publisher.last.ns, "ad", keys))
        floor = floor_of(client)
        newest = trainer.publisher.last.version
        for version, expected in states.items():
            rows, status = decode_rows(values, version, DIM, floor)
            for key, row, what in zip(keys.tolist(), rows, status, strict=True):
                if what == RowStatus.OVERWRITTEN:
                    assert version < newest
                elif what == RowStatus.FOUND:
                    assert (row == rows_at(expected[key], np.array([key]))).all()
                else:
                    assert key not in expected

    for _ in range(40):
        step += 1
        for key in rng.choice(keys, rng.integers(0, 6), replace=False).tolist():
            if rng.random() < 0.5:
                state[key] = step
            else:
                state.pop(key, None)
        written = np.array([k for k in state if state[k] != last.get(k)], np.int64)
        gone = [k for k in keys.tolist() if k not in state and (k in last or rng.random() < 0.3)]
        rows = np.array([rows_at(state[k], np.array([k]))[0] for k in written.tolist()], np.float32)
        part = replace(erasing(step, [], gone), rows={"ad": (written, rows.reshape(-1, DIM))})
        with monkeypatch.context() as patch:
            if step > 1 and rng.random() < 0.4:
                calls = int(rng.integers(0, 4))
                patch.setattr(trainer.store, "_chunks", BrokenConnection(trainer.store._chunks, calls))
            done = trainer.publish(part)
        if done is not None:
            last = dict(state)
            states[done.manifest.version] = last
        look()
    assert len(states) > 20
    for _ in range(2):
        step += 1
        trainer.publish(erasing(step, [], []))
    names = trainer.store.space.rows(trainer.publisher.last.ns, "ad", keys)
    assert {key for key, name in enumerate(names) if client.exists(name)} == set(state)


def test_removed_values_are_removed(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(40)
    names = trainer.store.space.lookup_rows("ads", keys)
    trainer.store.write_values(Values(keys, names, [b"x"] * 40))
    trainer.store.write_values(Values(keys, names, [None if k % 2 else b"y" for k in range(40)]))
    assert client.mget(names) == [None if k % 2 else b"y" for k in range(40)]


def test_what_a_user_gets_wrong_is_told(redis_url: str, client: redis.Redis) -> None:
    with pytest.raises(ConnectError, match="does not answer") as told:
        RedisStore("redis://:secret@127.0.0.1:1/0", "livectr")
    assert "secret" not in str(told.value) and "127.0.0.1:1" in str(told.value)
    with pytest.raises(ConfigError, match="nonsense"):
        RedisStore("nonsense", "livectr")
    with pytest.raises(ConfigError, match="namespace"):
        RedisStore(redis_url, "a:b")
    client.set("{livectr}:manifest", b'{"some": 1}')
    with pytest.raises(MismatchError, match="another program"):
        Trainer(redis_url)
