"""Places of a content store's rows: where the newest row of each numbered id is, and when it changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.files import Chunk

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Places:
    """Index of the newest row of each id, by the id's number.

    Attributes:
        ids: i64[n]; it and the other arrays grow by doubling.
        chunk: i32[n], handle of the chunk.
        row: i32[n], in the chunk.
        last: i32[n], the chunk's last number.
        digest: u64[n].
        added: i64[n], number of the addition that brought the features.
        additions: chunks with new features so far.
    """

    def __init__(self) -> None:
        self.ids: I64 = np.zeros(0, np.int64)
        self.chunk = np.zeros(0, np.int32)
        self.row = np.zeros(0, np.int32)
        self.last = np.zeros(0, np.int32)
        self.digest: U64 = np.zeros(0, np.uint64)
        self.added: I64 = np.zeros(0, np.int64)
        self.additions = 0
        self._loaded: dict[int, int] = {}
        """Shard → last number of its newest chunk."""

    def grow(self, used: int, needed: int) -> None:
        """Make room for `needed` numbers, of which `used` are there."""
        if needed <= len(self.ids):
            return
        size = max(needed, 2 * len(self.ids))
        for name in ("ids", "chunk", "row", "last", "digest", "added"):
            old = getattr(self, name)
            grown = np.zeros(size, old.dtype)
            grown[:used] = old[:used]
            setattr(self, name, grown)

    def put(self, chunk: Chunk, handle: int, numbers: npt.NDArray[Any], rows: I64, before: int) -> None:
        """Note the place of a chunk's rows.

        Args:
            chunk: its ids, digests and name.
            handle: of the chunk.
            numbers: of the ids, u32[n], all different.
            rows: of the chunk, i64[n].
            before: the number of the first id that is new.
        """
        if chunk.name.last > self._loaded.get(chunk.name.shard, -1):  # else merged of chunks that were loaded
            self._loaded[chunk.name.shard] = chunk.name.last
            self.additions += 1
            digests = chunk.digests[rows]
            changed = (numbers >= before) | (digests == 0) | (digests != self.digest[numbers])
            self.added[numbers[changed]] = self.additions
        self.ids[numbers] = chunk.ids[rows]
        self.chunk[numbers], self.row[numbers] = handle, rows
        self.last[numbers], self.digest[numbers] = chunk.name.last, chunk.digests[rows]
