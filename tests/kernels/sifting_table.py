"""Table that admits a key with its n-th batch."""

from __future__ import annotations

import hashlib

import numpy as np

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

LAYOUT = RowLayout((Segment("v", 2, AdaGrad(), 0.1),))


def sifting(after: int, sketch_bytes: int = 1 << 20, name: str = "t") -> tuple[DynamicTable, FieldTables]:
    table = DynamicTable(LAYOUT, name=name, seed=3)
    table.admit_after(after, sketch_bytes)
    return table, FieldTables({name: table}, [("a", name), ("b", name)])


def digest() -> str:
    rng = np.random.default_rng(5)
    table, front = sifting(3, 1 << 18)
    for _ in range(12):
        keys = (20_000 * rng.random(6000) ** 2).astype(np.int64)
        (out,) = front.forward(np.arange(6001, dtype=np.int32), keys, 3000)
        front.backward(out)
    assert 100 < len(table) < 15_000
    return hashlib.sha256(
        b"".join(part.tobytes() for part in (*table.export(), table.sketch()[0]))
    ).hexdigest()
