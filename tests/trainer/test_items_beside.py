"""Item vectors are computed beside the training, from what was copied at a step boundary."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import redis
import torch

from livectr.cli import main
from livectr.models.two_tower import Tower
from livectr.store import vectors as blob_vectors
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors
from livectr.trainer.des.item_vectors import ItemCopy, item_vectors
from livectr.trainer.publish.items import Items
from livectr.trainer.run import TrainOptions, train
from tests.redis_values import value
from tests.trainer.ad_logs import ADS, ad_pipeline, write_files
from tests.trainer.des_worker import batch
from tests.trainer.processes import finish, start
from tests.trainer.publishing import Trainer, snapshot
from tests.trainer.single_step import BOTH, step_of


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    made = redis.Redis.from_url(redis_url)
    made.flushall()
    return made


def test_steps_that_are_learned_meanwhile_change_nothing() -> None:
    des, rng = step_of(*BOTH), np.random.default_rng(0)
    des.step(*batch(rng, 60))
    features, _ = batch(rng, 20)
    expected = item_vectors(des, features)
    copied = ItemCopy.of(des, features)
    for _ in range(3):
        des.step(*batch(rng, 60))
    assert not np.allclose(item_vectors(des, features), expected, atol=1e-4)
    np.testing.assert_array_equal(copied.vectors(lambda part: part), expected)


def test_the_training_thread_runs_no_tower(
    tmp_path: Path, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    vector = Tower.vector

    def noted(tower: Tower, summed: torch.Tensor, images: torch.Tensor | None = None) -> torch.Tensor:
        if not torch.is_grad_enabled():
            threads.append(threading.current_thread().name)
        return vector(tower, summed, images)

    monkeypatch.setattr(Tower, "vector", noted)
    options = TrainOptions(
        write_files(tmp_path, 2000),
        until_end=True,
        batch_size=128,
        batch_ramp=0,
        publish=redis_url,
        publish_interval_s=1e-6,
        min_examples=0,
    )
    assert train(ad_pipeline(), options).published_versions >= 2
    assert threads and all(name.startswith("sweep") for name in threads)


def published(client: redis.Redis) -> tuple[np.ndarray, np.ndarray]:
    manifest = VersionManifest.from_json(client.get(Keyspace().manifest) or b"")
    ids, vectors = zip(*(decode_vectors(value(client, name)) for name in manifest.item_vectors), strict=True)
    order = np.argsort(np.concatenate(ids))
    return np.concatenate(ids)[order], np.concatenate(vectors)[order]


def test_one_two_and_four_ranks_publish_the_same_vectors(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    source, found = write_files(tmp_path, 2000), []
    for world in (1, 2, 4):
        client.flushall()
        options = dict(source=source, until_end=True, batch_size=128, batch_ramp=0, threads=1)
        finish(start(world, {**options, "publish": redis_url, "publish_interval_s": 0.01}))
        ids, vectors = published(client)
        assert ids.tolist() == list(range(ADS))
        found.append(vectors)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3, atol=1e-4)


def test_materialized_features_publish_the_same_vectors(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """Items are extracted whole, also where the examples' features of an item are read."""
    source, out = write_files(tmp_path / "logs", 2000), str(tmp_path / "materialized")
    pipeline = tmp_path / "p.py"
    pipeline.write_text("from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n")
    words = ["--pipeline", str(pipeline), "--source", source, "--out", out]
    assert main(["features", "materialize", *words, "--features", "category,age_x_category"]) == 0
    options = dict(source=source, until_end=True, batch_size=128, batch_ramp=0, threads=1, publish=redis_url)
    finish(start(1, options))
    whole = published(client)
    client.flushall()
    finish(start(1, {**options, "materialized": out}))
    for got, want in zip(published(client), whole, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_large_catalogue_is_in_several_blobs(
    redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that none comes near the 512 MiB of a value of Redis."""
    monkeypatch.setattr(blob_vectors, "BLOB_BYTES", 100 * (8 + 4 * 6))
    trainer = Trainer(redis_url)
    ids = np.arange(1050)
    vectors = np.random.default_rng(0).random((1050, 6), np.float32)
    done = trainer.publish(snapshot(1, np.arange(3), items=Items.of(ids, vectors)))
    trainer.publisher.close()
    assert done is not None and len(done.manifest.item_vectors) == 11
    assert max(client.strlen(name) for name in done.manifest.item_vectors) < 100 * 32 + 300
    for whole, part in zip((ids, vectors), published(client), strict=True):
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("dim", [12, 64, 1024, 1 << 20])
def test_no_blob_of_vectors_is_larger_than_a_value_of_redis(dim: int) -> None:
    assert blob_vectors.blob_rows(dim) * (8 + 4 * dim) <= 1 << 28
    assert blob_vectors.blob_count(10**7, dim) * blob_vectors.blob_rows(dim) >= 10**7
