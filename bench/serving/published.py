"""Versions of random rows, published by the trainer's own publisher."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch

from bench.serving.pipeline import pipeline
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.protos.store import encode_history, encode_lookup_row
from livectr.trainer.comm.control import Control
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_types import Values
from livectr.trainer.publish.version import PublishedModel, Push, VersionSnapshot

NOW_MS = 1_700_000_000_000


def publish(url: str, users: int, ads: int) -> None:
    """One version of random rows, with look-up rows, histories of 50 items and item vectors, by the trainer's
    own publisher."""
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
    store = RedisStore(url, "livectr")
    dense = safetensors.torch.save(step.weights())
    vectors = np.arange(ads), item_vectors(step, features)
    push(store, pipeline, step, dense, side_values(store, users, items, rng), items=vectors)


def push(
    store: RedisStore, pipeline: Pipeline, step: DesStep, dense: bytes, values: Sequence[Values], **parts: Any
) -> None:
    """Publish a version of all rows of a step. parts: other fields of the Snapshot."""
    publisher = Publisher(
        store,
        Control(),
        PublishedModel(pipeline.fingerprint, [(s.name, s.dim) for s in step.layout.segments], seed=1),
    )
    publisher.start(None)
    publisher.begin(
        VersionSnapshot(
            step=0,
            rows={name: table.export(state=False) for name, table in step.tables.items()},
            table_rows={name: len(table) for name, table in step.tables.items()},
            dense=dense,
            values=values,
            **parts,
        )
    )
    while publisher.busy:
        publisher.observe([publisher.push.state])
        if publisher.push.state in (Push.FAILED, Push.LOST):
            raise RuntimeError("the version could not be published")
        time.sleep(0.01)
    publisher.close()


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
        Values(people, store.space.lookup_rows("users", people), profiles),
        Values(ads, store.space.lookup_rows("ads", ads), articles),
        Values(people, store.space.histories(recent.name, people), histories),
    ]
