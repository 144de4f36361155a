"""Answers from one version: rows out of the near-cache, missing ones out of Redis, all of one version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from livectr.protos.store import F32, I64, RowStatus
from livectr.serving import metrics
from livectr.serving.request.inline_content import InlineContent
from livectr.serving.version.follower import ModelVersion, VersionFollower
from livectr.serving.version.near_cache import I32, Batch, List, NearCache, Vectors
from livectr.serving.version.reader import DownError, Reader

T = TypeVar("T")


class SupersededError(Exception):
    """A row is no longer readable at the served version: both its slots are newer."""


class VersionLookup:
    """The served version during one request.

    asked: False when Redis could not be asked for a row, or the row's bucket was not known to be whole.
    """

    def __init__(self, served: ModelVersion, cache: NearCache, reader: Reader) -> None:
        self.served = served
        self.asked = True
        self._cache = cache
        self._reader = reader

    def vectors(self, batch: Batch) -> Vectors:
        """The batch's vectors; a row that was never published has its initial values.

        So has a row of which nothing is known, but it is not remembered.

        Raises SupersededError, RefusedError.
        """
        found: dict[str, tuple[I64, F32]] = {}
        while True:
            values, missing = self._cache.infer(batch, found)
            if values is not None:
                return values
            try:
                answers = self._reader.rows(self.served.manifest, missing)
            except DownError:
                self.asked = False
                return self._cache.infer_cold(batch)
            lost = False
            for table, (rows, status) in answers.items():
                if (status == RowStatus.OVERWRITTEN).any():
                    raise SupersededError
                keys, absent = missing[table], status == RowStatus.MISSING
                if absent.any():
                    rows[absent] = self._cache.initial(table, keys[absent])
                if (known := status != RowStatus.LOST).all():
                    found[table] = keys, rows
                else:
                    lost = True
                    found[table] = keys[known], rows[known]
            if lost:
                self.asked = False
                values, _ = self._cache.infer(batch, found)
                return values if values is not None else self._cache.infer_cold(batch)

    def content(self, lists: Mapping[str, tuple[I32, I64]], brought: InlineContent) -> dict[str, List]:
        """By field, vectors of its content.

        lists: offsets i32[n+1] and ids i64[nnz], by field. brought: raw features that the request brings.
        """
        found: dict[str, List] = {}
        for name, content in self.served.content.items():
            own = {field: lists[field] for field in content.fields if field in lists}
            if not own:
                continue
            ids = np.concatenate([ids for _, ids in own.values()])
            vectors = content.find(ids, brought.get(name, {}))
            start = 0
            for field, (offsets, ids) in own.items():
                found[field] = List(vectors[start : start + len(ids)], offsets.astype(np.int64))
                start += len(ids)
        return found


def at_one_version(
    follower: VersionFollower, role: str, deadline: float | None, answer: Callable[[VersionLookup], T]
) -> T:
    """What `answer` makes of one version; it runs again at a newer one when a row of the first is gone.

    Raises NotReadyError, DeadlineError, RefusedError.
    """
    while True:
        with follower.read(deadline) as (served, cache):
            try:
                return answer(VersionLookup(served, cache, follower.reader))
            except SupersededError:
                pass
        metrics.RETRIED.labels(role).inc()
        follower.wait_newer(served.version, deadline)
