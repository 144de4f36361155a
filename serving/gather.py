"""Answers from one version: rows out of the near-cache, missing ones out of Redis, all of one version."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from protos.store import F32, I64, RowStatus
from serving import metrics
from serving.nearcache import Batch, NearCache, Vectors
from serving.reader import DownError, Reader
from serving.view import Served, View

T = TypeVar("T")


class SupersededError(Exception):
    """A row is no longer readable at the served version: both its slots are newer."""


class Snapshot:
    """The served version during one request. asked: False when Redis could not be asked for a row."""

    def __init__(self, served: Served, cache: NearCache, reader: Reader) -> None:
        self.served = served
        self.asked = True
        self._cache = cache
        self._reader = reader

    def vectors(self, batch: Batch) -> Vectors:
        """The batch's vectors; a row that was never published has its initial values.

        Raises SupersededError.
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
            for table, (rows, status) in answers.items():
                if (status == RowStatus.OVERWRITTEN).any():
                    raise SupersededError
                absent = status == RowStatus.MISSING
                if absent.any():
                    rows[absent] = self._cache.initial(table, missing[table][absent])
                found[table] = missing[table], rows


def at_one_version(view: View, role: str, deadline: float | None, answer: Callable[[Snapshot], T]) -> T:
    """What `answer` makes of one version; it runs again at a newer one when a row of the first is gone.

    Raises NotReadyError, DeadlineError.
    """
    while True:
        with view.read(deadline) as (served, cache):
            try:
                return answer(Snapshot(served, cache, view.reader))
            except SupersededError:
                pass
        metrics.RETRIED.labels(role).inc()
        view.wait_newer(served.version, deadline)
