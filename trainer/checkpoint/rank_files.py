"""Files of a generation that one rank writes, with older files of its chains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch

from livectr.system.tensors import packed
from livectr.trainer.checkpoint.changes import HistoryChain, KnownLog, TimedRowLog
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.order_parts import OrderParts
from livectr.trainer.checkpoint.prediction_parts import PredictionParts
from livectr.trainer.checkpoint.table_chain import TableChain
from livectr.trainer.checkpoint.writer import File, Writer


class RankFiles:
    """Files of one rank.

    Args:
        writer: writes them.
        log: the prediction log on its way to an object store; None: not on this rank, or not stored.

    Attributes:
        tables: chain of the tables' files.
        order: parts of the order log, which rank 0 writes.
    """

    def __init__(self, writer: Writer, rank: int, log: PredictionParts | None = None) -> None:
        self.tables = TableChain(writer)
        self.order = OrderParts(writer)
        self._writer, self._rank, self._log = writer, rank, log
        self._known, self._histories, self._rows = KnownLog(), HistoryChain(), TimedRowLog()

    def begin_again(self) -> None:
        """Let the next files hold all rows and histories, since changes are no longer known."""
        self.tables.begin_again()
        self._histories.begin_again()

    def write(self, folder: Path, content: CheckpointState, *, keep: bool) -> list[File]:
        """Copy what the files hold and have them written; return them with the older files of the chains.

        Args:
            folder: of the generation; it is made.
            content: of this rank.
            keep: as of TableChain.write.
        """
        folder.mkdir(parents=True, exist_ok=True)
        dense = {name: tensor.contiguous() for name, tensor in content.dense.items()}
        source = {name: np.frombuffer(part, np.uint8) for name, part in content.source.items()}
        files = [
            *self.tables.write(folder, content, keep=keep),
            self._writer.file(folder / "dense.safetensors", "dense", safetensors.torch.save(dense)),
            self._tensors(folder, "source", source),
        ]
        if content.changes is not None:
            files += self._known.write(content.changes, partial(self._tensors, folder, "known"))
            save = partial(self._tensors, folder, "histories")
            files += self._histories.write(content.changes, content.history_mark, save)
            files += self._rows.write(content.changes, partial(self._tensors, folder, "rows"))
        if content.policies:
            files.append(self._tensors(folder, "policies", content.policies))
        if content.unpublished:
            rows = sum(map(len, content.unpublished.values()))
            path = folder / "unpublished.safetensors"
            keys = {name: [some] for name, some in content.unpublished.items()}  # nobody else has them
            files.append(self._writer.tensors(path, "unpublished", keys, rows))
        if self._rank == 0:
            files.append(self._tensors(folder, "statistics", content.statistics))
            files += [self._tensors(folder, kind, state) for kind, state in content.parts.items()]
            files += self.order.write(folder, content.step, content.order)
        return files + (self._log.write(folder) if self._log is not None else [])

    def _tensors(
        self, folder: Path, kind: str, tensors: Mapping[str, npt.NDArray[Any]], rows: int = 0
    ) -> File:
        """Write a copy of tensors."""
        data = packed(tensors)
        return self._writer.file(folder / f"{kind}.safetensors", kind, data, rows)
