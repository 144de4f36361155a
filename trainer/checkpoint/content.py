"""Content of a generation: what each rank hands to a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


class Table(Protocol):
    """What a checkpoint asks of a table (kernels.table.table.DynamicTable)."""

    tracks: bool

    def __len__(self) -> int: ...

    def chunks(self, since: int = 0) -> Iterator[tuple[I64, F32]]: ...

    def assign(self, keys: I64, rows: F32) -> object: ...

    def erased(self, since: int) -> I64: ...

    def erase(self, keys: I64) -> object: ...

    def usage(self, keys: I64) -> tuple[U32, U32]: ...

    def set_usage(self, keys: I64, stamps: U32, counts: U32) -> object: ...


@dataclass(frozen=True)
class CheckpointState:
    """What a rank puts into a generation; numbers that describe the run are rank 0's."""

    step: int
    examples: int
    predictions: int
    cursor: dict[str, Any] | None
    tables: Mapping[str, Table]
    marks: Mapping[str, int]
    """Per table, the mark at this step boundary: where the next delta begins."""
    dense: Mapping[str, torch.Tensor]
    source: Mapping[str, bytes]
    statistics: Mapping[str, npt.NDArray[Any]]
    """Name → state (ingest.extract.statistics): the same on every rank, so rank 0 writes it."""
    items: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """State of trainer.quality.seen.ItemCounts; rank 0 writes it. Empty: nothing is counted."""
    policies: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """State of this rank's table policies (trainer.tables.policies)."""
    row: tuple[str, ...] = ()
    """What a table row holds (kernels.table.layout.RowLayout.describe)."""
    tracked: Collection[str] = ()
    """Tables whose rows' use is kept with them, since policies look at it."""
    field_keys: Mapping[str, int] = field(default_factory=dict)
    """Of this rank's examples; the manifest has the sum over ranks."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Of what this rank did so far, nested; the manifest has the sum over ranks."""
    predictions_sha256: str = ""
    """Of the prediction log up to here; rank 0's. Empty: it is not kept."""
