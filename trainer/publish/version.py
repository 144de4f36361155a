"""Version on its way to Redis: a rank's snapshot, the version under way, the version that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.from_zero import FromZero
from livectr.models.roles import served_roles
from livectr.store.layout import KEPT_VERSIONS
from livectr.store.manifest import VersionManifest
from livectr.trainer.content.names import item_names
from livectr.trainer.content.precompute import Precompute
from livectr.trainer.publish.items import Items
from livectr.trainer.publish.log.entries import LogEntry
from livectr.trainer.publish.spool import CopyAhead, Spool
from livectr.trainer.publish.values import Values

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class Push(IntEnum):
    """State of a rank's push; part of the batcher's header."""

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
    SUPERSEDED = 8
    """Rank 0 only: a rollback of this run is served, so the next publish is complete and above its number."""


@dataclass(frozen=True)
class PublishedModel:
    """Model of all versions of a trainer; every manifest names it (store.manifest.VersionManifest).

    Attributes:
        fingerprint: of the pipeline.
        segments: (name, dim) of the segments of a table row.
        seed: of the run.
        from_zero: (role, table) whose new rows begin at zero (kernels.table.from_zero).
    """

    fingerprint: str
    segments: Sequence[tuple[str, int]]
    seed: int
    from_zero: tuple[FromZero, ...] = ()

    def served(self, champion: str) -> tuple[tuple[str, int], ...]:
        """(name, dim) of the segments of a published row, in the order of a table row."""
        return tuple(segment for segment in self.segments if is_served(segment[0], champion))


def is_served(segment: str, champion: str) -> bool:
    """Tell if a segment ("role.name") belongs to a model that servers answer with."""
    return segment.partition(".")[0] in served_roles(champion)


@dataclass(frozen=True)
class VersionSnapshot:
    """Copies of a rank's rows, values and weights at a step boundary.

    Attributes:
        step: of the boundary.
        rows: table → (keys int64[m], serving values f32[m, D]) that changed, or all of them.
        table_rows: table → rows on this rank; a table may be on several ranks.
        dense: the rank's dense weights as safetensors.
        values: look-up rows and histories.
        items: the same on every rank; None without a pre-rank model. Rank 0 writes their vectors.
        erased: table → keys int64[m] that left it since the last version; a complete version ignores them.
        content: name → precompute of the vectors of this rank's ids; the same names on every rank.
        spool: rows that `rows` replace: in a file, if they may be more than memory holds, or copied ahead.
        champion: role of the ranking model whose values the rows hold.
        kept: of a complete version on rank 0, the keys of all look-up rows and histories, for
            trainer.publish.sweep; None: nothing is swept.
        broken: words on numbers that are not finite, for which the version must not be published; "": there
            are none.
    """

    step: int
    rows: Mapping[str, tuple[I64, F32]]
    table_rows: Mapping[str, int]
    dense: bytes
    values: Sequence[Values] = ()
    items: Items | None = None
    erased: Mapping[str, I64] = field(default_factory=dict)
    content: Mapping[str, Precompute] = field(default_factory=dict)
    spool: Spool | CopyAhead | None = None
    champion: str = "rank"
    kept: Mapping[str, I64] | None = None
    broken: str = ""

    @property
    def written(self) -> int:
        """Rows of all tables."""
        return sum(len(keys) for keys, _ in self.rows.values()) + (self.spool.rows if self.spool else 0)

    def changed(self) -> dict[str, I64]:
        """Keys of the rows, and of the values that a version lists, by table."""
        parts: dict[str, list[I64]] = {}
        for table, (keys, _) in self.rows.items():
            parts.setdefault(table, []).append(keys)
        for table, keys in self.spool.keys if self.spool is not None else ():
            parts.setdefault(table, []).append(keys)
        for values in self.values:
            if values.listed and len(values):
                parts.setdefault(values.listed, []).append(values.keys)
        return {table: np.concatenate(keys) for table, keys in parts.items()}

    def chunks(self) -> Iterator[tuple[str, I64, F32]]:
        """Iterate over (table, keys, values) of all rows, in parts; of equal keys the last counts."""
        if self.spool is not None:
            yield from self.spool
        for table, (keys, rows) in self.rows.items():
            yield table, keys, rows

    def item_names(self, blob: Callable[[str], str], before: VersionManifest | None) -> tuple[str, ...]:
        """Names of the blobs of item vectors; () without a pre-rank model.

        Args:
            blob: name of a blob by tag, ending with the tag.
            before: version that this one extends; None: it is complete.
        """
        if self.items is None:
            return ()
        blobs, names = self.items.blobs, before.item_vectors if before is not None else ()
        return item_names(blobs.tags, blob, names, whole=blobs.whole)

    @property
    def published(self) -> tuple[Callable[[], None], ...]:
        """Functions that note that the version is served, of its content and its items."""
        items = (self.items.blobs.published,) if self.items is not None else ()
        return (*(precompute.published for precompute in self.content.values()), *items)


@dataclass(frozen=True)
class Published:
    """Version that is being served.

    Attributes:
        rows: table rows that all ranks have written.
        full: the version was complete, no delta.
    """

    manifest: VersionManifest
    rows: int
    full: bool


@dataclass(frozen=True)
class Pending:
    """Version under way.

    Attributes:
        text: of the manifest.
        rows: table rows that all ranks write.
        full: the version holds everything.
        published: functions that note that it is served.
        entry: of the publish log; None: it gets none.
    """

    manifest: VersionManifest
    text: bytes
    rows: int
    full: bool
    published: Sequence[Callable[[], None]] = ()
    entry: LogEntry | None = None


def blobs_of(manifest: VersionManifest) -> tuple[str, ...]:
    """Names of all blobs of a version."""
    content = chain.from_iterable(manifest.content.values())
    return (*manifest.dense, *manifest.changed, *manifest.item_vectors, *content)


def earlier_blobs(last: VersionManifest | None) -> dict[int, tuple[str, ...]]:
    """Version → its changed-key blobs, of the versions that stay readable beside the next."""
    if last is None:
        return {}
    known = {**last.earlier, last.version: last.changed}
    return {v: known[v] for v in sorted(known)[-(KEPT_VERSIONS - 1) :]}
