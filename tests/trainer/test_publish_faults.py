"""Publishing when Redis does not say what it did: every failure at every step, and no version exists twice.

Steps are those of trainer.publish.publisher: 5 push, 6 flip.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import redis

from livectr.store.layout import RowStatus
from livectr.trainer.comm.control import Control
from livectr.trainer.publish import garbage, outcome
from livectr.trainer.publish.fence_scripts import BEGIN, FLIP
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.row_scripts import ERASE_ROWS, WRITE_ROWS, WRITE_VALUES
from livectr.trainer.publish.values import Values
from livectr.trainer.publish.version import PublishedModel, Push, VersionSnapshot
from tests.redis_values import manifest_in
from tests.tiers import few
from tests.trainer.publishing import DIM, Trainer, read, rows_at, snapshot
from tests.trainer.redis_proxy import Fault, Proxy
from tests.waiting import left_s, until

KEYS = np.arange(50)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)


def part(trainer: Trainer, step: int) -> VersionSnapshot:
    """A version in which every kind of write occurs; all rows hold the step."""
    facts = Values(np.array([7]), trainer.store.space.lookup_rows("ads", np.array([7])), [b"[7]"])
    return replace(snapshot(step, KEYS), values=[facts], erased={"ad": np.array([1_000])})


class Seen:
    """The versions that ever stood in Redis, by number."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.steps: dict[int, int] = {}
        self.newest = 0

    def look(self) -> None:
        manifest = manifest_in(self._client)
        assert self.steps.setdefault(manifest.version, manifest.step) == manifest.step, "a number used twice"
        assert manifest.version >= self.newest
        self.newest = manifest.version


def assert_served(client: redis.Redis, trainer: Trainer, step: int) -> None:
    """Check that the trainer's newest version stands in Redis, complete, at that step."""
    manifest = manifest_in(client)
    assert trainer.publisher.last == manifest and manifest.step == step
    rows, status = read(client, trainer, KEYS, manifest.version, manifest.row_set)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(step, KEYS)).all()
    assert client.get(manifest.dense[0]) == b"dense %d" % step
    assert not trainer.store.pushing()


def called(script: str) -> bytes:
    """Bytes of a script's call on the wire."""
    return b"EVALSHA\r\n$40\r\n" + hashlib.sha1(script.encode()).hexdigest().encode()


CALLS = (
    *("servers", "begin", "connection.blob", "connection.write_blob", "client.remove"),
    *("rows.erase", "rows.write", "rows.write_values", "pushed", "flip"),
)
STEPS: dict[str, bytes] = {
    "begin": called(BEGIN),
    "erased rows": called(ERASE_ROWS),
    "rows": called(WRITE_ROWS),
    "values": called(WRITE_VALUES),
    "blobs": b"livectr:blob:2:",
    "flip": called(FLIP),
}


@pytest.mark.parametrize(
    ("at", "fault"),
    few(
        [(at, fault) for at in STEPS for fault in ("answer lost", "command lost", "command late")],
        *((at, "command late") for at in STEPS),
        ("flip", "answer lost"),
        ("rows", "command lost"),
    ),
)
def test_whatever_the_network_loses_no_number_is_used_twice(
    client: redis.Redis, proxy: Proxy, at: str, fault: Fault
) -> None:
    """On a connection that stalls, also when its command is carried out long after another was sent."""
    trainer, seen = Trainer(proxy.url), Seen(client)
    trainer.publish(part(trainer, 1))
    seen.look()
    proxy.arm(STEPS[at], fault)
    done = trainer.publish(part(trainer, 18))
    assert proxy.met.is_set()
    assert (done is not None) == (at == "flip" and fault == "answer lost")
    seen.look()
    if done is not None:
        assert_served(client, trainer, 18)
    assert trainer.publish(part(trainer, 82)) is not None
    seen.look()
    assert_served(client, trainer, 82)
    proxy.release()
    seen.look()
    assert_served(client, trainer, 82)
    assert trainer.publish(part(trainer, 83)) is not None
    assert_served(client, trainer, 83)
    assert not trainer.publisher.full and seen.steps.keys() <= {1, 2, 3}
    trainer.publisher.close()


