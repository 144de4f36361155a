"""Content of a generation: what each rank hands to a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from livectr.kernels.stream.known import Places
from livectr.trainer.part import Arrays

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


class Table(Protocol):
    """Table, as a checkpoint reads and fills it (kernels.table.table.DynamicTable)."""

    tracks: bool
    sweeps: bool

    def __len__(self) -> int: ...

    def chunks(self, since: int = 0) -> Iterator[tuple[I64, F32]]:
        """Keys i64[m] and rows f32[m, stride] that changed after mark `since` (0: all), in chunks."""

    @property
    def end(self) -> int:
        """Bound of the row numbers in use: they are below."""

    def in_use(self, begin: int, end: int) -> U32:
        """Row numbers u32[m] in use that are in [begin, end), rising."""

    def generations(self, rows: U32) -> U32:
        """Generation u32[n] of the last change of each row number in use."""

    @property
    def listed(self) -> int:
        """Entries in the lists of changes."""

    def changed(self, since: int = 0) -> U32:
        """Row numbers u32[m] that changed after mark `since`; 0: all."""

    def read(self, rows: U32) -> tuple[I64, F32]:
        """Keys i64[n] and rows f32[n, stride] of row numbers in use."""

    def find(self, keys: I64) -> U32:
        """Row numbers u32[n] of keys i64[n]; `kernels.table.table.MISSING_ROW` for a missing key."""

    def read_chunks(self, rows: U32) -> Iterator[tuple[I64, F32]]:
        """Read as `read` does, in chunks; the table must not change meanwhile."""

    def assign(self, keys: I64, rows: F32) -> object:
        """Store rows f32[n, stride] of keys i64[n]; of equal keys the last counts."""

    def erased(self, since: int) -> I64:
        """Keys i64[m] that were erased after mark `since` and do not exist now; since 0: none."""

    def erase(self, keys: I64) -> object:
        """Erase keys i64[n]; missing keys are ignored."""

    def usage(self, keys: I64) -> tuple[U32, U32]:
        """Stamp and count of uses, each u32[n], of keys i64[n]."""

    def set_usage(self, keys: I64, stamps: U32, counts: U32) -> object:
        """Set stamps u32[n] and counts of uses u32[n] of keys i64[n]."""


class SourceChanges(Protocol):
    """State of the source that is saved as changes (ingest.join.state.Changes)."""

    @property
    def places(self) -> Mapping[int, Places]:
        """Partition → present places in the log of the keys that its join remembers."""

    def known(self, places: Mapping[int, Places]) -> Mapping[str, npt.NDArray[Any]]:
        """Keys that came or changed after some places: "PARTITION/COLUMN" → values."""

    def histories(self, since: int) -> Mapping[str, npt.NDArray[Any]]:
        """Users with a click after generation `since` (0: all): "PARTITION/HISTORY/COLUMN" → values."""

    @property
    def row_places(self) -> Mapping[str, tuple[int, int]]:
        """Topic of a table → places since which changes of its rows are known, and of its next row."""

    def count_rows(self, since: Mapping[str, int]) -> int:
        """Number of rows and keys that `rows` gives."""

    def rows(self, since: Mapping[str, int]) -> tuple[Mapping[str, npt.NDArray[Any]], int]:
        """Rows that came at some places or later and keys that left before them, by name; their number."""


@dataclass(frozen=True)
class CheckpointState:
    """Content of a generation on one rank; numbers that describe the run are rank 0's.

    Attributes:
        step, examples: learned by all ranks.
        predictions: records of the prediction log.
        cursor: point that publishing has reached (trainer.publish.succession.Cursor).
        tables: name → this rank's table.
        marks: name → mark at this step boundary, where the next delta begins.
        dense: dense weights and their Adam state.
        source: name → bytes of the source's state.
        changes: of the source, which are not in `source`; None: no changes.
        history_mark: generation of the histories that was closed at this step boundary.
        statistics: name → state (ingest.extract.statistics); the same on every rank, so rank 0 writes it.
        parts: kind → state of a part (trainer.part), which rank 0 writes; in the order of their files.
        unpublished: table → keys of this rank that changed after the version that Redis holds (the cursor's
            `served`).
        quality: measures of the newest window of rank 0, and the reason for which versions are held.
        policies: state of this rank's table policies (trainer.tables.policies).
        row: layout of a table row (kernels.table.layout.RowLayout.describe).
        tracked: tables whose policies need the use of their rows, which is kept with them.
        field_keys: field → keys of this rank's examples; the manifest has the sum over ranks.
        counts: nested counters of this rank; the manifest has the sum over ranks.
        predictions_sha256: of the prediction log up to here, on rank 0; empty: it is not kept.
        began_ms: time at which the run's first process began, ms since 1970.
        seen: examples and late positives of all batches.
        resumes: generation from which the next run resumes; 0: this one.
        products: library of the networks' fp32 products (models.library).
        order: lines of the order log since the generation before (trainer.stream.order_log), on rank 0.
    """

    step: int
    examples: int
    predictions: int
    cursor: dict[str, Any] | None
    tables: Mapping[str, Table]
    marks: Mapping[str, int]
    dense: Mapping[str, torch.Tensor]
    source: Mapping[str, bytes]
    statistics: Arrays
    changes: SourceChanges | None = None
    history_mark: int = 0
    parts: Mapping[str, Arrays] = field(default_factory=dict)
    unpublished: Arrays = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    policies: Arrays = field(default_factory=dict)
    row: tuple[str, ...] = ()
    tracked: Collection[str] = ()
    field_keys: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    predictions_sha256: str = ""
    began_ms: int = 0
    seen: int = 0
    resumes: int = 0
    products: str = ""
    order: bytes = b""
