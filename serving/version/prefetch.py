"""Prefetch: embedding rows that a request reads before its features are known.

Most users of a request are new to a server. Their key is a column of the request, so their rows are read in
the round trip of look-up rows and histories. Rows of ads are in the near-cache; rows of other fields are few.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.expr import Expr
from livectr.ingest.pipeline import Pipeline
from livectr.serving.version.near_cache import NearCache
from livectr.store.layout import F32, I64
from livectr.store.manifest import VersionManifest

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PrefetchKeys:
    """Rows to read: table → keys i64[n] at a version."""

    manifest: VersionManifest
    keys: dict[str, I64]


@dataclass(frozen=True)
class PrefetchedRows:
    """Rows that were read.

    Args:
        keys: table → keys i64[n].
        rows: table → (rows f32[n, D], RowStatus u8[n]).
    """

    keys: dict[str, I64]
    rows: dict[str, tuple[F32, U8]]


class UserTables:
    """Tables of the fields whose only value is the user's key.

    Args:
        fields: fields that the requests read; None: all.
    """

    def __init__(self, pipeline: Pipeline, fields: Container[str] | None = None) -> None:
        read = [spec for spec in pipeline.fields if fields is None or spec.name in fields]
        column = pipeline.log.impressions.key
        name = next((r.name for r in pipeline.request_roots if r.ref.column == column), None)
        self._tables = [s.table for s in read if _value(pipeline.plan.sparse[s.name]) == name]

    def missing(self, key: I64, manifest: VersionManifest, cache: NearCache) -> PrefetchKeys | None:
        """Rows of a user's key i64[1] that are missing from the near-cache; None: none is missing."""
        keys = {table: key for table in self._tables if not len(cache.cached(table, key))}
        return PrefetchKeys(manifest, keys) if keys else None


def _value(field: Expr) -> str | None:
    """Name of the column whose values are the field's keys; None: the field is computed."""
    root = field.inputs[0] if field.op == "key" else field
    return root.name if root.is_root else None