def test_until_redis_can_be_asked_the_outcome_is_unknown(client: redis.Redis, proxy: Proxy) -> None:
    trainer, seen = Trainer(proxy.url), Seen(client)
    trainer.publish(part(trainer, 1))
    proxy.arm(STEPS["flip"], "answer lost")
    trainer.publisher.begin(part(trainer, 18))
    until(proxy.met.is_set, turn=lambda: trainer.publisher.observe([trainer.publisher.push.state]))
    proxy.go_away()
    end = time.monotonic() + 0.7
    while time.monotonic() < end:  # all the time, so that nothing is waited for
        assert trainer.publisher.observe([trainer.publisher.push.state]) is None
        assert trainer.publisher.busy  # so that nothing is begun
        time.sleep(0.01)
    assert trainer.publisher.push.state is Push.UNKNOWN
    assert trainer.publisher.cursor(20, begins=False).version == 2
    proxy.away = False
    assert trainer.drain() is not None
    seen.look()
    assert_served(client, trainer, 18)
    trainer.publisher.close()


def exceptions() -> dict[str, type[Exception]]:
    """Every exception that redis-py has."""
    found = inspect.getmembers(redis.exceptions, inspect.isclass)
    return {name: kind for name, kind in found if issubclass(kind, Exception)}


class Raising:
    """A call that raises once, before or after it does what it should."""

    def __init__(self, call: Callable[..., Any], error: Exception, *, after: bool) -> None:
        self._call, self._error, self._after = call, error, after
        self.raised = False

    def __call__(self, *args: object, **flags: object) -> Any:
        if self.raised:
            return self._call(*args, **flags)
        self.raised = True
        if self._after:
            self._call(*args, **flags)
        raise self._error


@pytest.mark.parametrize(
    ("call", "after"),
    few(
        [(call, after) for call in CALLS for after in (False, True)],
        ("flip", False),
        ("flip", True),
        ("pushed", False),
        ("rows.write", True),
    ),
)
def test_every_exception_at_every_step(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    trainer, seen = Trainer(redis_url), Seen(client)
    for step in range(1, 6):  # old enough that blobs are dropped and erased rows removed
        trainer.publish(part(trainer, step))
        seen.look()
    for name, kind in exceptions().items():
        *parts, method = call.split(".")
        owner = attrgetter(*parts)(trainer.store) if parts else trainer.store
        raising = Raising(getattr(owner, method), kind("12182 127.0.0.1:7001"), after=after)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, raising)
            step += 1
            done = trainer.publish(part(trainer, step))
        assert raising.raised and (done is not None) == (call == "flip" and after), name
        seen.look()
        step += 1
        assert trainer.publish(part(trainer, step)) is not None, name
        seen.look()
        assert_served(client, trainer, step)
    assert not trainer.publisher.full
    blobs = {int(name.split(b":")[2]) for name in client.scan_iter("livectr:blob:*")}
    if call != "client.remove":
        assert min(blobs) == seen.newest - 3
    trainer.publisher.close()


