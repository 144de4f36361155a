"""Blobs of vectors in Redis: ids of items or content, and their vectors, as safetensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as save_tensors

from livectr.store.layout import CONTENT_CHUNK, F32, I64
from livectr.store.plain import read_json

Blob = bytes | memoryview

BLOB_BYTES = 1 << 28
"""Most bytes of ids and vectors in a blob: half of the 512 MiB that a value of Redis may have."""

_TYPES: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}


def blob_rows(dim: int) -> int:
    """Most ids of a blob of vectors of `dim` values."""
    return max(1, min(CONTENT_CHUNK, BLOB_BYTES // (8 + 4 * dim)))


def blob_count(n: int, dim: int) -> int:
    """Blobs of n ids and their vectors; at least one, so that no vectors differ from no model."""
    return max(1, -(-n // blob_rows(dim)))


def encode_vectors(ids: I64, vectors: F32) -> bytes:
    """Encode ids i64[n] and their vectors f32[n, dim]."""
    blob: bytes = save_tensors({"ids": np.ascontiguousarray(ids), "vectors": np.ascontiguousarray(vectors)})
    return blob


def decode_vectors(value: Blob) -> tuple[I64, F32]:
    """Decode (ids i64[n], vectors f32[n, dim]).

    The arrays are views of `value`: safetensors' own reader would copy it under the GIL, and requests would
    wait for a large catalogue.

    Raises:
        ValueError: not a blob of vectors.
    """
    start = 8 + int.from_bytes(value[:8], "little")
    try:
        header = read_json(bytes(value[8:start]))
        ids, vectors = (
            _tensor(value, start, header[name], kind) for name, kind in (("ids", "I64"), ("vectors", "F32"))
        )
        if ids.ndim != 1 or vectors.ndim != 2 or len(ids) != len(vectors):
            raise ValueError(f"ids {ids.shape} and vectors {vectors.shape}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a blob of {len(value)} bytes holds no vectors: {error!r}") from None
    return ids, vectors


def _tensor(value: Blob, start: int, header: dict[str, Any], kind: str) -> npt.NDArray[Any]:
    """Tensor of safetensors by its header; data begins at `start`."""
    if header["dtype"] != kind:
        raise ValueError(f"{header['dtype']} instead of {kind}")
    first, end = header["data_offsets"]
    if not 0 <= first <= end <= len(value) - start:
        raise ValueError("data outside of the blob")
    dtype = _TYPES[kind]
    return np.frombuffer(value, dtype, (end - first) // dtype.itemsize, start + first).reshape(
        header["shape"]
    )
