"""CPU results for the device (FeatureBox §4: the look-up that does not fit the GPU).

The host extractor computes keys, so results of any type are encoded as 64-bit words: numbers by their bits,
strings by their size and their bytes in words. `CpuWork` decodes them to Arrow columns, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, given, mapped
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.offsets import offsets_of

I64 = npt.NDArray[np.int64]


class CpuWork:
    """Computes nodes of a plan on the host.

    Args:
        nodes: to compute; the columns of the result are named like their placeholder roots.
    """

    def __init__(self, nodes: Sequence[Expr]) -> None:
        self.nodes = tuple(nodes)
        words = [encoded(node) for node in nodes]
        self._counts = [len(parts) for parts in words]
        flat = [part for parts in words for part in parts]
        self.plan = FeaturePlan({str(index): part for index, part in enumerate(flat)})
        self._extract = Extractor(self.plan)

    def __call__(
        self, batch: pa.RecordBatch, statistics: Statistics | None = None
    ) -> tuple[pa.RecordBatch, Features]:
        """Compute the nodes for a batch.

        Returns:
            The columns, named like the placeholder roots, and the features that carried them.
        """
        features = self._extract(batch, statistics and statistics.of(self.plan))
        columns: dict[str, pa.Array] = {}
        at = 0
        for node, count in zip(self.nodes, self._counts, strict=True):
            parts = [features.field(index) for index in range(at, at + count)]
            columns[given(node).name] = _decoded(node.dtype, parts)
            at += count
        return pa.RecordBatch.from_pydict(columns), features


def encoded(node: Expr) -> list[Expr]:
    """Integer expressions that encode the node's values."""
    kind, many = dtypes.element(node.dtype), dtypes.is_list(node.dtype)
    if kind in ("float32", "float64"):
        return [mapped("bits", (node,), dtype="int64", device=Device("bits_of({0})"))]
    if kind not in dtypes.TEXTS:
        return [node]
    listed = "words_of_each" if many else "words_of"
    sizes = mapped("sizes", (node,), dtype="int64", device=Device("int64_t({0}.size)"))
    device = Device(f"{listed}({{0}}, {{sink}})", rowwise=True)
    return [sizes, Expr("words", (node,), dtype="list<int64>", device=device)]


def _decoded(dtype: str, parts: list[tuple[Any, I64]]) -> pa.Array:
    kind, many = dtypes.element(dtype), dtypes.is_list(dtype)
    offsets, values = parts[0]
    if kind in dtypes.TEXTS:
        items = _texts(values, parts[1][1], kind)
    elif kind in ("float32", "float64"):
        word = np.int32 if kind == "float32" else np.int64
        items = pa.array(values.astype(word).view(kind))
    else:
        items = pa.array(values.astype(kind))
    return pa.ListArray.from_arrays(pa.array(offsets), items) if many else items


def _texts(sizes: I64, words: I64, kind: str) -> pa.Array:
    """Strings of the given sizes, each stored in whole words, one after the other."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(-(-sizes // 8), out=starts[1:])
    offsets = offsets_of(sizes, "bytes of strings")
    gather = np.repeat(starts[:-1] * 8 - offsets[:-1], sizes) + np.arange(offsets[-1])
    content = words.view(np.uint8)[gather]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content.tobytes())]
    return pa.Array.from_buffers(dtypes.arrow_type(kind), len(sizes), buffers)
