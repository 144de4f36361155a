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

    def chunks(self, since: int = 0) -> Iterator[tuple[I64, F32]]: ...

    @property
    def end(self) -> int: ...

    def in_use(self, begin: int, end: int) -> U32: ...

    def generations(self, rows: U32) -> U32: ...

    @property
    def listed(self) -> int: ...

    def changed(self, since: int = 0) -> U32: ...

    def read(self, rows: U32) -> tuple[I64, F32]: ...

    def find(self, keys: I64) -> U32: ...

    def read_chunks(self, rows: U32) -> Iterator[tuple[I64, F32]]: ...

    def assign(self, keys: I64, rows: F32) -> object: ...

    def erased(self, since: int) -> I64: ...

    def erase(self, keys: I64) -> object: ...

    def usage(self, keys: I64) -> tuple[U32, U32]: ...

    def set_usage(self, keys: I64, stamps: U32, counts: U32) -> object: ...


class SourceChanges(Protocol):
    """State of the source that is saved as changes (ingest.join.state.Changes)."""

    @property
    def places(self) -> Mapping[int, Places]: ...

    def known(self, places: Mapping[int, Places]) -> Mapping[str, npt.NDArray[Any]]: ...

    def histories(self, since: int) -> Mapping[str, npt.NDArray[Any]]: ...

    @property
    def row_places(self) -> Mapping[str, tuple[int, int]]: ...

    def count_rows(self, since: Mapping[str, int]) -> int: ...

    def rows(self, since: Mapping[str, int]) -> tuple[Mapping[str, npt.NDArray[Any]], int]: ...


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
    products: str = ""
    order: bytes = b""
