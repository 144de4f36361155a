"""Stages 2 and 3, enrich and extract: look-up rows and histories join a request's columns; features of these.

    columns, look-up rows in memory ─► kernels.request.features ─► features
                                             │ a row or a history must be read
                                             └─► one round trip to Redis, and the call is made again

Columns that all candidates share have 1 row, and are extracted once.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from livectr.ingest.extract.engines import Call, Engines
from livectr.ingest.extract.extractor import plan_failure
from livectr.ingest.extract.sharing import SharedFeatures, Shares, TooLargeError
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.request.features import (
    BAD_HISTORY,
    COLUMN,
    DONE,
    HISTORY,
    LOOKUP,
    MISSING_INPUTS,
    MORE_KEYS,
    NO_MEMORY,
    CompiledInputs,
    FeatureCall,
    FeatureMemory,
    InputLayout,
    RootSource,
)
from livectr.kernels.request.parse import Part, RequestColumn, RequestParser
from livectr.kernels.runtime.arrays import address, copied
from livectr.kernels.runtime.arrow import exported
from livectr.serving.deadlines import current_call
from livectr.serving.errors import RequestError, foreign_values
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.lookup_rows import LookupQuery, LookupResult, LookupRows
from livectr.serving.request.parse import RequestColumns
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64, decode_history
from livectr.system.errors import ConfigError, InternalError

_MOST_SPLITS = 256
"""Sets of candidate columns that are remembered; clients choose the columns."""
_KEYS = 256
"""Keys that there is room for at first."""
_NO_NUMBERS = np.empty((1, 0), np.float32)
_NOT_OBSERVED = np.empty((0, 1), np.int64)
_SplitKey = tuple[RequestParser | None, bytes | frozenset[str], bool]
"""Parser of a request and the part of each column, or columns of its candidates; is there one candidate?"""
Prefetch = Callable[[I64], PrefetchKeys | None]
"""Key of the user → embedding rows to read in the round trip of look-up rows; None: none."""


@dataclass(frozen=True)
class Extracted:
    """Features of n rows, and what is known of their inputs.

    Args:
        features: of the rows.
        complete: False when look-up rows or histories may be missing or old, because Redis was down or may
            have lost keys.
        read_at: instant of time.monotonic() at which the oldest live input, a look-up row or the histories,
            was read; None: the plan has none.
        prefetched: embedding rows read in the same round trip; None: no prefetch, or Redis was down.
        item_keys: i64[n], keys of the items; None: not asked for, or no column of the candidates.
    """

    features: SharedFeatures
    complete: bool
    read_at: float | None
    prefetched: PrefetchedRows | None
    item_keys: I64 | None


_Found = tuple[bool, float | None, PrefetchedRows | None]
"""`complete`, `read_at` and `prefetched` of `Extracted`."""


class _Split:
    """Features of requests with the same columns of candidates: those that all rows share, and the others.

    Args:
        shares: of the plan.
        places: i64[columns], of the stream's columns among the request's.
    """

    def __init__(self, shares: Shares, places: I64) -> None:
        self._arrays = shares.nodes, shares.flags, places
        self.nodes, self.flags, self.places = address(shares.nodes), address(shares.flags), address(places)
        self.shared_fields, self.own_fields = shares.shared_fields, shares.own_fields


class RequestFeatures:
    """Computes the features of a plan from requests, look-up rows and histories.

    Args:
        plan: its features.
        item_column: column of the candidates whose keys are wanted, too.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: FeaturePlan,
        reader: Reader,
        lookup_rows: LookupRows,
        limits: RequestLimits = DEFAULT,
        item_column: str | None = None,
    ) -> None:
        self._plan, self._limits = plan, limits.features
        self._most_values = limits.values
        self._keyspace, self._lookup_rows = reader.keyspace, lookup_rows
        self._engines = Engines(plan, None)
        self._initial = plan.initial_states()
        self._initial_states = np.array([address(array) for array in self._initial], np.int64)
        self._width = len(plan.dense_names)
        names = {root.name for root in plan.roots}
        self._tables = [
            lookup
            for lookup in pipeline.log.lookups
            if any(root.name in names for root in pipeline.lookup_roots[lookup.table.topic])
        ]
        self._topics = [lookup.table.topic for lookup in self._tables]
        self._histories = [root for root in pipeline.history_roots if root.name in names]
        self._live = bool(self._tables or self._histories)
        stream = pipeline.log.impressions
        read = [root.ref.column for root in pipeline.request_roots if root.name in names]
        read += [lookup.on for lookup in self._tables]
        read += [stream.key, *([item_column] if item_column is not None else [])]
        self._columns = {
            name: RequestColumn(
                name,
                dtypes.arrow_type(stream.columns[name]),
                (),
                required=False,
                fill=stream.fill.get(name),
                time=name == stream.time,
            )
            for name in dict.fromkeys(read)
        }
        self._root_names = [node.name for node in plan.nodes if node.is_root]
        at = list(self._columns)
        self._sources = self._sources_of(pipeline, at)
        self._inputs = CompiledInputs(
            InputLayout(
                list(self._columns.values()),
                [self._sources[name] for name in self._root_names],
                [at.index(lookup.on) for lookup in self._tables],
                [
                    (root.ref.n, root.ref.within_ms)
                    for root in self._histories
                    if isinstance(root.ref, RecentRef)
                ],
                at.index(stream.key),
                -1 if item_column is None else at.index(item_column),
            )
        )
        self._splits: dict[_SplitKey, _Split] = {}
        self._room = self._shared_room = _KEYS

    def extract(
        self,
        columns: RequestColumns,
        statistics: Statistics,
        row_name: Callable[[int], str],
        prefetch: Prefetch = lambda _: None,
        ended: Callable[[str], object] = lambda _: None,
    ) -> Extracted:
        """Extract the features of a request, with a single read of Redis if need be.

        Args:
            columns: of a parsed request.
            statistics: of the version that answers, of a plan that contains this plan.
            row_name: name in the request of the row with a given index, for error messages.
            prefetch: asked when Redis is read.
            ended: told the end of the stages "enrich" and "extract".

        Raises:
            RequestError: a row cannot be extracted, or the rows have too many values.
            RefusedError: Redis refuses the read.
        """
        memory = self._inputs.lend()
        call = memory.call
        split, _owners = self._given(call, columns)
        found, _read = self._enriched(memory, prefetch)
        ended("enrich")
        items = copied(call.items, np.int64, columns.size) if call.items else None
        features = self._extracted(memory, split, columns.size, statistics)
        failed, shared_failed = call.failed_rows, call.shared_failed
        self._inputs.take_back(memory)
        if failed or shared_failed:
            first = "context" if shared_failed else row_name(int(np.argmax(features.own.failed)))
            raise RequestError(first, "cannot be scored: one of its features has too many values")
        ended("extract")
        return Extracted(features, *found, items)

    # ── enrich ───────────────────────────────────────────────────────────────────────────────────────

    def _given(self, call: FeatureCall, columns: RequestColumns) -> tuple[_Split, object]:
        """Give a request's columns to a call; the second result keeps them alive."""
        call.rows, call.now_ms = columns.size, columns.now_ms
        call.slots = call.values = None
        parsed, owners = columns.parsed, None
        key: _SplitKey
        if parsed is not None:
            key = parsed.parser, parsed.parts, columns.size == 1
            call.context, call.candidates = parsed.columns_at
        else:
            key = None, frozenset(columns.candidates), columns.size == 1
            owners, parts = [], []
            for part in (columns.context, columns.candidates):
                at = (ctypes.c_void_p * len(self._columns))()
                for place, column in enumerate(self._columns.values()):
                    if column.name in part:
                        owner, at[place] = exported(_cast(part[column.name], column))
                        owners.append(owner)
                parts.append(ctypes.addressof(at))
                owners.append(at)
            call.context, call.candidates = parts
        split = self._splits.get(key) or self._split_of(columns, key)
        call.places = split.places
        return split, owners

    def _split_of(self, columns: RequestColumns, key: _SplitKey) -> _Split:
        parsed = columns.parsed
        if parsed is None:
            own = set(columns.candidates)
            places = np.arange(len(self._columns))
        else:
            at = parsed.parser.places
            own = {name for name, place in at.items() if parsed.parts[place] == Part.CANDIDATES}
            places = np.array([at.get(name, -1) for name in self._columns], np.int64)
        names = list(self._columns)
        on = [lookup.on for lookup in self._tables]

        def is_shared(source: RootSource) -> bool:
            if source.kind == HISTORY:
                return True
            return (names[source.number] if source.kind == COLUMN else on[source.number]) not in own

        # A single candidate shares with no other.
        shared = set() if columns.size == 1 else {n for n, s in self._sources.items() if is_shared(s)}
        if len(self._splits) >= _MOST_SPLITS:
            self._splits.clear()
        split = self._splits[key] = _Split(Shares(self._plan, shared), places)
        return split

    def _enriched(self, memory: FeatureMemory, prefetch: Prefetch) -> tuple[_Found, object]:
        """Join look-up rows and histories; the second result must live until the features are extracted."""
        call, rows = memory.call, self._lookup_rows
        now = time.monotonic()
        call.since = now - rows.ttl_s
        tables = rows.tables(self._tables)
        for place, table in enumerate(tables):
            memory.tables[place] = table.rows.handle
        outcome = self._inputs.enrich(memory)
        if outcome == DONE:
            return (True, min(call.oldest, now) if self._live else None, None), tables
        if outcome != MISSING_INPUTS:
            raise _failure(outcome)
        result = self._read(call, prefetch)
        current_call().check("enrich")  # a read may have taken long
        slots = [rows_of_table.slots for rows_of_table in result.rows]
        at = (ctypes.c_void_p * max(len(slots), 1))(*map(address, slots))
        for place, rows_of_table in enumerate(result.rows):
            memory.tables[place] = rows_of_table.table.rows.handle
        values = [value or b"" for value in result.histories]
        values_at = (ctypes.c_char_p * max(len(values), 1))(*values)
        sizes = np.array([*map(len, values), 0], np.int64)
        call.slots, call.values = ctypes.addressof(at), ctypes.addressof(values_at)
        call.value_bytes = address(sizes)
        outcome = self._inputs.enrich(memory)
        if outcome == BAD_HISTORY:
            with foreign_values():
                for value in values:
                    decode_history(value)
        if outcome != DONE:
            raise _failure(outcome)
        read_at = result.read_at if self._live else None
        found = result.complete, read_at, result.prefetched
        return found, (result, slots, at, values, values_at, sizes)

    def _read(self, call: FeatureCall, prefetch: Prefetch) -> LookupResult:
        """Read look-up rows and histories. Raises RefusedError."""
        count = len(self._tables)
        keys_at = (ctypes.c_void_p * count).from_address(call.keys) if count else ()
        counts = (ctypes.c_int64 * count).from_address(call.key_counts) if count else ()
        queries = []
        for lookup, at, size in zip(self._tables, keys_at, counts, strict=True):
            keys = np.empty(size, np.int64)
            ctypes.memmove(address(keys), at, keys.nbytes)
            queries.append(LookupQuery(lookup.table, keys))
        user = np.array([call.user], np.int64)
        names = [name for root in self._histories for name in self._keyspace.histories(root.name, user)]
        return self._lookup_rows.find(queries, names, prefetch(user) if call.has_user else None)

    # ── extract ──────────────────────────────────────────────────────────────────────────────────────

    def _extracted(
        self, memory: FeatureMemory, split: _Split, rows: int, statistics: Statistics
    ) -> SharedFeatures:
        plan_call, call, width = Call(self._engines.now()), memory.call, self._width
        states = self._initial_states
        if self._plan.statistics:
            arrays = statistics.of(self._plan).arrays
            states = np.array([address(array) for array in arrays], np.int64)
        own, shared = len(split.own_fields), len(split.shared_fields)
        n = rows if own or width else 1  # rows without features of their own are alike
        call.extract, call.gather, call.gather_shared = plan_call.engine.addresses
        call.context_of_plan = plan_call.context.handle
        call.shares, call.fields, call.plan_rows = split.nodes, split.flags, n
        limits = self._limits
        call.most_values, call.most_bytes, call.most_read = limits.values, limits.pool_bytes, limits.read
        own_room, shared_room = self._room, self._shared_room  # once: other threads widen them
        # One block: dense numbers, offsets and marks, then room for keys; a word each at least.
        sizes = (n * width + 1) // 2, own * n // 2 + 1, shared // 2 + 1, n // 8 + 1, own_room
        block = np.empty(sum(sizes) + shared_room, np.int64)
        at = call.dense = address(block)
        ends = tuple(itertools.accumulate(sizes))
        call.states = address(states)
        call.own_offsets, call.shared_offsets = at + 8 * ends[0], at + 8 * ends[1]
        call.failed, call.own_keys, call.shared_keys = at + 8 * ends[2], at + 8 * ends[3], at + 8 * ends[4]
        call.own_room, call.shared_room = own_room, shared_room
        shared_offsets = block[ends[1] : ends[2]].view(np.int32)[: shared + 1]
        failed = block[ends[2] : ends[3]].view(np.bool_)[:n]
        shared_offsets[:] = 0
        failed[:] = False
        outcome = self._inputs.extract(memory)
        own_keys, shared_keys = block[ends[3] :], block[ends[4] :]
        if outcome == MORE_KEYS:
            own_keys, shared_keys = np.empty(call.own_count, np.int64), np.empty(call.shared_count, np.int64)
            call.own_keys, call.own_room = address(own_keys), len(own_keys)
            call.shared_keys, call.shared_room = address(shared_keys), len(shared_keys)
            self._inputs.gather(memory)
            self._room = min(max(self._room, 2 * len(own_keys)), _MOST_ROOM)
            self._shared_room = min(max(self._shared_room, 2 * len(shared_keys)), _MOST_ROOM)
        elif outcome != DONE:
            self._refuse(outcome, rows)
        plan_call.done()
        dense = block[: ends[0]].view(np.float32)[: n * width].reshape(n, width)
        own_offsets = block[ends[0] : ends[1]].view(np.int32)[: own * n + 1]
        if n < rows:
            dense, failed = np.empty((rows, 0), np.float32), np.zeros(rows, np.bool_)
        nothing, once = np.array([call.shared_failed != 0]), shared_keys[: call.shared_count]
        return SharedFeatures(
            Features(1, shared_offsets, once, _NO_NUMBERS, _NOT_OBSERVED, nothing),
            Features(rows, own_offsets, own_keys[: call.own_count], dense, _NOT_OBSERVED, failed),
            split.shared_fields,
            split.own_fields,
        )

    def _refuse(self, outcome: int, rows: int) -> None:
        if outcome > 0:
            raise _failure(outcome)
        try:
            raise plan_failure(outcome, rows)
        except TooLargeError as error:
            raise RequestError(
                "candidates",
                f"{error}; send fewer or shorter ones (max_values is {self._most_values})",
            ) from error

    def _sources_of(self, pipeline: Pipeline, columns: list[str]) -> dict[str, RootSource]:
        """Source of each root, by its name."""
        names = {root.name for root in self._plan.roots}
        found = {
            root.name: RootSource(COLUMN, columns.index(root.ref.column))
            for root in pipeline.request_roots
            if root.name in names
        }
        for number, lookup in enumerate(self._tables):
            of_table = list(lookup.table.columns)
            for root in pipeline.lookup_roots[lookup.table.topic]:
                found[root.name] = RootSource(LOOKUP, number, of_table.index(root.ref.column))
        found |= {root.name: RootSource(HISTORY, number) for number, root in enumerate(self._histories)}
        return found


_MOST_ROOM = 1 << 16
"""Keys that there is room for at most, before it is known how many there are."""


def _cast(array: pa.Array, column: RequestColumn) -> pa.Array:
    if array.type == column.arrow:
        return array
    try:
        return array.cast(column.arrow)
    except pa.ArrowException as error:
        raise ConfigError(f"column {column.name} is {array.type}, not {column.arrow}: {error}") from error


def _failure(outcome: int) -> Exception:
    if outcome == NO_MEMORY:
        return MemoryError("no memory for the features of a request")
    return InternalError("columns of a request that do not fit the feature plan")
