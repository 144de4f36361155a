"""Content refresh in real trainers: one, two and four ranks, and a run that resumes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.serving.version.items import ItemVectors
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors
from tests.ranks import Processes
from tests.redis_values import value
from tests.serving.content_logs import write_logs
from tests.serving.content_world import ADS, make_store
from tests.trainer.processes import finish


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    made = redis.Redis.from_url(redis_url)
    made.flushall()
    return made


def run(world: int, root: Path, url: str, **more: object) -> None:
    options = {
        "source": f"file:{root / 'logs'}", "until_end": True, "batch_size": 64, "batch_ramp": 0, "threads": 1,
        "publish": url, "publish_interval_s": 1e-6, "min_examples": 0, "content": f"images={root / 'images'}",
        "content_refresh_s": 1e9, **more,
    }  # fmt: skip
    finish(Processes(world, "tests.trainer.refresh_once", (json.dumps(options),)))


def held(client: redis.Redis) -> tuple[VersionManifest, list[int], np.ndarray, np.ndarray]:
    """Manifest, versions of its content blobs, ids and vectors."""
    manifest = VersionManifest.from_json(client.get(Keyspace().manifest) or b"")
    names = manifest.content["images"]
    ids, vectors = zip(*(decode_vectors(value(client, name)) for name in names), strict=True)
    order = np.argsort(np.concatenate(ids))
    versions = sorted({int(name.split(":")[2]) for name, part in zip(names, ids, strict=True) if len(part)})
    return manifest, versions, np.concatenate(ids)[order], np.concatenate(vectors)[order]


def held_items(client: redis.Redis) -> tuple[set[str], ItemVectors]:
    """Versions of the slots' blobs, and the item vectors of the newest version as a server loads them."""
    manifest = VersionManifest.from_json(client.get(Keyspace().manifest) or b"")
    names = manifest.item_vectors
    slots = {name.split(":")[2] for name in names if name.rpartition("-")[2].isdigit()}
    blobs = {name: value(client, name) for name in names}
    return slots, ItemVectors.of(names, blobs, None)


def test_ranks_share_the_work_and_publish_the_same_vectors(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """Nothing is due after the first version, which is of the step before the first example."""
    write_logs(tmp_path / "logs", 400)
    store = make_store(tmp_path / "images")
    found, found_items = [], []
    for world in (1, 2, 4):
        client.flushall()
        run(world, tmp_path, redis_url)
        manifest, versions, ids, vectors = held(client)
        assert manifest.world == world and manifest.step > 1
        assert versions == [1] and manifest.version > 1
        assert ids.tolist() == sorted(store.ids.tolist())
        found.append(vectors)
        slots, items = held_items(client)
        assert slots == {"1"} and items.matrix.ids.tolist() == list(ADS)
        found_items.append(items.matrix.vectors)
    for some in found_items[1:]:
        np.testing.assert_allclose(some, found_items[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-6)


def test_a_run_that_resumes_on_other_ranks_computes_all_vectors_first(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """A resumed run computes all vectors: changes in between are not known, and no earlier blob stays."""
    write_logs(tmp_path / "logs", 400)
    store = make_store(tmp_path / "images")
    checkpoint = {"checkpoint": str(tmp_path / "checkpoint")}
    run(2, tmp_path, redis_url, max_steps=3, at_end="learn", **checkpoint)
    before = held(client)[0]
    run(1, tmp_path, redis_url, **checkpoint)
    manifest, versions, ids, _ = held(client)
    assert manifest.row_set == before.row_set, "it resumed with what Redis held"
    assert versions == [before.version + 1] and ids.tolist() == sorted(store.ids.tolist())
    slots, items = held_items(client)
    assert slots == {str(before.version + 1)} and items.matrix.ids.tolist() == list(ADS)


def test_ranks_measure_the_movement_of_item_vectors_together(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """Every step moves vectors by more than the one tolerance, and none by more than the other."""
    write_logs(tmp_path / "logs", 400)
    make_store(tmp_path / "images")
    for tolerance, moves in ((1e-9, True), (100.0, False)):
        client.flushall()
        run(2, tmp_path, redis_url, content_tolerance=tolerance)
        manifest, (slots, items) = held(client)[0], held_items(client)
        assert manifest.world == 2 and manifest.version > 1
        assert slots == {str(manifest.version if moves else 1)} and items.matrix.ids.tolist() == list(ADS)


def test_slots_that_are_due_with_every_version_hold_what_a_run_without_refresh_publishes(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """Also when a slow Redis lets a run publish nothing between its start and its end: those are the versions
    of the long interval. The vectors of its first version are of a model that has learned nothing.
    """
    write_logs(tmp_path / "logs", 400)
    store = make_store(tmp_path / "images")
    found, pictures = [], []
    for period_s, interval_s in ((0.0, 1e-6), (0.001, 1e-6), (0.001, 1e9)):
        client.flushall()
        run(1, tmp_path, redis_url, content_refresh_s=period_s, publish_interval_s=interval_s)
        manifest, _, ids, vectors = held(client)
        assert manifest.examples == 400 and manifest.version >= 2
        assert ids.tolist() == sorted(store.ids.tolist())
        found.append(held_items(client)[1].matrix)
        pictures.append(vectors)
    assert manifest.version == 2
    for matrix, vectors in zip(found[1:], pictures[1:], strict=True):
        assert matrix.ids.tolist() == found[0].ids.tolist() == list(ADS)
        np.testing.assert_allclose(matrix.vectors, found[0].vectors, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(vectors, pictures[0], rtol=1e-5, atol=1e-6)
