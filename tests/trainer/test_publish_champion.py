"""Publishing when the champion changes: a complete version under a fresh row set, then deltas again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import redis

from livectr.kernels.table.layout import SGD, Segment
from livectr.store.layout import RowStatus, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.publish.snapshot import served_columns
from livectr.trainer.publish.version import Published, PublishedModel, VersionSnapshot
from tests.redis_values import values
from tests.trainer.publishing import DIM, BrokenConnection, Trainer, read, rows_at, snapshot, start

MODEL = PublishedModel("f", (("rank.v", DIM), ("fm.w", 1), ("fm.v", 1), ("ids.v", 4)), seed=1)
KEYS = np.arange(50)


def of_fm(step: int, keys: np.ndarray = KEYS) -> VersionSnapshot:
    rows = {"ad": (keys, rows_at(step, keys)[:, :2])}
    return replace(snapshot(step, keys), champion="fm", rows=rows)


def publish(trainer: Trainer, part: VersionSnapshot) -> Published:
    trainer.publisher.serve(part.champion)
    done = trainer.publish(part)
    assert done is not None
    return done


def begun(trainers: list[Trainer], url: str, **options: object) -> Trainer:
    trainer = start(trainers, url, **options)  # type: ignore[arg-type]
    trainer.publisher._model = MODEL
    return trainer


def test_the_version_of_a_change_is_complete_and_readers_of_the_version_before_are_not_disturbed(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = begun(trainers, redis_url)
    first = publish(trainer, snapshot(1, KEYS)).manifest
    second = publish(trainer, snapshot(2, KEYS[:5])).manifest
    assert first.row_set == second.row_set and (first.champion, second.dim) == ("rank", DIM)
    third = publish(trainer, of_fm(3)).manifest
    assert third.row_set != second.row_set and third.sentinel != second.sentinel and third.earlier == {}
    assert (third.champion, third.dim, third.segments) == ("fm", 2, (("fm.w", 1), ("fm.v", 1)))
    assert third.changed_since(second.version, second.row_set) is None, "servers drop all cached rows"
    rows, status = decode_rows(
        values(client, trainer.store.space.rows(third.row_set, "ad", KEYS)), third.version, third.dim
    )
    assert (status == RowStatus.FOUND).all() and (rows == rows_at(3, KEYS)[:, :2]).all()
    old, status = read(client, trainer, KEYS[5:], second.version, second.row_set)
    assert (status == RowStatus.FOUND).all() and (old == rows_at(1, KEYS[5:])).all()
    fourth = publish(trainer, of_fm(4, KEYS[:3])).manifest
    assert fourth.row_set == third.row_set and list(fourth.earlier) == [third.version]
    fifth = publish(trainer, snapshot(5, KEYS)).manifest
    assert fifth.row_set not in (first.row_set, third.row_set) and fifth.champion == "rank"


def test_a_failed_version_of_a_change_is_repeated_complete(
    redis_url: str, client: redis.Redis, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = begun(trainers, redis_url)
    first = publish(trainer, snapshot(1, KEYS)).manifest
    trainer.publisher.serve("fm")
    with monkeypatch.context() as broken:
        broken.setattr(trainer.store.rows, "write", BrokenConnection(trainer.store.rows.write, 0))
        assert trainer.publish(of_fm(2)) is None
    held = VersionManifest.from_json(client.get("{livectr}:manifest"))  # type: ignore[arg-type]
    assert held == first
    done = publish(trainer, of_fm(3)).manifest
    assert done.version == 2 and done.champion == "fm" and done.row_set != first.row_set


def test_a_successor_resumes_with_the_champion_that_redis_holds(
    redis_url: str, client: redis.Redis, trainers: list[Trainer]
) -> None:
    trainer = begun(trainers, redis_url)
    publish(trainer, snapshot(1, KEYS))
    trainer.publisher.serve("fm")
    cursor = trainer.publisher.cursor(2)
    held = publish(trainer, of_fm(2)).manifest
    same = begun(trainers, redis_url, cursor=cursor)
    assert publish(same, of_fm(3, KEYS[:2])).manifest.row_set == held.row_set
    cursor = same.publisher.cursor(3, begins=False)
    other = begun(trainers, redis_url, cursor=replace(cursor, row_set=held.row_set, version=held.version + 1))
    assert publish(other, snapshot(4, KEYS)).manifest.row_set != held.row_set


@pytest.mark.parametrize(
    ("champion", "columns"),
    [("rank", [0, 1, 2, 3, 4]), ("a", [3, 4, 5]), ("b", [3, 4, 6, 7])],
)
def test_published_columns_are_the_champions_and_the_towers(champion: str, columns: list[int]) -> None:
    sizes = {"rank.w": 1, "rank.v": 2, "prerank.v": 2, "a.w": 1, "b.w": 1, "b.v": 1, "shadow.v": 3}
    segments = [Segment(name, dim, SGD()) for name, dim in sizes.items()]
    found = np.arange(11)[served_columns(segments, champion)]
    assert found.tolist() == columns
    model = PublishedModel("f", tuple(sizes.items()), seed=1)
    assert sum(dim for _, dim in model.served(champion)) == len(columns)
