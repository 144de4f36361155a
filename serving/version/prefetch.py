"""Prefetch: embedding rows that a request reads before its features are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
