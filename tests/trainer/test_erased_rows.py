"""Rows that leave: erased in a version, missing from it on, removed from Redis two versions later."""

from dataclasses import replace

import numpy as np
import pytest
import redis

from livectr.store.layout import RowStatus, decode_rows
from livectr.trainer.publish.values import Values
from livectr.trainer.publish.version import VersionSnapshot
from tests.redis_values import values
from tests.trainer.publishing import DIM, BrokenConnection, Trainer, read, rows_at, snapshot, start


def erasing(step: int, written: list[int], erased: list[int]) -> VersionSnapshot:
    """Rows written with the step as their version, and rows erased."""
    return snapshot(step, np.array(written, np.int64), erased={"ad": np.array(erased, np.int64)})


def floor_of(client: redis.Redis) -> int:
    return int(client.get("{livectr}:floor") or 0)


def test_an_erased_row_leaves_redis_and_no_reader_is_told_otherwise(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    """Erased by 2: read at version 1, missing at 2, gone when 4 is pushed; a reader at 1 must move on."""
    trainer = start(trainers, redis_url)
    keys = np.arange(3)
    trainer.publish(snapshot(1, keys))
    trainer.publish(erasing(2, [], [1, 2, 77]))
    row_set = trainer.manifest.row_set
    rows, status = read(client, trainer, keys, 1, row_set)
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(1, keys)).all()
    assert read(client, trainer, keys, 2, row_set)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.MISSING,
        RowStatus.MISSING,
    ]
    assert not client.exists(*trainer.store.space.rows(row_set, "ad", np.array([77])))
    trainer.publish(erasing(3, [2], []))  # it comes back
    assert floor_of(client) == 0
    assert read(client, trainer, keys, 2, row_set)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.MISSING,
        RowStatus.MISSING,
    ]
    trainer.publish(erasing(4, [], []))
    assert [client.exists(name) for name in trainer.store.space.rows(row_set, "ad", keys)] == [1, 0, 1]
    assert floor_of(client) == 2
    held = values(client, trainer.store.space.rows(row_set, "ad", keys))
    assert decode_rows(held, 1, DIM, 2)[1].tolist() == [
        RowStatus.FOUND,
        RowStatus.OVERWRITTEN,
        RowStatus.OVERWRITTEN,
    ]
    assert decode_rows(held, 4, DIM, 2)[1].tolist() == [RowStatus.FOUND, RowStatus.MISSING, RowStatus.FOUND]


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
    names = second.store.space.rows(cursor.row_set, "ad", np.arange(9))
    assert [k for k, name in enumerate(names) if not client.exists(name)] == [5, 6]


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_and_go_and_every_version_is_right(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random versions, some of whose pushes break and are repeated with other rows: a reader of any version
    finds what was there at it, or is told to move on; one of the newest version always finds it."""
    rng = np.random.default_rng(seed)
    trainer = start(trainers, redis_url)
    keys = np.arange(12)
    states: dict[int, dict[int, int]] = {}  # version -> key -> step whose row it has
    state: dict[int, int] = {}
    last: dict[int, int] = {}
    step = 0

    def look() -> None:
        # what a server does: the floor is read with or after the rows
        held = values(client, trainer.store.space.rows(trainer.manifest.row_set, "ad", keys))
        floor = floor_of(client)
        newest = trainer.manifest.version
        for version, expected in states.items():
            rows, status = decode_rows(held, version, DIM, floor)
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
                patch.setattr(
                    trainer.store.connection,
                    "run_all",
                    BrokenConnection(trainer.store.connection.run_all, calls),
                )
            done = trainer.publish(part)
        if done is not None:
            last = dict(state)
            states[done.manifest.version] = last
        look()
    assert len(states) > 20
    for _ in range(2):
        step += 1
        trainer.publish(erasing(step, [], []))
    names = trainer.store.space.rows(trainer.manifest.row_set, "ad", keys)
    assert {key for key, name in enumerate(names) if client.exists(name)} == set(state)


def test_removed_values_are_removed(redis_url: str, client: redis.Redis, trainers: list[Trainer]) -> None:
    trainer = start(trainers, redis_url)
    keys = np.arange(40)
    names = trainer.store.space.lookup_rows("ads", keys)
    trainer.store.rows.write_values(Values(keys, names, [b"x"] * 40))
    trainer.store.rows.write_values(Values(keys, names, [None if k % 2 else b"y" for k in range(40)]))
    assert client.mget(names) == [None if k % 2 else b"y" for k in range(40)]
