"""Stage 4, look up: rows from the near-cache, missing rows from Redis, all of the same version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from livectr.protos.store import F32, I64, RowStatus
from livectr.serving import metrics
from livectr.serving.errors import PinnedError
from livectr.serving.request.parse import InlineContent
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import I32, Batch, NearCache, RaggedVectors, Vectors
from livectr.serving.version.reader import DownError, Reader

T = TypeVar("T")


class SupersededError(Exception):
    """Both slots of a row are newer than the served version."""


class VersionLookup:
    """Look-ups of a request at the served version, which is locked meanwhile.

    Attributes:
        version: the served version.
        complete: False when a row may be missing, because Redis was down or may have lost keys.
    """

    def __init__(self, version: ModelVersion, cache: NearCache, reader: Reader) -> None:
        self.version = version
        self.complete = True
        self._cache = cache
        self._reader = reader

    def vectors(self, batch: Batch) -> Vectors:
        """Read the vectors of a batch.

        A row that was never published has its initial values, and so has a row that may be lost; only the
        first is cached.

        Raises:
            SupersededError: a row is newer than the version.
            RefusedError: Redis refuses the read.
        """
        read: dict[str, tuple[I64, F32]] = {}
        while True:
            values, missing = self._cache.infer(batch, read)
            if values is not None:
                return values
            try:
                answers = self._reader.rows(self.version.manifest, missing)
            except DownError:
                self.complete = False
                return self._cache.infer_cold(batch)
            lost = False
            for table, (rows, status) in answers.items():
                if (status == RowStatus.OVERWRITTEN).any():
                    raise SupersededError
                keys, absent = missing[table], status == RowStatus.MISSING
                if absent.any():
                    rows[absent] = self._cache.initial(table, keys[absent])
                if (known := status != RowStatus.LOST).all():
                    read[table] = keys, rows
                else:
                    lost = True
                    read[table] = keys[known], rows[known]
            if lost:
                self.complete = False
                values, _ = self._cache.infer(batch, read)
                return values if values is not None else self._cache.infer_cold(batch)

    def content(
        self, lists: Mapping[str, tuple[I32, I64]], inline: InlineContent
    ) -> dict[str, RaggedVectors]:
        """Find the content vectors of each field.

        Args:
            lists: field → offsets i32[n+1] and content ids i64[nnz].
            inline: raw features that the request carries.
        """
        vectors: dict[str, RaggedVectors] = {}
        for name, content in self.version.content.items():
            own = {field: lists[field] for field in content.fields if field in lists}
            if not own:
                continue
            ids = np.concatenate([ids for _, ids in own.values()])
            values = content.find(ids, inline.get(name, {}))
            start = 0
            for field, (offsets, ids) in own.items():
                vectors[field] = RaggedVectors(values[start : start + len(ids)], offsets.astype(np.int64))
                start += len(ids)
        return vectors


def at_one_version(
    follower: VersionFollower,
    role: str,
    deadline: float | None,
    answer: Callable[[VersionLookup], T],
    *,
    pinned: int = 0,
) -> T:
    """Run `answer` at the served version; run it again at a newer version when a row is superseded.

    Args:
        pinned: the only version that may answer; 0: any.

    Raises:
        PinnedError: another version is served, from the start or since a row was superseded.
        NotReadyError: no version has been published yet.
        DeadlineError: the deadline passed first.
        RefusedError: Redis refuses a read.
    """
    while True:
        with follower.read(deadline) as (version, cache):
            if pinned and version.number != pinned:
                raise PinnedError(pinned, version.number)
            try:
                return answer(VersionLookup(version, cache, follower.reader))
            except SupersededError:
                pass
        metrics.RETRIED.labels(role).inc()
        follower.wait_newer(version.number, deadline)
