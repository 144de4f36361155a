"""`livectr.read_embeddings`: the rows of a checkpoint's embedding table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.library.checkpoints import open_checkpoint
from livectr.system.errors import ConfigError, InternalError

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


def read_embeddings(checkpoint: str | Path, table: str) -> pa.Table:
    """Read the rows of an embedding table, without the optimizers' state.

    Args:
        checkpoint: the folder that training wrote, or its s3:// address; a run may continue writing it.
        table: name of the embedding table: that of the sparse field, or the field whose table it shares.

    Returns:
        A row for each key, in the order of the keys: `key` int64, then for each part of a row a column of
        fixed-size lists of float32. The key of a text is its hash, as `livectr.features` gives it.

    Raises:
        ConfigError: the folder holds no checkpoint, or the checkpoint no such table.
        CheckpointError: no generation is whole.

    Example:
        >>> livectr.read_embeddings("checkpoint", "ad").to_pandas()
    """
    with open_checkpoint(checkpoint) as restored:
        known = restored.manifest.table_rows
        if table not in known:
            raise ConfigError(
                f"{checkpoint} has no table {table!r}; its tables are {', '.join(sorted(known))}"
            )
        rows = _Rows()
        restored.load_tables(cast(Any, {table: rows}))
    segments = [_segment(text) for text in restored.manifest.row[1:]]
    keys, values = rows.latest(sum(dim for _, dim in segments))
    columns: dict[str, Any] = {"key": pa.array(keys)}
    at = 0
    for name, dim in segments:
        block = pa.array(values[:, at : at + dim].ravel())
        columns[name] = pa.FixedSizeListArray.from_arrays(block, dim)
        at += dim
    return pa.table(columns)


def _segment(text: str) -> tuple[str, int]:
    """Name and dim out of a description such as "rank.vector AdaGrad<16>" (RowLayout.describe)."""
    match = re.fullmatch(r"(\S+) .*?(\d+)>", text)
    if match is None:
        raise InternalError(f"a checkpoint's row is described as {text!r}; another version wrote it")
    return match[1], int(match[2])


class _Rows:
    """Takes the base and the deltas of a table; the last word about a key counts."""

    tracks = False

    def __init__(self) -> None:
        self._keys: list[I64] = []
        self._rows: list[F32 | None] = []

    def assign(self, keys: I64, rows: F32) -> None:
        self._keys.append(keys)
        self._rows.append(rows)

    def erase(self, keys: I64) -> None:
        self._keys.append(keys)
        self._rows.append(None)

    def latest(self, dim: int) -> tuple[I64, F32]:
        """(keys int64[n] in order, their values float32[n, dim])."""
        held: I64 = np.empty(0, np.int64)
        values: F32 = np.empty((0, dim), np.float32)
        for keys, rows in zip(self._keys, self._rows, strict=True):
            stays = ~np.isin(held, keys)
            held, values = held[stays], values[stays]
            if rows is not None:
                held, values = np.concatenate([held, keys]), np.concatenate([values, rows[:, :dim]])
        order = np.argsort(held)
        return held[order], values[order]
