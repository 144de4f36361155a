"""One version of the contest's model: in Redis for ours, in Redis and a file for the peers.

A peer's row in Redis holds the vectors of all fields of a user, or of an ad, side by side: the peer needs
neither look-up tables nor features.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis
import safetensors.torch
from numpy.typing import NDArray

from bench.serving.ids import pipeline
from bench.serving.published import push
from bench.serving.sizes import AD, USER, VISIT
from livectr.ingest.extract.extractor import Extractor
from livectr.store.layout import encode_lookup_row
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

SCALE_W, SCALE_V = 0.3, 0.2
"""Standard deviations of the rows' weights and vectors."""


def publish(ours: str, peers: str, file: Path) -> None:
    """Publish the version.

    Args:
        ours: URL of Redis for ours.
        peers: URL of Redis for the peers' rows: "u<id>" → f32[4, 17], "a<id>" → f32[5, 17].
        file: .npz for the peers: weights of the network, vectors of the visit's fields, ads f32[n, 5, 17].
    """
    rng = np.random.default_rng(1)
    columns = {name: _column(name, size, rng) for name, size in {**USER, **VISIT, **AD}.items()}
    step = DesStep(pipeline, seed=1)
    vectors = _insert_rows(step, columns, rng)
    users = np.stack([vectors[name] for name in USER], axis=1)
    ads = np.stack([vectors[name] for name in AD], axis=1)
    store = RedisStore(ours, "livectr")
    side = [_look_up(store, "users", USER, columns), _look_up(store, "ads", AD, columns)]
    push(store, pipeline, step, safetensors.torch.save(step.weights()), side)
    _write_peers_rows(peers, {"u": users, "a": ads})
    visit = {f"visit.{n}": vectors[n][:size] for n, size in VISIT.items()}
    parts: dict[str, Any] = {"ads": ads, "users": users, **visit, **_network(step)}
    np.savez(file, **parts)


def _column(name: str, size: int, rng: np.random.Generator) -> I64:
    """Ids of every user or ad i64[n]; the table's key and a visit's field count up."""
    n = next(iter((USER if name in USER else AD).values()))
    return np.arange(n) % size if name in VISIT or size == n else rng.integers(0, size, n)


def _insert_rows(step: DesStep, columns: Mapping[str, I64], rng: np.random.Generator) -> dict[str, F32]:
    """Give every id a random row; field → rows f32[n, 17] of its column."""
    roots = [root.name for root in pipeline.plan.roots]
    batch = pa.RecordBatch.from_arrays([pa.array(columns[r.split(".")[1]]) for r in roots], names=roots)
    keys = Extractor(pipeline.plan)(batch).keys.reshape(len(roots), -1)
    vectors = {}
    for name, of_field in zip(pipeline.plan.fields, keys, strict=True):
        table = step.tables[name]
        table.find_or_insert(np.unique(of_field))
        inserted, rows = table.export()
        rows[:, 0] = rng.normal(0, SCALE_W, len(rows))
        rows[:, 1 : step.spec.layout.dim] = rng.normal(0, SCALE_V, (len(rows), step.spec.layout.dim - 1))
        table.assign(inserted, rows)
        vectors[name] = table.lookup(of_field)[:, : step.spec.layout.dim]
    return vectors


def _look_up(store: RedisStore, table: str, fields: Mapping[str, int], columns: Mapping[str, I64]) -> Values:
    key, *_ = fields
    rows: list[bytes | None] = [
        encode_lookup_row(list(row)) for row in zip(*(columns[n].tolist() for n in fields), strict=True)
    ]
    return Values(columns[key], store.space.lookup_rows(table, columns[key]), rows)


def _write_peers_rows(url: str, rows: Mapping[str, F32]) -> None:
    client = redis.Redis.from_url(url)
    with client.pipeline(transaction=False) as pipe:
        for prefix, values in rows.items():
            pipe.mset({f"{prefix}{i}": row.tobytes() for i, row in enumerate(values)})
        pipe.execute()
    client.close()


def _network(step: DesStep) -> dict[str, F32]:
    """Weights of the network, with a first layer f32[F · 16, 256]."""
    weights = {name.removeprefix("rank."): t.numpy() for name, t in step.weights().items()}
    first = [weights.pop(f"first.weight/{name}") for name in pipeline.plan.fields]
    scale = [weights.pop(f"wide.scale/{name}") for name in pipeline.plan.fields]
    return {"first": np.concatenate(first), "scale": np.array(scale, np.float32), **weights}
