"""Requests, in Protobuf or in the front's JSON: they are parsed, or an error names the field."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from livectr.client.failures import CallError
from livectr.client.pack import column_of, content_of, set_items
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.front.requests import METHODS
from livectr.serving.limits import RequestLimits
from livectr.serving.request.parse import GivenColumns, Request, RequestSchema
from livectr.serving.score.prerank import PreRanker
from livectr.serving.score.rank import Ranker
from livectr.serving.score.recommend import Recommender
from livectr.system.errors import LiveCTRError
from tests.serving.display_pipeline import pipeline
from tests.serving.hostile_pipeline import pipeline as hostile

LIMITS = RequestLimits(candidates=50, list=20, string_bytes=100, top_k=40)
_TYPES = {
    **pipeline.log.impressions.columns,
    "bytes": "binary",
    "flag": "bool",
    "x": "float32",
    "ids": "list<int64>",
}


def _with(kind: type, **fields: Any) -> Any:
    """Object of a class without what its constructor connects to."""
    made: Any = object.__new__(kind)
    follower = SimpleNamespace(contents=SimpleNamespace(widths={"images": 3}))
    for name, value in {"_limits": LIMITS, "_follower": follower, **fields}.items():
        setattr(made, name, value)
    return made


@cache
def _rankers() -> list[Any]:
    return [_with(Ranker, schema=RequestSchema(p, p.plan.roots, LIMITS)) for p in (pipeline, hostile)]


@cache
def _preranker() -> Any:
    schema = RequestSchema(pipeline, pipeline.plan.roots, LIMITS, pb.PreRankRequest)
    known: Any = dict(schema=schema, named=False, item_column="ad_id", _items=pipeline.items)
    return _with(PreRanker, **known, valuer=None)


@cache
def _recommender() -> Any:
    schema = RequestSchema(pipeline, pipeline.plan.roots, LIMITS, pb.RecommendRequest, item_column="ad_id")
    made = _with(Recommender, schema=schema, _preranker=_preranker(), _items=pipeline.items)
    made._ranker = SimpleNamespace(valuer=None)
    made.item = SimpleNamespace(name="ad_id", dtype="int64")
    made._item_type = column_of_type("int64")
    return made


def column_of_type(dtype: str) -> Any:
    """Arrow type of a column."""
    from livectr.ingest.language.dtypes import arrow_type

    return arrow_type(dtype)


def _check(columns: Request | GivenColumns) -> None:
    for part, rows in ((columns.context, 1), (columns.candidates, columns.size)):
        for name, array in part.items():
            array.validate(full=True)
            assert len(array) == rows and array.null_count == 0, name
    assert 1 <= columns.size <= LIMITS.candidates
    assert -(1 << 63) <= columns.now_ms < 1 << 63


def _read(answers: Any, data: bytes) -> Request:
    """Request as the server reads it. Raises RequestError."""
    request: Request = answers.schema.reader.read(data)
    assert request.message.request_id == request.request_id  # protobuf takes it, too
    return request


def rank_request(data: bytes) -> None:
    """A RankRequest for two pipelines."""
    for ranker in _rankers():
        try:
            request = _read(ranker, data)
            query, bids = ranker._query(request), request.bids
        except RequestError:
            continue
        _check(query.columns)
        assert bids.shape == (query.columns.size,) and (bids >= 0).all()
        for rows in query.content.values():
            assert all(row.shape == (3,) and np.isfinite(row).all() for row in rows.values())


def prerank_request(data: bytes) -> None:
    """A PreRankRequest."""
    try:
        query = _preranker()._query(_read(_preranker(), data))
    except RequestError:
        return
    _check(query.columns)
    assert 1 <= query.top_k <= LIMITS.top_k
    assert query.keys is None or 1 <= len(query.keys) <= LIMITS.candidates
    assert query.bids is None or (query.keys is not None and query.bids.shape == query.keys.shape)


def recommend_request(data: bytes) -> None:
    """A RecommendRequest."""
    try:
        query = _recommender()._query(_read(_recommender(), data))
    except RequestError:
        return
    _check(query.prerank.columns)
    assert 1 <= query.top_k <= query.prerank.top_k <= LIMITS.top_k
    if query.prerank.keys is not None:
        assert not np.isin(query.prerank.keys, query.excluded).any()
        assert query.prerank.bids is None or query.prerank.bids.shape == query.prerank.keys.shape


class _Client:
    """Client of the front that packs requests, and sends none."""

    def column_types(self, *, timeout_s: float) -> dict[str, str]:
        return _TYPES

    def pinned(self, version: int) -> _Client:
        _sent(pb.RankRequest(version=version))
        return self

    def on_side(self, side: str) -> _Client:
        _sent(pb.RankRequest(side=side))
        return self

    def explain(
        self,
        context: Any,
        candidates: Any,
        bids: Any,
        *,
        best: int,
        content: Any,
        request_id: str,
        timeout_s: float,
    ) -> Any:
        self._pack(context, candidates, content)
        request = _sent(pb.RankRequest(bids=bids, request_id=request_id, explain=best))
        return pb.RankResponse(request_id=request.request_id)

    def prerank(
        self,
        context: Any,
        items: Any,
        top_k: int,
        bids: Any,
        *,
        content: Any,
        request_id: str,
        timeout_s: float,
    ) -> Any:
        self._pack(context, {}, content)
        request = pb.PreRankRequest(request_id=request_id, top_k=top_k, bids=bids)
        if items is not None:
            set_items(request, "", items)
        return pb.PreRankResponse(request_id=_sent(request).request_id)

    def recommend(
        self,
        context: Any,
        top_k: int,
        prerank_k: int,
        *,
        items: Any,
        content: Any,
        request_id: str,
        timeout_s: float,
    ) -> Any:
        self._pack(context, {}, content)
        request = pb.RecommendRequest(
            request_id=request_id,
            top_k=top_k,
            prerank_k=prerank_k,
            bid_column=items.bid_column,
            bids=items.bids,
        )
        set_items(request, "excluded_", items.excluded)
        return pb.RecommendResponse(request_id=_sent(request).request_id)

    def _pack(self, context: Any, candidates: Any, content: Any) -> None:
        for name, value in context.items():
            _sent(column_of(name, [value], _TYPES.get(name)))
        for name, values in candidates.items():
            _sent(column_of(name, values, _TYPES.get(name)))
        for message in content_of(content):
            _sent(message)


def _sent(message: Any) -> Any:
    """The message as the server gets it."""
    return type(message).FromString(message.SerializeToString())


def json_request(data: bytes) -> None:
    """JSON request whose method the first byte names; packed as the client packs it."""
    if not data:
        return
    ask = list(METHODS.values())[data[0] % len(METHODS)]
    try:
        ask(_Client(), data[1:], 1.0)  # type: ignore[arg-type]
    except (LiveCTRError, CallError):
        return
