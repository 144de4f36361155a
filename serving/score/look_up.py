"""Stage 4, look up: rows from the near-cache, missing rows from Redis, all of the same version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from livectr.serving import metrics
from livectr.serving.calls import RequestCall
from livectr.serving.errors import PinnedError
from livectr.serving.request.inline_content import InlineContent
from livectr.serving.version.batch import I32, Batch, RaggedVectors, Vectors
from livectr.serving.version.breaker import DownError
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache, SupersededError
from livectr.serving.version.prefetch import PrefetchedRows
from livectr.serving.version.reader import U8, Reader
from livectr.store.layout import F32, I64, RowStatus

T = TypeVar("T")
_FOUND, _MISSING = int(RowStatus.FOUND), int(RowStatus.MISSING)


class ReadRows:
    """Answers of Redis to a request's reads of rows.

    Attributes:
        rows: table → keys i64[n] and their published rows f32[n, D].
        absent: table → keys i64[n] without a published row.
    """

    def __init__(self) -> None:
        self.rows: dict[str, tuple[I64, F32]] = {}
        self.absent: dict[str, I64] = {}

    def add(self, table: str, keys: I64, rows: F32, status: U8) -> None:
        """Add an answer; rows that may be lost are left out.

        A small cache may have dropped rows of the answer before, so that a table is read twice.
        """
        metrics.NEAR_CACHE_READ.labels().inc(len(keys))
        found, absent = status == _FOUND, status == _MISSING
        if found.any():
            of_keys, of_rows = keys[found], rows[found]
            if (before := self.rows.get(table)) is not None:
                of_keys, of_rows = np.concatenate([before[0], of_keys]), np.concatenate([before[1], of_rows])
            self.rows[table] = of_keys, of_rows
        if absent.any():
            self.absent[table] = np.concatenate([self.absent.get(table, keys[:0]), keys[absent]])


class VersionLookup:
    """Look-ups of a request at one version. Nothing is locked while Redis is read.

    Attributes:
        version: the served version.
        cache: its rows.
        complete: False when a row may be missing, because Redis was down or may have lost keys.
        prefetched: rows to add to the near-cache before the next batch is read.
    """

    def __init__(self, version: ModelVersion, cache: NearCache, reader: Reader) -> None:
        self.version = version
        self.complete = True
        self.cache = cache
        self._reader = reader
        self.prefetched: PrefetchedRows | None = None

    def add_prefetched(self) -> int:
        """Add prefetched rows to the near-cache, and return their number. Raises SupersededError."""
        read = self._take_prefetched()
        return self.cache.add(read.rows, read.absent, self.version.number)

    def _take_prefetched(self) -> ReadRows:
        """Prefetched rows that are known to be there, or absent; they are taken once."""
        read, prefetched, self.prefetched = ReadRows(), self.prefetched, None
        if prefetched is not None:
            for table, (rows, status) in prefetched.rows.items():
                if (status <= _MISSING).all():
                    read.add(table, prefetched.keys[table], rows, status)
        return read

    def vectors(self, batch: Batch, added: int = 0) -> Vectors:
        """Read the vectors of a batch.

        A row that was never published has its initial values, and so has a row that may be lost; only the
        first is cached.

        Args:
            batch: ragged keys.
            added: prefetched rows that `add_prefetched` has added for it.

        Raises:
            SupersededError: a row is newer than the version, or the near-cache moved on to a newer one.
            DeadlineError: the deadline passed while rows were added for other requests.
            RefusedError: Redis refuses the read.
        """
        number, read = self.version.number, self._take_prefetched()
        while True:
            values, missing = self.cache.infer(batch, read.rows, number, read.absent, added)
            if values is not None:
                return values
            try:
                answers = self._reader.rows(self.version.manifest, missing)
            except DownError:
                self.complete = False
                return self.cache.infer_cold(batch, number)
            lost = False
            for table, (rows, status) in answers.items():
                if (status == RowStatus.OVERWRITTEN).any():
                    raise SupersededError
                lost |= bool((status == RowStatus.LOST).any())
                read.add(table, missing[table], rows, status)
            if lost:
                self.complete = False
                values, _ = self.cache.infer(batch, read.rows, number, read.absent, added)
                return values if values is not None else self.cache.infer_cold(batch, number)

    def absent(self, keys: Mapping[str, I64]) -> dict[str, I64] | None:
        """Keys of each table that have no row at the version, and so their initial values.

        Args:
            keys: table → unique keys i64[n].

        Returns:
            Table → keys, sorted as they came; None: Redis cannot be read.

        Raises:
            RefusedError: Redis refuses the read.
        """
        try:
            rows = self._reader.rows(self.version.manifest, keys)
        except DownError:
            return None
        return {table: keys[table][status == RowStatus.MISSING] for table, (_, status) in rows.items()}

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
    call: RequestCall,
    answer: Callable[[VersionLookup], T],
    pinned: int = 0,
) -> T:
    """Run `answer` at the served version; run it again at a newer version when a row is superseded.

    A swap waits for no request, and no request for a swap. A request that needs rows after a swap begins
    again.

    Args:
        follower: has the served version.
        call: of the client.
        answer: called once, or again after SupersededError.
        pinned: the only version that may answer; 0: any.

    Raises:
        PinnedError: another version is served, from the start or since a row was superseded.
        NotReadyError: no version has been published yet.
        DeadlineError: the deadline passed first.
        RefusedError: Redis refuses a read.
    """
    while True:
        version, cache = follower.served()
        if pinned and version.number != pinned:
            raise PinnedError(pinned, version.number)
        try:
            return answer(VersionLookup(version, cache, follower.reader))
        except SupersededError:
            pass
        call.check("look_up")
        metrics.RETRIED.labels(call.role).inc()
        follower.wait_newer(version.number, call.deadline)
