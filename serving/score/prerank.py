"""Pre-rank server: the best few of many items, by ⟨user vector, item vector⟩, or by what they are worth.

    value = worth · logistic(⟨user vector, item vector⟩ + b)     with bids, or a `value` of the pipeline

    parse ─► enrich ─► extract ─► look up ─► score
             └────────── at one version ─────────┘

A version holds the item vectors as a matrix. An item without a vector is newer than the version, or in no
table. The item tower of the version scores it from its features, so it can be selected too.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language.keys import key_of
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import U32
from livectr.kernels.network.reply import pack_texts
from livectr.kernels.network.retrieval import Selection
from livectr.kernels.request.answer import Selecting
from livectr.kernels.request.parse import Code, ItemValues
from livectr.kernels.request.select import SelectionFields, Wanted
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics, tracing
from livectr.serving.calls import RequestCall
from livectr.serving.canary import SIDE
from livectr.serving.deadlines import CALL
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.reply import Reply, mark_degraded
from livectr.serving.request.features import FeatureRun
from livectr.serving.request.inline_content import InlineContent, parse_content
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows, followed_rows
from livectr.serving.request.lookup_table import LookupRoot
from livectr.serving.request.parse import GivenColumns, Request, RequestColumns, RequestSchema
from livectr.serving.request.sentences import long_string
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.one_call import Ranking, select_items
from livectr.serving.score.plain import PlainRequests, PlainScores
from livectr.serving.score.plan_stages import PlanStages, Sources
from livectr.serving.score.tower_scorer import SIDES, TowerScorer, tower_part, tower_scorer
from livectr.serving.score.values import F64, Valuer
from livectr.serving.version.follower import VersionFollower
from livectr.store.layout import F32, I64
from livectr.system.errors import ConfigError

ROLE = "prerank"
_FIELDS = pb.PreRankResponse.DESCRIPTOR.fields_by_name
_INDEX, _IDS, _NAMES, _SCORE, _VALUE = (
    _FIELDS[name].number for name in ("index", "ids", "names", "score", "value")
)
_VALUES = pb.Int64s.DESCRIPTOR.fields_by_name["values"].number
_TEXTS = pb.Strings.DESCRIPTOR.fields_by_name["values"].number


@dataclass(frozen=True)
class PreRankQuery:
    """Parsed request.

    Args:
        candidates: ids or names of n items; None: the whole catalogue.
        keys: i64[n], their keys.
        content: inline content.
        bids: f64[n], worths of the items; None: those of the version, if the pipeline has a value.
        excluded: u32[m], ascending rows of the scored version's catalogue that are not wanted.
    """

    request_id: str
    columns: RequestColumns
    top_k: int
    candidates: pa.Array | None
    keys: I64 | None
    content: InlineContent
    bids: F64 | None = None
    excluded: U32 = field(default_factory=lambda: np.empty(0, np.uint32))


class PreRankScores(NamedTuple):
    """Best m of the items at a version, best first.

    Args:
        size: number of the items.
        best: their positions in the candidates, or in the catalogue, and their scores.
        keys: i64[m], their keys.
        unknown: items without a published vector.
        complete: False if a row may be missing.
        reply: fields of the reply without names, on the wire; empty: they are not packed.
    """

    version: int
    size: int
    best: Selection
    keys: I64
    unknown: int
    complete: bool
    reply: bytes = b""


class PreRanker:
    """Answers PreRankRequests at the version that its follower serves.

    Args:
        lookup_rows: cache of look-up rows; None: an own one.

    Attributes:
        named: whether items are known by strings.
        item_column: column of the impression stream that names the item.
        valuer: finds what items are worth; None: the pipeline has no value.
        plain: answers plain requests without the interpreter; None: items have names, or each request is
            traced or reads histories.

    Raises:
        ConfigError: the pipeline has no pre-rank model.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        follower: VersionFollower,
        options: ServeOptions,
        lookup_rows: LookupRows | None = None,
    ) -> None:
        if pipeline.items is None:
            raise ConfigError("pre-rank needs items=, the look-up table of the items")
        self._items = pipeline.items
        self.item_column = next(
            lk.on for lk in pipeline.log.lookups if lk.table.topic == pipeline.items.topic
        )
        self.named = pipeline.items.columns[pipeline.items.key] == "string"
        self._follower = follower
        self._limits = limits = RequestLimits.of(options)
        self._lookup_rows = lookup_rows or followed_rows(follower, options.lookup_ttl_s)
        sources = Sources(pipeline, limits, follower.reader, self._lookup_rows)
        user, item = (tower_part(pipeline, side) for side in SIDES)
        self._user = PlanStages(sources, user, lambda version: tower_scorer(version).reads["user"])
        self._item = PlanStages(sources, item, lambda version: tower_scorer(version).reads["item"])
        items = pipeline.items
        self._roots = functools.cache(lambda column: LookupRoot.of(items[column]))
        self._reply_fields = SelectionFields(_INDEX, 0 if self.named else _IDS, _VALUES, _SCORE, _VALUE)
        self.valuer = Valuer.of(pipeline, self._lookup_rows)
        self.schema = RequestSchema(pipeline, user.plan.roots, limits, pb.PreRankRequest)
        self.model = f"{type(pipeline.prerank).__name__}/{pipeline.fingerprint[:12]}"
        self.plain: PlainRequests | None = None
        here = self.named or tracing.TRACER is not None
        if not here and not self._user.features.reads_histories:
            self.plain = PlainRequests(
                *(ROLE, pipeline, follower, self.schema.reader, self._lookup_rows),
                needs_bids=self.valuer is not None and self.valuer.worths.needs_bids,
                selecting=Selecting(limits.candidates, limits.top_k),
            )

    def prerank(self, request: Request, call: RequestCall) -> Reply:
        """Answer a PreRankRequest: parse → enrich → extract → look up → score.

        Args:
            request: as the schema reads it.
            call: of the client.

        Returns:
            PreRankResponse, whose numbers all come from the same version.

        Raises:
            AnswerError: the status that the client receives.
        """
        query = self._query(request)
        call.ends.append(("parse", time.perf_counter()))
        scores = at_one_version(
            self._follower,
            call,
            lambda lookup: self.scores(lookup, query, call, self._reply_fields),
            request.version,
        )
        reply = self._reply(query, scores, call)
        call.ends.append(("respond", end := time.perf_counter()))
        if call.deadline is not None and end >= call.deadline:
            call.check("respond", call.ends)
        return reply

    def scores(
        self,
        lookup: VersionLookup,
        query: PreRankQuery,
        call: RequestCall,
        fields: SelectionFields | None = None,
        ranking: Ranking | None = None,
    ) -> PreRankScores:
        """Score candidates at a version: enrich → extract → look up → score.

        Args:
            lookup: version that answers.
            query: parsed request.
            call: of the client.
            fields: of a packed reply; None: no reply is packed.
            ranking: of the best items, which the same compiled call begins; None: they are not ranked.

        Raises:
            AnswerError: the status that the client receives.
            SupersededError: a row is newer than the version.
        """
        version, user = lookup.version, self._user
        scorer = tower_scorer(version)
        run = user.features.begin(query.columns, scorer.reads["user"].statistics, lambda _: "context")

        def cold(unknown: npt.NDArray[np.bool_]) -> tuple[F32, F32 | None, bool]:
            assert query.candidates is not None  # all items of the catalogue have vectors
            items = query.candidates.filter(pa.array(unknown))
            vectors, complete = self._cold_vectors(lookup, items, query.content)
            valued = self.valuer is not None and query.bids is None
            worths = self.valuer.cold(key_of(items)) if self.valuer is not None and valued else None
            return vectors, worths, complete

        wanted = Wanted(query.top_k, query.keys, query.excluded, fields, query.bids)
        content = query.content
        selected, complete = select_items(lookup, scorer, user, run, call, wanted, cold, content, ranking)
        if self.plain is not None and fields is not None and isinstance(query.columns, Request):
            self._offer(self.plain, query.columns, lookup, scorer, run)
        read, read_at = user.features.end(run)
        call.read_live(read_at, version.manifest.created_ms)
        if query.keys is not None:
            size = len(query.keys)
        else:
            items = version.items
            size = (0 if items is None else len(items)) - len(query.excluded)
        complete = complete and read and lookup.complete
        best, keys = selected.best
        reply = selected.reply() if fields is not None else b""
        return PreRankScores(version.number, size, best, keys, selected.unknown_count, complete, reply)

    def _offer(
        self,
        plain: PlainRequests,
        request: Request,
        lookup: VersionLookup,
        scorer: TowerScorer,
        run: FeatureRun,
    ) -> None:
        """Offer a request that was answered in one compiled call."""

        def scores() -> PlainScores:
            shared, own = run.split.shared_fields, run.split.own_fields
            order = self._user.order(shared, own, scorer.reads["user"].sequences)
            snapshot = scorer.snapshot(lookup.version, lookup.cache, order)
            return PlainScores(snapshot, order, self._reply_fields.at, self.model, pb.PreRankResponse)

        plain.offer(request, lookup, self._user, run, scores)

    # ── stages ───────────────────────────────────────────────────────────────────────────────────────

    def _query(self, request: Request) -> PreRankQuery:
        columns = request if request.code == Code.GOOD else request.columns
        top_k = request.top_k
        if top_k < 1:
            raise RequestError("top_k", "must be at least 1")
        if top_k > self._limits.top_k:
            raise RequestError(
                "top_k", f"is {top_k}; this server gives at most {self._limits.top_k} items (max_top_k)"
            )
        candidates = self.check_items(request.items)
        widths = self._follower.contents.widths
        content = parse_content(request.content, widths) if request.contents else {}
        keys = None if candidates is None else key_of(candidates)
        bids = self.check_bids(request)
        return PreRankQuery(request.request_id, columns, top_k, candidates, keys, content, bids)

    # ── parts of the stages ──────────────────────────────────────────────────────────────────────────

    def check_items(self, items: ItemValues | None, prefix: str = "") -> pa.Array | None:
        """Item ids or names of a request; None: it has none.

        Args:
            items: as they were read.
            prefix: of the field's name.

        Raises:
            RequestError: names the wrong field.
        """
        if items is None:
            return None
        field, expected = f"{prefix}{items.kind}", "names" if self.named else "ids"
        if items.kind != expected:
            dtype = self._items.columns[self._items.key]
            raise RequestError(field, f"the items are known by {dtype}; send {prefix}{expected}")
        if not prefix and not len(items.array):
            raise RequestError(field, "is empty: send at least one item, or leave the field out for all")
        if len(items.array) > (most := self._limits.candidates):
            raise RequestError(
                field, f"holds {len(items.array)} items; this server takes at most {most} (max_candidates)"
            )
        if items.longest > self._limits.string_bytes:
            raise RequestError(field, long_string(items.longest, self._limits))
        return items.array

    def check_bids(self, request: Request) -> F64 | None:
        """Bids f64[n] of a request's items; None: it has none. Raises RequestError: it needs them."""
        bids = request.bids if request.bids_size else None
        if self.valuer is not None:
            self.valuer.check(bids, named=request.items is not None)
        return bids

    def _cold_vectors(
        self, lookup: VersionLookup, items: pa.Array, inline: InlineContent
    ) -> tuple[F32, bool]:
        """Vectors f32[m, out] of m items without a published vector, from their features.

        The second result is False if look-up rows may be missing.
        """
        columns = GivenColumns(len(items), {}, {self.item_column: items}, 0)
        inputs = self._item.inputs(lookup, columns, inline, lambda i: f"item {items[i]}")
        CALL.get().check("look_up")
        vectors = tower_scorer(lookup.version).items(inputs.vectors.own, inputs.dense, inputs.content)
        return vectors, inputs.complete

    def _reply(self, query: PreRankQuery, scores: PreRankScores, call: RequestCall) -> Reply:
        call.counts.append((metrics.CANDIDATES, (ROLE, SIDE.get()), scores.size))
        response = pb.PreRankResponse(
            request_id=query.request_id, version=scores.version, model=self.model, unknown=scores.unknown
        )
        packed, complete = scores.reply, scores.complete
        if self.named:
            names, names_complete = self.names(query, scores)
            packed += pack_texts(names, _NAMES, _TEXTS)
            complete = complete and names_complete
        if not complete:
            mark_degraded(response, ROLE, self._follower.reader.problem)
        return Reply(response, packed)

    def names(self, query: PreRankQuery, scores: PreRankScores) -> tuple[pa.Array, bool]:
        """Names of the best items, of the catalogue from their look-up rows: "" for a missing row.

        Returns:
            The names; False if rows may be missing.
        """
        if query.candidates is not None:
            return query.candidates.take(pa.array(scores.best.positions)), True
        names, complete = self.item_values(self._items.key, scores.keys)
        return names.cast(pa.string()).fill_null(""), complete

    def item_values(self, column: str, keys: I64) -> tuple[pa.Array, bool]:
        """Column of the items' look-up rows, null for a missing row; False if rows may be missing."""
        root = self._roots(column)
        result = self._lookup_rows.find([LookupQuery(self._items, keys)])
        return result.rows[0].columns([root])[root.name], result.complete
