"""Plain requests: what a version needs to answer them without the interpreter.

    request ─► Answers ─► reply
                  │ its shape is not prepared for the served version
                  └─► Python answers ─► PlainRequests.offer ─► the next request of the shape is answered there

A state belongs to a version with its near-cache, look-up tables, store of partial results and engine. All are
dropped before one of these is replaced, so that a reply never is older than a reply before it.
"""

from __future__ import annotations

import math
import operator
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from livectr.ingest.extract.engines import Engine
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.request.answer import (
    HISTOGRAMS,
    STAGES,
    Answers,
    AnswerSlots,
    Prepared,
    Selecting,
    Shape,
)
from livectr.kernels.request.score import Snapshot
from livectr.kernels.request.select import Selector
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.canary import STABLE
from livectr.serving.errors import NotReadyError
from livectr.serving.request.features import FeatureRun
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import Request, RequestReader
from livectr.serving.score.item_partials import ItemPartials
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import FieldOrder, PlanStages
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache

_MOST_SHAPES = 256
"""Shapes that are prepared at a time; clients choose them."""
_NO_BOUNDS = np.empty(0)


@dataclass(frozen=True)
class PlainScores:
    """Compiled call that answers requests of a shape at a version, and its replies.

    Args:
        snapshot: that scores or selects.
        order: of the request's fields.
        reply_fields: address of the numbers of the reply's fields.
        model: name of the version's model.
        message: class of the replies.
        every: one request of so many is Python's, by its `sample`; 0: none.
    """

    snapshot: Snapshot | Selector
    order: FieldOrder
    reply_fields: int
    model: str
    message: type[pb.RankResponse] | type[pb.PreRankResponse]
    every: int = 0


