"""Fields of ragged keys over three tables."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import FTRL, AdaGrad, Adam, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

LAYOUT = RowLayout(
    (Segment("w", 1, FTRL(l1=0.001)), Segment("v", 5, AdaGrad(), 0.1), Segment("a", 3, Adam(), 0.1))
)
FIELDS = [("user", "user"), ("ad", "ad"), ("seen", "ad"), ("none", "none"), ("liked", "ad")]
Offsets = npt.NDArray[np.int32]
Keys = npt.NDArray[np.int64]


def tables() -> dict[str, DynamicTable]:
    return {name: DynamicTable(LAYOUT, name=name, seed=4) for name in ("user", "ad", "none")}


def ragged(rng: np.random.Generator, batch: int, fields: int, ids: int) -> tuple[Offsets, Keys]:
    """Lists of 0 to 4 keys, skewed so that many are equal; the field "none" is empty."""
    sizes = rng.integers(0, 5, (fields, batch))
    sizes[3] = 0
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return offsets, (ids * rng.random(offsets[-1]) ** 3).astype(np.int64)


def run_and_digest() -> str:
    """SHA-256 of everything that a run computes; its batches are large enough for many tasks."""
    rng = np.random.default_rng(11)
    fields = FieldTables(tables(), FIELDS)
    digest = hashlib.sha256()
    marks = []
    for _ in range(4):
        offsets, keys = ragged(rng, 2000, len(FIELDS), 30_000)
        digest.update(fields.forward(offsets, keys, 2000)[0].tobytes())
        fields.backward(rng.normal(size=(2000, len(FIELDS), LAYOUT.dim)).astype(np.float32))
        marks.append(fields.tables["ad"].mark())
        fields.tables["ad"].erase(rng.integers(0, 30_000, 500))
    for since in (0, *marks):
        for array in fields.tables["ad"].export(since):
            digest.update(array.tobytes())
    return digest.hexdigest()
