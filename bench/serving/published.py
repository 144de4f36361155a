"""Versions of random rows, published by the trainer's own publisher."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
from numpy.typing import NDArray

from bench.serving.pipeline import pipeline
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.store.layout import LOOKUP, encode_history, encode_lookup_row
from livectr.trainer.comm.control import Control
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.items import Items
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values
from livectr.trainer.publish.version import PublishedModel, Push, VersionSnapshot

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

NOW_MS = 1_700_000_000_000


def publish(url: str, users: int, ads: int, catalogue: tuple[I64, F32] | None = None) -> None:
    """One version of random rows, with look-up rows, histories of 50 items and item vectors, by the trainer's
    own publisher.

    catalogue: ids i64[n] and vectors f32[n, out] of the items, if they are not the ads'.
    """
    store = RedisStore(url, "livectr")
    step, vectors, values = random_model(store, users, ads)
    dense = safetensors.torch.save(step.weights())
    push(store, pipeline, step, dense, values, items=Items.of(*(catalogue or vectors)))


def random_model(store: RedisStore, users: int, ads: int) -> tuple[DesStep, tuple[I64, F32], list[Values]]:
    """Step with rows of all users and ads; ids and vectors of the ads; look-up rows and histories."""
    rng = np.random.default_rng(1)
    items = pa.RecordBatch.from_pydict(
        {
            "ad_id": np.arange(ads),
            "category": pa.array(rng.integers(0, 30, ads), pa.int32()),
            "advertiser": rng.integers(0, 500, ads),
            "price": pa.array(rng.random(ads) * 50, pa.float32()),
            "title": [f"title {i}" for i in range(ads)],
        }
    )
    step = DesStep(pipeline, seed=1)
    features = Extractor(pipeline.plan)(pipeline.item_columns(items))
    step.front.forward(features.offsets, features.keys, features.rows)
    step.tables["user"].find_or_insert(np.arange(users))
    vectors = np.arange(ads), item_vectors(step, features)
    return step, vectors, side_values(store, users, items, rng)


def push(
    store: RedisStore, pipeline: Pipeline, step: DesStep, dense: bytes, values: Sequence[Values], **parts: Any
) -> None:
    """Publish a version of all rows of a step. parts: other fields of the snapshot."""
    publisher = publisher_of(store, pipeline, step)
    rows = {name: table.export(state=False) for name, table in step.tables.items()}
    sizes = {name: len(table) for name, table in step.tables.items()}
    finish(publisher, VersionSnapshot(0, rows, sizes, dense, values, **parts))
    publisher.close()


def publisher_of(store: RedisStore, pipeline: Pipeline, step: DesStep) -> Publisher:
    """Publisher of a step's tables, started."""
    segments = [(s.name, s.dim) for s in step.spec.layout.segments]
    publisher = Publisher(store, Control(), PublishedModel(pipeline.fingerprint, segments, seed=1))
    publisher.start(None)
    return publisher


def finish(publisher: Publisher, snapshot: VersionSnapshot) -> None:
    """Publish a version and wait until it is served. Raises RuntimeError if it could not be published."""
    publisher.begin(snapshot)
    while publisher.busy:
        publisher.observe([publisher.push.state])
        if publisher.push.state in (Push.FAILED, Push.LOST):
            raise RuntimeError("the version could not be published")
        time.sleep(0.01)


def side_values(
    store: RedisStore, users: int, items: pa.RecordBatch, rng: np.random.Generator
) -> list[Values]:
    people, ads = np.arange(users), np.arange(items.num_rows)
    profiles: list[bytes | None] = [
        encode_lookup_row([u, int(age), f"city{u % 40}"]) for u, age in enumerate(rng.integers(15, 80, users))
    ]
    articles: list[bytes | None] = [encode_lookup_row(list(row.values())) for row in items.to_pylist()]
    times = NOW_MS - np.arange(50, 0, -1) * 1000
    clicked = rng.integers(0, items.num_rows, (users, 50))
    histories: list[bytes | None] = [encode_history(clicked[u], times) for u in range(users)]
    (recent,) = pipeline.history_roots
    return [
        Values(people, store.space.lookup_rows("users", people), profiles, LOOKUP + "users"),
        Values(ads, store.space.lookup_rows("ads", ads), articles, LOOKUP + "ads"),
        Values(people, store.space.histories(recent.name, people), histories),
    ]
