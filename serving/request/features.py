"""Stages 2 and 3, enrich and extract: look-up rows and histories join a request's columns; features of these.

    columns, look-up rows in memory ─► kernels.request.features ─► features
                                             │ a row or a history must be read
                                             └─► one round trip to Redis, and the call is made again

Columns that all candidates share have 1 row, and are extracted once.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from livectr.ingest.extract.engines import Context, Engine, Engines
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
    EXTRACTED,
    FAILED_ROWS,
    HISTORY,
    LOOKUP,
    MISSING_INPUTS,
    NO_MEMORY,
    CompiledInputs,
    FeatureCall,
    FeatureMemory,
    InputLayout,
    RootSource,
    answer,
)
from livectr.kernels.request.parse import RequestColumn, RequestParser
from livectr.kernels.runtime.arrays import address, copied
from livectr.kernels.runtime.arrow import exported
from livectr.serving.deadlines import CALL
from livectr.serving.errors import RequestError, foreign_values
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.lookup_rows import LookupQuery, LookupResult, LookupRows
from livectr.serving.request.lookup_table import LookupTable
from livectr.serving.request.parse import GivenColumns, Request, RequestColumns, SelectedColumns
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64, decode_history
from livectr.system.errors import ConfigError, InternalError

_MOST_SPLITS = 256
"""Sets of candidate columns that are remembered; clients choose the columns."""
_NO_NUMBERS = np.empty((1, 0), np.float32)
_NO_COLUMNS = GivenColumns(0, {}, {}, 0)
_NOT_OBSERVED = np.empty((0, 1), np.int64)
_SplitKey = tuple[RequestParser | None, bytes | frozenset[str], bool, bool]
"""Parser of a request and the part of each column, or columns of its candidates; is there one candidate? Were
candidates selected?"""
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
        ends: instants of time.perf_counter() at which the stages "enrich" and "extract" ended.
    """

    features: SharedFeatures
    complete: bool
    read_at: float | None
    prefetched: PrefetchedRows | None
    ends: tuple[float, float]


class _Split:
    """Features of requests with the same columns of candidates: those that all rows share, and the others.

    Args:
        shares: of the plan.
        places: i64[columns], of the stream's columns among the request's.

    Attributes:
        words: what a call takes of it; they point to arrays that live as long as the split.
        shared_fields: numbers in the plan of the fields that all rows share, ascending.
        own_fields: numbers of the others, ascending.
    """

    def __init__(self, shares: Shares, places: I64) -> None:
        self._arrays = shares.nodes, shares.flags, places
        self.shared_fields, self.own_fields = shares.shared_fields, shares.own_fields
        arrays = address(places), address(shares.nodes), address(shares.flags)
        self.words = *arrays, len(self.own_fields), len(self.shared_fields)


