"""Values of Redis, which other programs can write: manifests, rows, blobs, the publish log.

A decoder gives values, or raises ValueError or MismatchError, which its callers turn into an answer's status.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from livectr.ingest.language.tables import Table
from livectr.serving.request.lookup_table import LookupTable
from livectr.store.hold import Hold
from livectr.store.keyspace import Keyspace
from livectr.store.layout import (
    RowStatus,
    decode_changed,
    decode_erased,
    decode_history,
    decode_lookup_rows,
    decode_rows,
    encode_changed,
    encode_history,
    encode_slots,
)
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors, encode_vectors
from livectr.system.errors import MismatchError
from livectr.trainer.publish.log.entries import LogEntry

TABLE = Table(
    "ads",
    key="id",
    columns={
        "id": "int64",
        "name": "string",
        "price": "float32",
        "raw": "binary",
        "tags": "list<string>",
        "on": "bool",
    },
)


def version_manifest(data: bytes) -> None:
    """A manifest; what is read is written as it was, and its uses have the types that they promise."""
    try:
        manifest = VersionManifest.from_json(data)
    except (ValueError, MismatchError):
        return
    assert repr(VersionManifest.from_json(manifest.to_json())) == repr(manifest)
    numbers = (
        manifest.version,
        manifest.epoch,
        manifest.step,
        manifest.created_ms,
        manifest.dim,
        manifest.world,
    )
    assert all(type(number) is int for number in numbers)
    blobs = [*manifest.dense, *manifest.changed, *manifest.item_vectors, *sum(manifest.content.values(), ())]
    assert all(type(blob) is str for blob in (*blobs, manifest.row_set, manifest.sentinel, manifest.champion))
    manifest.changed_since(1, "a")
    manifest.freshness.plus(np.array([1], np.int64))


def published_rows(data: bytes) -> None:
    """A row, a look-up row, a history, a hold or a sentinel, by the first byte."""
    kind, value = data[:1], data[1:]
    if kind == b"r":
        version = value[0] if value else 0
        values = [value[1:], None, encode_slots(3, np.ones((1, 3), np.float32))[0]]
        for some in (values, values[:1]):
            with suppress(ValueError):
                rows, status = decode_rows(some, version, 3, floor=2)
                assert rows.shape == (len(some), 3) and status.shape == (len(some),)
                assert (rows[status != RowStatus.FOUND] == 0).all()
    elif kind == b"h":
        with suppress(ValueError):
            items, times = decode_history(value)
            assert encode_history(items, times) == value
    elif kind == b"o":
        hold = Hold.of(value)
        assert hold is not None and Hold.of(hold.to_json()) == hold
    elif kind == b"s":
        manifest = _manifest()
        for clustered in (False, True):
            Keyspace("a", clustered=clustered).shows_all(value, "text", manifest)
    else:
        _lookup_rows(value.split(b"\n"))


def _lookup_rows(values: list[bytes]) -> None:
    """Values of a look-up table's rows: kept as the server keeps them, and read as columns."""
    with suppress(ValueError):
        rows = decode_lookup_rows(values)
        assert len(rows) == len(values)
    keys = np.arange(len(values), dtype=np.int64)
    with suppress(ValueError):
        LookupTable(TABLE).put(keys, values, 1.0)


def published_blobs(data: bytes) -> None:
    """A blob of vectors, or of changed keys."""
    with suppress(ValueError):
        ids, vectors = decode_vectors(data)
        assert ids.dtype == np.int64 and vectors.dtype == np.float32
        assert ids.ndim == 1 and vectors.ndim == 2 and len(ids) == len(vectors)
        again = decode_vectors(encode_vectors(ids, vectors))
        assert (again[0] == ids).all() and again[1].tobytes() == vectors.tobytes()
    for decode in (decode_changed, decode_erased):
        with suppress(ValueError):
            keys = decode(data)
            assert all(some.dtype == np.int64 and some.ndim == 1 for some in keys.values())
            encode_changed(keys)


def publish_log(data: bytes) -> None:
    """An entry of the publish log."""
    with suppress(ValueError):
        entry = LogEntry.from_json(data)
        assert LogEntry.from_json(entry.to_json()) == entry
        assert all(type(number) is int for number in (entry.step, entry.epoch, entry.keys, entry.before))
        assert all(type(name) is str for name in (entry.row_set, entry.mark, entry.servers, *entry.changed))


def _manifest() -> VersionManifest:
    return VersionManifest(
        version=5, epoch=1, row_set="a", step=1, fingerprint="f", world=1, created_ms=1, dim=3,
        segments=(("v", 3),), tables={"t": 1},
    )  # fmt: skip
