"""Precompute: vectors of all content by the version's sub-model, in the background."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis
import torch

from livectr.ingest.content.store import ContentStore
from livectr.models.embedding import EmbeddingModel, SubNetwork
from livectr.store import vectors as blob_vectors
from livectr.store.vectors import decode_vectors
from livectr.trainer.comm.control import Control
from livectr.trainer.content import precompute as sweep
from livectr.trainer.content import telemetry
from livectr.trainer.content.precompute import ContentPrecompute, StoppedError
from livectr.trainer.publish.version import Push
from tests.metrics_page import metric_value
from tests.redis_values import value
from tests.trainer.publishing import Trainer, snapshot
from tests.waiting import left_s

WIDTH = 32
MODEL = EmbeddingModel(width=WIDTH, hidden=(16, 8), out=4)


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    """700 ids in chunks of the store, some of them written twice."""
    made = ContentStore.create(tmp_path / "images", width=WIDTH, encoder="test", shards=4)
    rng = np.random.default_rng(0)
    for start in range(0, 700, 100):
        ids = np.arange(start, start + 120) * 7 - 900
        made.append(
            ids[ids < 700 * 7 - 900],
            rng.standard_normal((120, WIDTH)).astype(np.float32)[ids < 700 * 7 - 900],
        )
    return made


@pytest.fixture
def network() -> SubNetwork:
    made = MODEL.network("content.images", seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.fixture(autouse=True)
def _empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ROWS", 32)
    monkeypatch.setattr(blob_vectors, "CONTENT_CHUNK", 150)


def recomputed(network: SubNetwork, store: ContentStore, ids: np.ndarray) -> np.ndarray:
    """One id at a time, through the sub-model as it is."""
    features, known = store.read(ids)
    assert known.all()
    with torch.no_grad():
        rows = [network(torch.from_numpy(row[None]), torch.ones(1, dtype=torch.bool)) for row in features]
    return torch.cat(rows).numpy()


def whole(parts: Iterator[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    ids, vectors = zip(*parts, strict=True)
    return np.concatenate(ids), np.concatenate(vectors)


def test_vectors_are_those_of_the_sub_model_when_it_was_copied(
    store: ContentStore, network: SubNetwork
) -> None:
    made = ContentPrecompute("images", network, store)
    expected = recomputed(network, store, store.ids)
    with torch.no_grad():
        network.get_parameter("weights.0").zero_()  # training continues
    parts = list(made.run(lambda: False))
    assert len(parts) == made.blobs == 5 and all(len(ids) >= 150 for ids, _ in parts[:-1])
    ids, vectors = whole(iter(parts))
    assert sorted(ids.tolist()) == sorted(store.ids.tolist()) and vectors.dtype == np.float32
    at = np.argsort(store.ids)
    np.testing.assert_allclose(vectors[np.argsort(ids)], expected[at], rtol=1e-5, atol=1e-6)


def test_ids_that_come_meanwhile_find_place(store: ContentStore, network: SubNetwork) -> None:
    made = ContentPrecompute("images", network, store)
    store.append(np.arange(10_000, 10_400), np.ones((400, WIDTH), np.float32))
    parts = list(made.run(lambda: False))
    assert len(parts) == made.blobs  # as many as the manifest names
    assert sorted(whole(iter(parts))[0].tolist()) == sorted(store.ids.tolist())


def test_a_rank_without_content_has_one_empty_blob(tmp_path: Path, network: SubNetwork) -> None:
    made = ContentPrecompute(
        "images", network, ContentStore.create(tmp_path / "none", width=WIDTH, encoder="test")
    )
    ((ids, vectors),) = made.run(lambda: False)
    assert ids.shape == (0,) and vectors.shape == (0, 4)


def test_it_stops_when_it_is_told(store: ContentStore, network: SubNetwork) -> None:
    calls = iter(range(100))
    with pytest.raises(StoppedError):
        list(ContentPrecompute("images", network, store).run(lambda: next(calls) > 3))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sweep_")]


def test_workers_are_nice_and_leave_others_their_threads() -> None:
    before, nice = torch.get_num_threads(), os.getpriority(os.PRIO_PROCESS, 0)
    try:
        torch.set_num_threads(3)
        with sweep.workers(2) as pool:
            reported = pool.submit(
                lambda: (torch.get_num_threads(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            ).result()
            seen: list[int] = []
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
        assert reported == (1, min(19, nice + sweep.NICE))
        assert seen == [3] and torch.get_num_threads() == 3
        assert os.getpriority(os.PRIO_PROCESS, 0) == nice
    finally:
        torch.set_num_threads(before)


def test_a_version_has_the_vectors_of_all_ids(
    redis_url: str, store: ContentStore, network: SubNetwork
) -> None:
    client = redis.Redis.from_url(redis_url)
    trainer = Trainer(redis_url)
    keys = np.arange(10)
    swept = metric_value(telemetry.PRECOMPUTED_CONTENT, content="images")
    for step in range(1, 6):
        with torch.no_grad():
            network.absent.add_(0)
            network.get_parameter("biases.0").add_(0.1)
        expected = recomputed(network, store, np.sort(store.ids))
        part = snapshot(step, keys, content={"images": ContentPrecompute("images", network, store)})
        done = trainer.publish(part)
        assert done is not None
        blobs = [value(client, name) for name in done.manifest.content["images"]]
        assert len(blobs) == len(set(done.manifest.content["images"])) == 5
        ids, vectors = whole(decode_vectors(blob) for blob in blobs)
        assert np.array_equal(np.sort(ids), np.sort(store.ids))
        np.testing.assert_allclose(vectors[np.argsort(ids)], expected, rtol=1e-5, atol=1e-6)
    assert metric_value(telemetry.PRECOMPUTED_CONTENT, content="images") == swept + 5 * len(store)
    versions = {int(name.split(b":")[2]) for name in client.scan_iter("livectr:blob:*content*")}
    assert versions == {2, 3, 4, 5}  # older ones are dropped with their version
    trainer.publisher.close()
    client.close()


def test_a_trainer_that_ends_does_not_wait_for_a_sweep(
    redis_url: str, store: ContentStore, network: SubNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(redis_url)
    begun, ended = threading.Event(), threading.Event()
    chunks = store.chunks

    def slow(rows: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for one in chunks(rows):
            begun.set()
            assert ended.wait(left_s())
            yield one

    monkeypatch.setattr(store, "chunks", slow)
    trainer.publisher.begin(
        snapshot(1, np.arange(3), content={"images": ContentPrecompute("images", network, store)})
    )
    assert begun.wait(left_s())
    trainer.publisher._closing.set()  # the first thing that close() does
    ended.set()
    trainer.publisher.close()
    assert trainer.publisher.push.state is Push.UNKNOWN  # nobody asks Redis any more how it went
    assert trainer.store.manifest_text() is None


class TwoRanks(Control):
    """Rank 0 of two that publish alike: the other rank sends the same values."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.world = 2

    def gather_json(self, value: object) -> list[object]:
        return [value, value]


def test_the_manifest_names_the_blobs_of_all_ranks(
    redis_url: str, store: ContentStore, network: SubNetwork
) -> None:
    trainer = Trainer(redis_url)
    trainer.publisher.control = TwoRanks()
    trainer.publisher.begin(
        replace(snapshot(1, np.arange(3)), content={"images": ContentPrecompute("images", network, store)})
    )
    assert trainer.publisher.push.version is not None
    names = trainer.publisher.push.version.manifest.content["images"]
    assert len(set(names)) == 10
    trainer.publisher.push.check()
    client = redis.Redis.from_url(redis_url)
    assert [bool(client.exists(name)) for name in names] == [True] * 5 + [False] * 5
    trainer.publisher.close()
    client.close()