class FeatureRun(FeatureMemory):
    """Features of a request, from its columns to the results of the compiled call.

    Its memory is used again for another request.

    Attributes:
        split: of its columns.
        columns: of the request.
        row_name: name in the request of the row with a given index, for error messages.
        began: instant of time.monotonic() at which the look-up rows were looked at.
        result: rows and histories that were read; None: nothing had to be read.
        histories: values of the plan's histories.
    """

    split: _Split

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.handles = (ctypes.c_void_p * max(tables, 1))()
        self.call.tables = ctypes.addressof(self.handles)
        self.engine: Engine | None = None
        self.context: Context | None = None
        self.columns: RequestColumns = _NO_COLUMNS
        self.row_name: Callable[[int], str] = str
        self.began = 0.0
        self.result: LookupResult | None = None
        self.histories: list[bytes] = []
        self.tables: list[LookupTable] = []
        self.owners: object = None

    def use(self, engine: Engine) -> None:
        """Extract with an engine."""
        self.engine, self.context, call = engine, Context(engine), self.call
        call.extract, call.gather, call.gather_shared = engine.addresses
        call.context_of_plan = self.context.handle

    def give_histories(self, values: list[bytes | None]) -> None:
        """Give the values of the plan's histories."""
        self.histories = [value or b"" for value in values]
        values_at = (ctypes.c_char_p * max(len(values), 1))(*self.histories)
        sizes = np.array([*map(len, self.histories), 0], np.int64)
        self.call.values, self.call.value_bytes = ctypes.addressof(values_at), address(sizes)
        self.owners = self.owners, values_at, sizes

    def features(self) -> SharedFeatures:
        """Copy of the features that were extracted."""
        call, rows = self.call, self.call.rows
        n = rows if call.own or call.width else 1
        dense = copied(call.dense, np.float32, n * call.width).reshape(n, call.width)
        own_offsets = copied(call.own_offsets, np.int32, call.own * n + 1)
        own_keys = copied(call.own_keys, np.int64, call.own_count)
        shared_offsets = copied(call.shared_offsets, np.int32, call.shared + 1)
        shared_keys = copied(call.shared_keys, np.int64, call.shared_count)
        if n < rows:
            dense = np.empty((rows, 0), np.float32)
        return SharedFeatures(
            Features(1, shared_offsets, shared_keys, _NO_NUMBERS, _NOT_OBSERVED, np.zeros(1, np.bool_)),
            Features(rows, own_offsets, own_keys, dense, _NOT_OBSERVED, np.zeros(rows, np.bool_)),
            self.split.shared_fields,
            self.split.own_fields,
        )


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
        read += [name for lookup in self._tables for name in lookup.keys]
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
                [[at.index(name) for name in lookup.keys] for lookup in self._tables],
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
        self._idle: list[FeatureRun] = []

    # ── for compiled calls that continue with the features ───────────────────────────────────────────

    def begin(
        self, columns: RequestColumns, statistics: Statistics, row_name: Callable[[int], str]
    ) -> FeatureRun:
        """Give a request's columns to a compiled call.

        Args:
            columns: of a request.
            statistics: of the version that answers, of a plan that contains this plan.
            row_name: name in the request of the row with a given index, for error messages.

        Returns:
            The run, for `end`. One that is not ended frees its memory.
        """
        try:
            run = self._idle.pop()  # of several threads one gets the last
        except IndexError:
            run = self._new_run()
        call, rows = run.call, self._lookup_rows
        call.rows, call.now_ms, call.extracted = columns.size, columns.now_ms, 0
        call.slots = call.values = None
        if isinstance(columns, Request):
            key: _SplitKey = (columns.parser, columns.parts, columns.size == 1, False)
            call.context, call.candidates = columns.columns_at
        elif isinstance(columns, SelectedColumns):
            key = (columns.request.parser, columns.request.parts, columns.size == 1, True)
            call.context, call.candidates = columns.columns_at
        else:
            key = (None, frozenset(columns.candidates), columns.size == 1, False)
            call.context, call.candidates = self._given(run, columns)
        split = self._splits.get(key) or self._split_of(columns, key)
        call.places, call.shares, call.fields, call.own, call.shared = split.words
        run.split, run.columns, run.row_name = split, columns, row_name
        run.began = now = time.monotonic()
        call.since = now - rows.ttl_s
        if self._tables:
            run.tables = rows.tables(self._tables)
            for place, table in enumerate(run.tables):
                run.handles[place] = table.rows.handle
        if (engine := self._engines.now()) is not run.engine:
            run.use(engine)
        if self._plan.statistics:
            call.states = self._states_of(run, statistics)
        return run

    @property
    def engine(self) -> Engine:
        """Engine of the next request."""
        return self._engines.now()

    @property
    def tables(self) -> list[LookupTable]:
        """Look-up rows in memory."""
        return self._lookup_rows.tables(self._tables)

    @property
    def reads_histories(self) -> bool:
        """True if every request reads Redis."""
        return bool(self._histories)

    def prepared(self, run: FeatureRun, tables: list[LookupTable]) -> tuple[FeatureCall, object]:
        """Arguments of a call for requests like that of a run, whose inputs are in memory.

        Args:
            run: of a request that was answered.
            tables: `tables`.

        Returns:
            The arguments besides those of a request and of an engine's memory, and what they refer to.
        """
        handles = (ctypes.c_void_p * max(len(tables), 1))(*(table.rows.handle for table in tables))
        call = FeatureCall.from_buffer_copy(run.call)
        call.memory = call.context_of_plan = call.context = call.candidates = None
        call.slots = call.values = None
        call.extracted, call.tables = 0, ctypes.addressof(handles)
        return call, (self, run.split, run.engine, run.owners, handles)

    def read(
        self, run: FeatureRun, prefetch: Prefetch, beside: tuple[RequestFeatures, FeatureRun] | None = None
    ) -> PrefetchedRows | None:
        """Read the inputs that a call misses, and give them to it.

        Args:
            run: whose call has failed.
            prefetch: asked when Redis is read.
            beside: run of another plan for the same user, which gets its histories in the same round trip.

        Returns:
            Embedding rows that were read in the same round trip; None: no prefetch, or Redis was down.

        Raises:
            RequestError: a row cannot be extracted, or the rows have too many values.
            RefusedError: Redis refuses the read.
        """
        call, outcome = run.call, run.call.outcome
        if outcome != MISSING_INPUTS or run.result is not None:
            self._refuse(run, outcome)
        names = self._history_names(run)
        others = [] if beside is None else beside[0]._history_names(run)
        more = [name for name in others if name not in names]
        run.result = result = self._read(run, prefetch, [*names, *more])
        CALL.get().check("enrich")  # a read may have taken long
        slots = [found.slots for found in result.rows]
        at = (ctypes.c_void_p * max(len(slots), 1))(*map(address, slots))
        for place, found in enumerate(result.rows):
            run.handles[place] = found.table.rows.handle
        call.slots = ctypes.addressof(at)
        run.owners = run.owners, slots, at
        histories = dict(zip([*names, *more], result.histories, strict=True))
        run.give_histories([histories[name] for name in names])
        if beside is not None and others:
            beside[1].give_histories([histories[name] for name in others])
        return result.prefetched

    def _history_names(self, run: FeatureRun) -> list[bytes]:
        """Keys in Redis of the plan's histories of a run's user."""
        user = np.array([run.call.user], np.int64)
        return [name for root in self._histories for name in self._keyspace.histories(root.name, user)]

    def end(self, run: FeatureRun) -> tuple[bool, float | None]:
        """Keep a run's memory for another request; its results go away.

        Returns:
            `complete` and `read_at`, as `Extracted` has them.
        """
        call, result, engine = run.call, run.result, run.engine
        assert engine is not None
        engine.spent_s += call.extracted_at - call.enriched_at
        oldest = min(call.oldest, run.began) if result is None else result.read_at
        run.result = run.owners = None
        run.tables, run.columns, run.row_name, run.histories = [], _NO_COLUMNS, str, []
        run.clear()
        self._idle.append(run)
        return result is None or result.complete, oldest if self._live else None

    # ── features alone ───────────────────────────────────────────────────────────────────────────────

    def extract(
        self,
        columns: RequestColumns,
        statistics: Statistics,
        row_name: Callable[[int], str],
        prefetch: Prefetch = lambda _: None,
    ) -> Extracted:
        """Extract the features of a request, with a single read of Redis if need be.

        Args:
            columns: of a parsed request.
            statistics: of the version that answers, of a plan that contains this plan.
            row_name: name in the request of the row with a given index, for error messages.
            prefetch: asked when Redis is read.

        Raises:
            As `read`.
        """
        run, prefetched = self.begin(columns, statistics, row_name), None
        while answer(run) != EXTRACTED:
            prefetched = self.read(run, prefetch)
        call, features = run.call, run.features()
        ends = call.enriched_at, call.extracted_at
        complete, read_at = self.end(run)
        return Extracted(features, complete, read_at, prefetched, ends)

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────

    def _new_run(self) -> FeatureRun:
        run = FeatureRun(len(self._tables))
        call, limits = run.call, self._limits
        call.plan, call.width, call.states = self._inputs.handle, self._width, address(self._initial_states)
        call.most_values, call.most_bytes, call.most_read = limits.values, limits.pool_bytes, limits.read
        return run

    def _given(self, run: FeatureRun, columns: GivenColumns) -> list[int]:
        """Addresses of columns that no request has; the run keeps them alive."""
        owners: list[object] = []
        parts = []
        for part in (columns.context, columns.candidates):
            at = (ctypes.c_void_p * len(self._columns))()
            for place, column in enumerate(self._columns.values()):
                if column.name in part:
                    owner, at[place] = exported(_cast(part[column.name], column))
                    owners.append(owner)
            parts.append(ctypes.addressof(at))
            owners.append(at)
        run.owners = owners
        return parts

    def _states_of(self, run: FeatureRun, statistics: Statistics) -> int:
        """Address of the addresses of the running statistics; the run keeps them alive."""
        arrays = statistics.of(self._plan).arrays
        states = np.array([address(array) for array in arrays], np.int64)
        run.owners = run.owners, arrays, states
        return address(states)

    def _split_of(self, columns: RequestColumns, key: _SplitKey) -> _Split:
        if isinstance(columns, GivenColumns):
            own = set(columns.candidates)
            places = np.arange(len(self._columns))
        elif isinstance(columns, SelectedColumns):
            at = columns.request.parser.places
            own = {columns.name}
            places = np.array(
                [columns.place if name == columns.name else at.get(name, -1) for name in self._columns],
                np.int64,
            )
        else:
            at = columns.parser.places
            own = {name for name in at if columns.has_candidate(name)}
            places = np.array([at.get(name, -1) for name in self._columns], np.int64)
        names = list(self._columns)
        on = [lookup.keys for lookup in self._tables]

        def is_shared(source: RootSource) -> bool:
            if source.kind == HISTORY:
                return True
            read = [names[source.number]] if source.kind == COLUMN else on[source.number]
            return own.isdisjoint(read)

        # A single candidate shares with no other.
        shared = set() if columns.size == 1 else {n for n, s in self._sources.items() if is_shared(s)}
        if len(self._splits) >= _MOST_SPLITS:
            self._splits.clear()
        split = self._splits[key] = _Split(Shares(self._plan, shared), places)
        return split

    def _read(self, run: FeatureRun, prefetch: Prefetch, names: list[bytes]) -> LookupResult:
        """Read look-up rows, and histories by their names. Raises RefusedError."""
        call, count = run.call, len(self._tables)
        keys_at = (ctypes.c_void_p * count).from_address(call.keys) if count else ()
        counts = (ctypes.c_int64 * count).from_address(call.key_counts) if count else ()
        queries = []
        for lookup, at, size in zip(self._tables, keys_at, counts, strict=True):
            keys = np.empty(size, np.int64)
            ctypes.memmove(address(keys), at, keys.nbytes)
            queries.append(LookupQuery(lookup.table, keys))
        wanted = prefetch(np.array([call.user], np.int64)) if call.has_user else None
        return self._lookup_rows.find(queries, names, wanted)

    def _refuse(self, run: FeatureRun, outcome: int) -> NoReturn:
        """Raise the error of a call that has no features."""
        if outcome == FAILED_ROWS:
            n = run.call.rows if run.call.own or run.call.width else 1
            failed = copied(run.call.failed, np.bool_, n)
            first = "context" if run.call.shared_failed else run.row_name(int(np.argmax(failed)))
            raise RequestError(first, "cannot be scored: one of its features has too many values")
        if outcome == BAD_HISTORY:
            with foreign_values():
                for value in run.histories:
                    decode_history(value)
        if outcome == NO_MEMORY:
            raise MemoryError("no memory for the features of a request")
        if outcome > 0:
            raise InternalError("columns of a request that do not fit the feature plan")
        try:
            raise plan_failure(outcome, run.call.rows)
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


def _cast(array: pa.Array, column: RequestColumn) -> pa.Array:
    if array.type == column.arrow:
        return array
    try:
        return array.cast(column.arrow)
    except pa.ArrowException as error:
        raise ConfigError(f"column {column.name} is {array.type}, not {column.arrow}: {error}") from error
