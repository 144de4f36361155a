"""Digest of a table that evicts rows by their use."""

from __future__ import annotations

import hashlib

import numpy as np

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

LAYOUT = RowLayout((Segment("v", 2, AdaGrad(), 0.1),))


def digest() -> str:
    """Digest of the state that a random stream leaves in a table that evicts."""
    rng = np.random.default_rng(5)
    table = DynamicTable(LAYOUT, name="t", seed=3, track=True, half_life=7)
    front = FieldTables({"t": table}, [("a", "t"), ("b", "t")])
    for step in range(40):
        table.now(step)
        keys = (40_000 * rng.random(6000) ** 3).astype(np.int64)
        (out,) = front.forward(np.arange(6001, dtype=np.int32), keys, 3000)
        front.backward(out)
        if len(table) > 9000:
            table.erase(table.rarest(2000) if step % 2 else table.oldest(2000))
    keys, rows = table.export()
    return hashlib.sha256(
        keys.tobytes() + rows.tobytes() + b"".join(c.tobytes() for c in table.usage(keys))
    ).hexdigest()
