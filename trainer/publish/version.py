"""A version on its way to Redis: a rank's share of it, the version under way, the version that is served."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

import numpy as np
import numpy.typing as npt

from livectr.protos.manifest import VersionManifest
from livectr.protos.store import KEPT_VERSIONS
from livectr.trainer.content.precompute import ContentPrecompute
from livectr.trainer.publish.redis_store import Values
from livectr.trainer.publish.spool import Spool

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class Push(IntEnum):
    """Where a rank's push stands; travels in the batcher's header."""

    IDLE = 0
    PUSHING = 1
    PUSHED = 2
    FLIPPED = 3
    """Rank 0 only, after step 6."""
    FAILED = 4
    """Rank 0 only: nothing was flipped, and nothing of this push will be."""
    LOST = 5
    """Rank 0 only: Redis was emptied, so the next publish is complete."""
    FENCED = 6
    """Another trainer has taken over."""
    UNKNOWN = 7
    """Something failed: rank 0 has to find out what Redis holds."""


@dataclass(frozen=True)
class VersionSnapshot:
    """A rank's share of a version: copies, taken at a step boundary.

    rows: table → (keys i64[m], serving values f32[m, D]) that changed, or all of them.
    spool: the same in a file, where rows may be more than memory holds.
    table_rows: rows of each of this rank's tables; a table may be on several.
    dense: the rank's dense weights as safetensors.
    values: look-up rows and histories.
    items: (ids i64[n], vectors f32[n, dim]) of rank 0, or None.
    erased: table → keys i64[m] that left it since the last version; of no concern to a complete one.
    content: name → what computes the vectors of this rank's ids; of the same names on every rank.
    """

    step: int
    rows: Mapping[str, tuple[I64, F32]]
    table_rows: Mapping[str, int]
    dense: bytes
    values: Sequence[Values] = ()
    items: tuple[I64, F32] | None = None
    erased: Mapping[str, I64] = field(default_factory=dict)
    content: Mapping[str, ContentPrecompute] = field(default_factory=dict)
    spool: Spool | None = None

    @property
    def written(self) -> int:
        """Rows of all tables."""
        return sum(len(keys) for keys, _ in self.rows.values()) + (self.spool.rows if self.spool else 0)

    def chunks(self) -> Iterator[tuple[str, I64, F32]]:
        """Table, keys and values of its rows, wherever they are; a table may come in several parts."""
        for table, (keys, rows) in self.rows.items():
            yield table, keys, rows
        if self.spool is not None:
            yield from self.spool


@dataclass(frozen=True)
class Published:
    """A version that is being served."""

    manifest: VersionManifest
    rows: int
    """Table rows written by all ranks."""


@dataclass(frozen=True)
class Pending:
    """A version under way: its manifest and text, rows written by all ranks, whether it holds everything."""

    manifest: VersionManifest
    text: bytes
    rows: int
    full: bool


def blobs_of(manifest: VersionManifest) -> tuple[str, ...]:
    """Names of all blobs of a version."""
    items = (manifest.item_vectors,) if manifest.item_vectors else ()
    return (*manifest.dense, *manifest.changed, *items, *chain.from_iterable(manifest.content.values()))


def earlier_blobs(last: VersionManifest | None) -> dict[int, tuple[str, ...]]:
    """The changed-key blobs of the versions before the next one that stay readable."""
    if last is None:
        return {}
    known = {**last.earlier, last.version: last.changed}
    return {v: known[v] for v in sorted(known)[-(KEPT_VERSIONS - 1) :]}