def test_every_exception_of_a_garbage_collection_is_survived(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in exceptions().items():
        client.flushall()
        trainer = Trainer(redis_url, collect_after_s=0)
        raising = Raising(garbage.collect_garbage, kind("12182 127.0.0.1:7001"), after=False)
        with monkeypatch.context() as patch:
            patch.setattr(garbage, "collect_garbage", raising)
            trainer.publish(part(trainer, 1))
            trainer.end_collection()
            assert raising.raised, name
        trainer.publish(part(trainer, 2))
        assert_served(client, trainer, 2)
        trainer.publisher.close()


@pytest.mark.parametrize("lost", ["nothing", "manifest", "everything"])
def test_a_successor_whose_checkpoint_is_behind_uses_no_number_again(
    client: redis.Redis, redis_url: str, lost: str
) -> None:
    first = Trainer(redis_url)
    cursor = first.publisher.cursor(1)
    for step in range(1, 6):
        first.publish(part(first, step))
    old = first.manifest
    first.publisher.close()
    if lost == "manifest":
        client.delete("{livectr}:manifest")
    elif lost == "everything":
        client.flushall()
    second = Trainer(redis_url, cursor)
    done = second.publish(part(second, 6))
    assert done is not None and done.manifest.version > 5 and done.manifest.epoch > old.epoch
    assert done.manifest.row_set != old.row_set
    assert done.manifest.version == 6 or lost == "everything"
    assert_served(client, second, 6)
    second.publisher.close()


def test_after_a_loss_with_an_unknown_flip_its_number_is_skipped(client: redis.Redis, proxy: Proxy) -> None:
    """A reader may have seen the version before Redis lost it."""
    trainer = Trainer(proxy.url)
    trainer.publish(part(trainer, 1))
    proxy.arm(STEPS["flip"], "answer lost")
    trainer.publisher.begin(part(trainer, 18))
    until(proxy.met.is_set, turn=lambda: trainer.publisher.observe([trainer.publisher.push.state]))
    client.flushall()
    assert trainer.drain() is None and trainer.publisher.full
    assert trainer.published(part(trainer, 82)).version == 3
    assert_served(client, trainer, 82)
    trainer.publisher.close()


class Threads(Control):
    """Two ranks as two threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, slots: list[np.ndarray]) -> None:
        super().__init__()
        self.rank, self.world = rank, 2
        self._barrier, self._slots = barrier, slots

    def gather(self, values: np.ndarray) -> np.ndarray:
        self._slots[self.rank] = np.ascontiguousarray(values, np.int64)
        self._barrier.wait(left_s())
        both = np.stack(self._slots)
        self._barrier.wait(left_s())
        return both

    def broadcast_bytes(self, value: bytes) -> bytes:
        return self.gather_bytes(value if self.rank == 0 else b"")[0]


def test_a_rank_whose_push_fails_repeats_it_in_the_epoch_that_rank_0_takes(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, slots = threading.Barrier(2), [np.zeros(0), np.zeros(0)]
    epochs: list[list[int]] = [[], []]
    failures: list[BaseException] = []

    def rank(number: int) -> None:
        control = Threads(number, barrier, slots)
        store = RedisStore(redis_url, "livectr")
        publisher = Publisher(store, control, PublishedModel("f", (("rank.v", DIM),), seed=1))

        def exchange() -> None:
            publisher.observe(control.gather(np.array([publisher.push.state]))[:, 0].tolist())

        try:
            publisher.start(None)
            for step in (1, 2, 3):
                if number == 1 and step == 2:
                    store.rows.write = Raising(store.rows.write, redis.TimeoutError("slow"), after=True)  # type: ignore[method-assign]
                keys = KEYS + 1_000 * number
                publisher.begin(VersionSnapshot(step, {"ad": (keys, rows_at(step, keys))}, {"ad": 50}, b""))
                until(lambda: not publisher.busy, turn=exchange)
                epochs[number].append(store.connection.epoch)
        except BaseException as error:
            failures.append(error)
            barrier.abort()
        finally:
            publisher.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    manifest = manifest_in(client)
    assert (manifest.version, manifest.step) == (2, 3)
    assert epochs[0][2] == epochs[1][2] == epochs[0][0] + 1


def test_an_outcome_is_asked_for_once(client: redis.Redis, redis_url: str) -> None:
    """The flags of a header are older than the state: the thread may have had its answer in between."""
    trainer = Trainer(redis_url)
    publisher, store = trainer.publisher, trainer.store
    store.rows.write = Raising(store.rows.write, redis.TimeoutError("slow"), after=True)  # type: ignore[method-assign]
    publisher.begin(part(trainer, 1))
    publisher.push.check()
    publisher.observe([Push.UNKNOWN])
    publisher.push.check()
    assert publisher.push.state is Push.FAILED
    epoch = store.connection.epoch
    publisher.observe([Push.UNKNOWN])
    publisher.push.check()
    assert store.connection.epoch == epoch and publisher.busy
    publisher.observe([Push.FAILED])
    assert not publisher.busy
    publisher.close()


def test_a_process_that_ends_waits_for_no_answer(client: redis.Redis, proxy: Proxy) -> None:
    """An answer that never comes would be waited for until the connection's time-out, of a day."""
    trainer = Trainer(proxy.url.replace("0.3", "86400"))
    trainer.publish(part(trainer, 1))
    proxy.arm(STEPS["rows"], "answer lost")
    trainer.publisher.begin(part(trainer, 2))
    assert proxy.met.wait(left_s())
    trainer.publisher.close()
    assert trainer.publisher.push.state is Push.UNKNOWN
