"""Encoding of pictures into a content store: decode, encode in batches, append; stored pictures are skipped.

values ─► digest: stored? ─► decode (threads) ─► encode (batches) ─► waiting rows ─► ContentStore.append
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
"""Pictures that are encoded together."""
WAITING_ROWS = 4096
WAITING_S = 15.0
"""Waiting rows are written when there are WAITING_ROWS, or after this time: the greatest loss at an
interruption."""


@dataclass(frozen=True)
class Outcome:
    """Counts of n pictures; bad: (index, reason) of each bad picture."""

    encoded: int
    skipped: int
    bad: tuple[tuple[int, str], ...]


class PictureWriter:
    """Encodes pictures into a store; for one thread.

    Args:
        store: receives the features.
        encode: uint8[b, 3, size, size] → f32[b, store.width].
        size: see `ingest.decode.images.decode`.
        short_side: see `ingest.decode.images.decode`.
        batch: pictures that are encoded together.
        threads: that decode; None: one for each core.
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
        """Encode pictures; of a repeated id the last picture counts.

        A picture whose bytes the store has under its id is skipped. An id whose picture does not decode keeps
        the features that it has, if any.

        Args:
            ids: int64[n].
            values: n encoded images.
        """
        digests = list(self._pool.map(digest_of, values))
        stored, known = self.store.digests(ids)
        last = {key: place for place, key in enumerate(ids.tolist())}
        todo = []
        for place, key in enumerate(ids.tolist()):
            digest = self._waiting[key][0] if key in self._waiting else int(stored[place])
            same = (key in self._waiting or known[place]) and digest == digests[place]
            if not same and last[key] == place:
                todo.append(place)
        bad: list[tuple[int, str]] = []
        parts = [todo[start : start + self._batch] for start in range(0, len(todo), self._batch)]
        # The next batch is decoded while this batch is encoded.
        ahead = [self._pool.submit(self._decoded, values[place]) for place in parts[0]] if parts else []
        for number, part in enumerate(parts):
            decoded = [future.result() for future in ahead]
            following = parts[number + 1] if number + 1 < len(parts) else []
            ahead = [self._pool.submit(self._decoded, values[place]) for place in following]
            results = list(zip(part, decoded, strict=True))
            bad += [(place, reason) for place, reason in results if isinstance(reason, str)]
            good = [(place, pixels) for place, pixels in results if not isinstance(pixels, str)]
            if good:
                features = self._encode(np.stack([pixels for _, pixels in good]))
                self._wait(
                    [int(ids[place]) for place, _ in good], [digests[place] for place, _ in good], features
                )
        return Outcome(len(todo) - len(bad), len(values) - len(todo), tuple(bad))

    def flush(self) -> None:
        """Write the waiting rows; on return they are on disk."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            ids = np.array(list(waiting), np.int64)
            digests = np.array([digest for digest, _ in waiting.values()], np.uint64)
            self.store.append(ids, np.stack([features for _, features in waiting.values()]), digests)

    def close(self) -> None:
        """Write the waiting rows and end the threads."""
        try:
            self.flush()
        finally:
            self._pool.shutdown()

    def _wait(self, ids: list[int], digests: list[int], features: F32) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        for key, digest, row in zip(ids, digests, features, strict=True):
            self._waiting[key] = digest, row
        if len(self._waiting) >= WAITING_ROWS or time.monotonic() - self._since > WAITING_S:
            self.flush()

    def _decoded(self, value: bytes) -> U8 | str:
        try:
            return decode(value, size=self._size, short_side=self._short_side)
        except BadPictureError as error:
            return str(error)
