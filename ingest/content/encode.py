"""Pictures into a content store: decode, encode in batches, append; what is there already is left alone.

values ─► digest: stored? ─► decode (threads) ─► encode (batches) ─► rows that wait ─► ContentStore.append
             └ skipped           └ bad, with the reason
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.store import ContentStore, digest_of
from livectr.ingest.decode.images import BadPictureError, decode

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

BATCH = 64
"""Pictures that are encoded at a time."""
WAITING_ROWS = 4096
WAITING_S = 15.0
"""Rows are written when they are so many, or have waited so long: what an interruption may cost."""


@dataclass(frozen=True)
class Outcome:
    """What became of n pictures: bad holds (place among them, reason)."""

    encoded: int
    skipped: int
    bad: tuple[tuple[int, str], ...]


class PictureWriter:
    """Encodes pictures into a store; for one thread, and `close` writes what waits.

    encode: uint8[b, 3, size, size] → f32[b, store.width]. size, short_side: see
    `ingest.decode.images.decode`.
    """

    def __init__(
        self,
        store: ContentStore,
        encode: Callable[[U8], F32],
        *,
        size: int,
        short_side: int | None = None,
        batch: int = BATCH,
        threads: int | None = None,
    ) -> None:
        self.store = store
        self._encode, self._size, self._short_side, self._batch = encode, size, short_side, batch
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="livectr-decode")
        self._waiting: dict[int, tuple[int, npt.NDArray[Any]]] = {}  # id → digest, features
        self._since = 0.0

    def write(self, ids: I64, values: Sequence[bytes]) -> Outcome:
        """Encode pictures `values` of ids int64[n]; of an id that is there twice, the last one.

        A picture whose bytes the store has under its id is skipped. An id whose picture does not decode keeps
        the features that it has, if any.
        """
        digests = list(self._pool.map(digest_of, values))
        stored, known = self.store.digests(ids)
        last = {one: place for place, one in enumerate(ids.tolist())}
        todo = []
        for place, one in enumerate(ids.tolist()):
            there = self._waiting[one][0] if one in self._waiting else int(stored[place])
            same = (one in self._waiting or known[place]) and there == digests[place]
            if not same and last[one] == place:
                todo.append(place)
        bad: list[tuple[int, str]] = []
        parts = [todo[start : start + self._batch] for start in range(0, len(todo), self._batch)]
        # The next batch is decoded while this one is encoded.
        ahead = [self._pool.submit(self._decoded, values[place]) for place in parts[0]] if parts else []
        for number, part in enumerate(parts):
            decoded = [future.result() for future in ahead]
            following = parts[number + 1] if number + 1 < len(parts) else []
            ahead = [self._pool.submit(self._decoded, values[place]) for place in following]
            bad += [(place, one) for place, one in zip(part, decoded, strict=True) if isinstance(one, str)]
            good = [(p, one) for p, one in zip(part, decoded, strict=True) if not isinstance(one, str)]
            if good:
                features = self._encode(np.stack([pixels for _, pixels in good]))
                self._wait(
                    [int(ids[place]) for place, _ in good], [digests[place] for place, _ in good], features
                )
        return Outcome(len(todo) - len(bad), len(values) - len(todo), tuple(bad))

    def flush(self) -> None:
        """Write the rows that wait; when it returns they are on disk."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            ids = np.array(list(waiting), np.int64)
            digests = np.array([digest for digest, _ in waiting.values()], np.uint64)
            self.store.append(ids, np.stack([features for _, features in waiting.values()]), digests)

    def close(self) -> None:
        """Write what waits and end the threads."""
        try:
            self.flush()
        finally:
            self._pool.shutdown()

    def _wait(self, ids: list[int], digests: list[int], features: F32) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        for one, digest, row in zip(ids, digests, features, strict=True):
            self._waiting[one] = digest, row
        if len(self._waiting) >= WAITING_ROWS or time.monotonic() - self._since > WAITING_S:
            self.flush()

    def _decoded(self, value: bytes) -> U8 | str:
        try:
            return decode(value, size=self._size, short_side=self._short_side)
        except BadPictureError as error:
            return str(error)
