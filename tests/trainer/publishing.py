"""Helpers of the tests of publishing: a publisher of one rank, and rows that tell their version."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import redis

from livectr.store.layout import decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import Published, PublishedModel, VersionSnapshot
from tests.redis_values import values
from tests.waiting import until

DIM = 3


def rows_at(version: int, keys: np.ndarray) -> np.ndarray:
    """Row of a key at a version, as these tests define it."""
    return (keys[:, None] * 100 + version + np.zeros(DIM)).astype(np.float32)


def snapshot(step: int, keys: np.ndarray, **changes: Any) -> VersionSnapshot:
    rows = {"ad": (keys, rows_at(step, keys))}
    return replace(VersionSnapshot(step, rows, {"ad": len(keys)}, b"dense %d" % step), **changes)


class Trainer:
    """A publisher of one rank, driven as the training loop drives it."""

    def __init__(
        self,
        url: str,
        cursor: Cursor | None = None,
        take_over: bool = False,
        full_rate: float = 0.0,
        **options: Any,
    ) -> None:
        self.store = RedisStore(url, "livectr", full_rate=full_rate)
        self.publisher = Publisher(
            self.store,
            Control(),
            PublishedModel("f", (("rank.v", DIM),), seed=1),
            **options,
        )
        self.publisher.start(cursor, take_over=take_over)

    @property
    def manifest(self) -> VersionManifest:
        """Manifest of the last version that was published."""
        last = self.publisher.last
        assert last is not None
        return last

    def published(self, part: VersionSnapshot) -> VersionManifest:
        """Publish, and return the version's manifest."""
        done = self.publish(part)
        assert done is not None
        return done.manifest

    def end_collection(self) -> None:
        """Wait until the garbage collection under way has ended."""
        thread = self.publisher._garbage.thread
        assert thread is not None
        thread.join()

    def publish(self, part: VersionSnapshot) -> Published | None:
        self.publisher.begin(part)
        return self.drain()

    def drain(self) -> Published | None:
        """The header exchange until nothing is under way."""
        done = None

        def exchange() -> None:
            nonlocal done
            done = self.publisher.observe([self.publisher.push.state])
            time.sleep(0.001)

        until(lambda: not self.publisher.busy, "the push", turn=exchange)
        return done


def start(
    trainers: list[Trainer],
    url: str,
    cursor: Cursor | None = None,
    take_over: bool = False,
    **options: Any,
) -> Trainer:
    trainers.append(Trainer(url, cursor, take_over, **options))
    return trainers[-1]


def read(
    client: redis.Redis, trainer: Trainer, keys: np.ndarray, version: int, row_set: str
) -> tuple[np.ndarray, np.ndarray]:
    return decode_rows(values(client, trainer.store.space.rows(row_set, "ad", keys)), version, DIM)


class BrokenConnection:
    """Writes fail as if Redis had gone away, from the n-th call on."""

    def __init__(self, write: Callable[..., None], calls: int) -> None:
        self.calls, self.write = calls, write

    def __call__(self, *args: object) -> None:
        if self.calls == 0:
            raise redis.ConnectionError("gone")
        self.calls -= 1
        self.write(*args)
