"""Readers and writers of the near-cache take turns; a full near-cache drops few rows at a time."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from livectr.kernels.request.swap_lock import Holders, LateError, SwapLock
from livectr.models.configs import model_configs
from livectr.serving.deadlines import LONGEST_WAIT_S, Call, answering
from livectr.serving.errors import DeadlineError
from livectr.serving.score.published import value_layout
from livectr.serving.version.batch import Batch
from livectr.serving.version.near_cache import NearCache, SupersededError
from tests.serving.swap_pipeline import pipeline
from tests.waiting import until


def test_a_waiting_reader_goes_before_the_next_writer() -> None:
    lock, order = SwapLock(LONGEST_WAIT_S), list[str]()

    def read() -> None:
        with lock.read():
            order.append("reader")

    def write() -> None:
        with lock.write():
            order.append("writer")

    with lock.write():
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: lock.holders.waiting, equals=3)
        threads += [threading.Thread(target=write) for _ in range(3)]
        for thread in threads[3:]:
            thread.start()
        until(lambda: lock.holders.writers, equals=4)
        with pytest.raises(LateError), lock.read(0.0):
            pass
    for thread in threads:
        thread.join()
    assert order == ["reader"] * 3 + ["writer"] * 3
    assert lock.holders == Holders(0, 0, 0)


def test_a_waiting_writer_goes_before_later_readers() -> None:
    lock, order = SwapLock(LONGEST_WAIT_S), list[str]()

    def write() -> None:
        with lock.write():
            order.append("writer")

    def read() -> None:
        with lock.read():
            order.append("reader")

    with lock.read():
        threads = [threading.Thread(target=write), threading.Thread(target=read)]
        threads[0].start()
        until(lambda: lock.holders.writers, equals=1)
        threads[1].start()
        until(lambda: lock.holders.waiting, equals=1)
    for thread in threads:
        thread.join()
    assert order == ["writer", "reader"]


LAYOUT = value_layout(model_configs(pipeline))


def filled(rows: int) -> NearCache:
    cache = NearCache(["ad"], LAYOUT, seed=1, max_rows=rows, version=7)
    cache.advance(7, {"ad": np.arange(0)}, {"ad": (np.arange(rows), np.ones((rows, LAYOUT.dim), np.float32))})
    return cache


def batch(*keys: int) -> Batch:
    return Batch((("ad", "ad"),), np.array([0, len(keys)], np.int32), np.array(keys, np.int64), 1)


def read(keys: int, first: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"ad": (np.arange(first, first + keys), np.ones((keys, 1), np.float32))}


def test_a_full_near_cache_drops_few_rows() -> None:
    """All requests wait for the eviction, so it must not be of a half."""
    cache = filled(6400)
    for turn in range(40):
        vectors, missing = cache.infer(batch(10_000 + turn), read(1, 10_000 + turn))
        assert vectors is not None and not missing
        assert 6400 * 0.95 < len(cache) <= 6400 and len(cache) == len(cache.tables["ad"])
    vectors, _ = cache.infer(batch(20_000), read(6400, 20_000))  # no other row has room
    assert vectors is not None and len(cache) <= 6400 and len(cache) == len(cache.tables["ad"])


def test_rows_of_another_version_are_not_read() -> None:
    cache = filled(10)
    cache.advance(8, {"ad": np.array([1, 2])}, {"ad": (np.array([1]), np.full((1, 1), 5, np.float32))})
    for old in (lambda: cache.infer(batch(1), {}, 7), lambda: cache.infer_cold(batch(1), 7)):
        with pytest.raises(SupersededError):
            old()
    with pytest.raises(SupersededError):
        cache.infer(batch(99), read(1, 99), 7)
    assert cache.infer(batch(99), {}, 8) == (None, {"ad": np.array([99])}), "the row was not added"
    vectors, _ = cache.infer(batch(1), {}, 8)
    assert vectors is not None and vectors.pooled.ravel().tolist() == [5]
    assert cache.infer(batch(2), {}, 8)[0] is None, "the stale row is gone"
    assert len(cache) == len(cache.tables["ad"]) == 9
    vectors, _ = cache.infer(batch(2, 2), {}, 8, {"ad": np.array([2])})
    assert vectors is not None and len(cache) == len(cache.tables["ad"]) == 10, "with its initial values"


def test_a_reader_waits_for_a_writer_no_longer_than_its_call() -> None:
    cache = filled(10)
    for look in (
        lambda: cache.infer(batch(1), {}),
        lambda: cache.infer_cold(batch(1)),
        lambda: cache.cached("ad", np.arange(3)),
    ):
        with cache.lock.write(), answering(Call(0.0)), pytest.raises(DeadlineError):
            look()


def test_readers_for_the_columns_that_clients_choose_are_bounded() -> None:
    """Each set of shared columns needs a reader of its own, and clients may choose 2^columns sets."""
    cache, keys, offsets = filled(10), np.arange(9), np.arange(10, dtype=np.int32)
    fields = tuple((f"ad{i}", "ad") for i in range(9))
    for orders in itertools.islice(itertools.permutations(fields), 1_000):
        vectors, missing = cache.infer(Batch(orders, offsets, keys, 1), {}, 7)
        assert vectors is not None and not missing
    assert 0 < len(cache._field_tables) <= 256