class PlainRequests:
    """Prepares the plain requests of a method, and counts those that were answered.

    Args:
        role: of the method; "rank" has click probabilities.
        reader: of the requests.
        needs_bids: requests without bids are no plain ones.
        selecting: bounds of requests for items; of rank they are not used.

    Attributes:
        answers: to the requests.
    """

    def __init__(
        self,
        role: str,
        pipeline: Pipeline,
        follower: VersionFollower,
        reader: RequestReader,
        rows: LookupRows,
        *,
        needs_bids: bool,
        selecting: Selecting = Selecting(0, 0),  # noqa: B008
    ) -> None:
        self._role, self._follower, self._ttl_s = role, follower, rows.ttl_s
        self._needs_bids, self._selecting = needs_bids, selecting
        self._fields = {name: number for number, name in enumerate(pipeline.plan.fields)}
        bounds = {stage: metrics.STAGE_SECONDS.bounds for stage in STAGES}
        bounds |= {
            "request": metrics.REQUEST_SECONDS.bounds,
            "live_age": metrics.LIVE_AGE.bounds,
            "live_skew": metrics.LIVE_SKEW.bounds,
            "pctr": metrics.SERVED_PCTR.bounds if role == "rank" else _NO_BOUNDS,
        }
        assert tuple(bounds) == HISTOGRAMS
        self.answers = Answers(reader.parser, len(self._fields), bounds)
        self._lock = threading.Lock()
        self._shapes: dict[Shape, tuple[object, ...]] = {}
        self._left: tuple[weakref.ref[ModelVersion], weakref.ref[NearCache]] | None = None
        self._slots: dict[Engine, AnswerSlots] = {}
        self._plan: PlanStages | None = None
        follower.on_change(lambda _: self._leave())
        rows.on_moved(self._clear)
        metrics.SOURCES.append(weakref.WeakMethod(self.count))

    def offer(
        self,
        request: Request,
        lookup: VersionLookup,
        plan: PlanStages,
        run: FeatureRun,
        scores: Callable[[], PlainScores],
        store: ItemPartials | None = None,
    ) -> None:
        """Prepare the shape of a request that Python has answered in one compiled call.

        Args:
            request: plain or not.
            lookup: version that answered.
            plan: of the run's features.
            run: features of the request.
            scores: gives the call that has answered.
            store: has the partial results of the candidates' items; None: none are kept.
        """
        engine, tables = run.engine, plan.features.tables
        assert engine is not None
        shape = Shape(request.parts, request.size == 1)
        parts = (lookup.version, lookup.cache, engine, store, *tables)
        known = self._shapes.get(shape)
        if known is not None and len(known) == len(parts) and all(map(operator.is_, known, parts)):
            return  # it was no plain request, or a row was not in memory
        call, owners = plan.features.prepared(run, tables)
        found, manifest = scores(), lookup.version.manifest
        head = found.message(version=manifest.version, model=found.model, side=STABLE)
        with self._lock:
            if not self._stays(lookup) or plan.features.tables != tables:
                return
            if len(self._shapes) >= _MOST_SHAPES:
                self._forget()
            if engine not in self._slots:
                create, destroy, words = engine.context_calls
                # Plans have one engine at a time, or soon have.
                self._slots = {engine: AnswerSlots(create, destroy, words, engine)}
            self._plan = plan
            self._shapes[shape] = parts
            self.answers.prepare(
                shape,
                Prepared(
                    version=manifest.version,
                    created_ms=manifest.created_ms,
                    snapshot=found.snapshot,
                    partials=None if store is None else store.partials,
                    slots=self._slots[engine],
                    features=call,
                    live=bool(tables),
                    ttl_s=self._ttl_s,
                    ends_at=math.inf if store is None else store.made_at + self._ttl_s,
                    most_pairs=plan.most_pairs,
                    reply_fields=found.reply_fields,
                    head=head.SerializeToString(),
                    fields=[self._fields[name] for name, _ in found.order.fields],
                    owners=(parts, owners),
                    needs_bids=self._needs_bids,
                    selecting=self._selecting,
                    every=found.every,
                ),
            )

    def count(self) -> None:
        """Count the requests that were answered since the last call in the metrics."""
        with self._lock:
            self.answers.collect()
            totals = self.answers.take()
            plan = self._plan
            if plan is not None and plan.features.engine not in self._slots:  # the fused plan is compiled
                self._forget()
        if not totals.requests:
            return
        role = self._role
        for stage in STAGES:
            metrics.STAGE_SECONDS.labels(role, stage).add(*totals.histograms[stage])
        metrics.REQUEST_SECONDS.labels(role, "OK").add(*totals.histograms["request"])
        metrics.REQUESTS.labels(role, "OK").inc(totals.requests)
        metrics.CANDIDATES.labels(role).inc(totals.rows)
        metrics.LIVE_AGE.labels(role).add(*totals.histograms["live_age"])
        metrics.LIVE_SKEW.labels(role).add(*totals.histograms["live_skew"])
        if role == "rank":
            metrics.ITEM_PARTIALS.labels("kept").inc(totals.kept)
            metrics.SERVED_PCTR.add((role, STABLE), *totals.histograms["pctr"])
        metrics.NEAR_CACHE_HITS.labels().inc(totals.unique)
        for name, number in self._fields.items():
            keys, fresh = int(totals.keys[number]), int(totals.fresh[number])
            if keys:
                metrics.observe_keys(name, published=keys - fresh, initial=fresh)
        if plan is not None:
            plan.features.engine.spent_s += totals.histograms["extract"][1]

    def _leave(self) -> None:
        """Drop what is prepared, before another version is served, or its rows are emptied."""
        with self._lock:
            try:
                version, cache = self._follower.served()
                self._left = weakref.ref(version), weakref.ref(cache)
            except NotReadyError:
                pass
            self._forget()

    def _stays(self, lookup: VersionLookup) -> bool:
        """Tell if a version with its rows is served, and is not being replaced; the caller holds the lock."""
        version, cache = self._follower.served()
        if lookup.version is not version or lookup.cache is not cache:
            return False
        left = self._left
        return left is None or left[0]() is not version or left[1]() is not cache

    def _clear(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._shapes.clear()
        self.answers.clear()
