"""Requests to rank and pre-rank, from their bytes to those of the reply, by a version in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from livectr.ingest.pipeline import Pipeline
from livectr.models import DIN
from livectr.models.configs import model_configs
from livectr.protos import livectr_pb2 as pb
from livectr.serving.calls import RequestCall
from livectr.serving.canary import STABLE
from livectr.serving.errors import RequestError
from livectr.serving.options import ServeOptions
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.score.followers import version_follower
from livectr.serving.score.item_features import item_features
from livectr.serving.score.prerank import PreRanker
from livectr.serving.score.published import value_layout
from livectr.serving.score.rank import Ranker
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.tower_scorer import TowerScorer
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.items import ItemVectors
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.serving.version.reader import U8, Reader
from livectr.store.layout import F32, I64, RowStatus, encode_lookup_row
from livectr.store.manifest import VersionManifest
from livectr.trainer.des.step import DesStep
from tests.serving.display_pipeline import pipeline as display
from tests.serving.plain_towers import towers

AWAY = "redis://127.0.0.1:1"
USERS = {key: [key, 20 + key, f"städte {key % 3}"] for key in range(1, 20)}
ADS = {key: [key, f"cat{key % 4}", key / 8] for key in range(100, 150)}
pipeline = Pipeline(
    display.log,
    sparse={name: node for name, node in display.plan.sparse.items() if name != "behaviors"},
    dense=display.plan.dense,
    rank=display.rank,
    items=display.items,
)
"""Pipeline whose requests need no read."""
lists = replace(pipeline, rank=DIN(target=("ad",), behaviors=("tags",), dim=4, hidden=(8,), attention=(6, 3)))
"""The same with a model that pools lists."""


class _NothingElse(Reader):
    """Reader of a Redis that holds no row besides those in memory."""

    def rows(
        self, manifest: VersionManifest, keys: Mapping[str, I64], *, patient: bool = False
    ) -> dict[str, tuple[F32, U8]]:
        return {
            table: (
                np.zeros((len(ids), manifest.dim), np.float32),
                np.full(len(ids), RowStatus.MISSING, np.uint8),
            )
            for table, ids in keys.items()
        }

    def read(
        self, names: list[bytes], prefetch: PrefetchKeys | None
    ) -> tuple[list[bytes | None], bool, PrefetchedRows | None]:
        return [None] * len(names), True, None


OPTIONS = ServeOptions(
    AWAY, max_candidates=50, max_list=20, max_string_bytes=100, item_partials_mb=1, max_top_k=60
)


@cache
def _ranker(pipeline: Pipeline) -> Ranker:
    follower, rows, publish = _parts("rank", pipeline)
    ranker = Ranker(pipeline, follower, OPTIONS, rows)
    publish(lambda dense: RankScorer(pipeline, dense, "rank", item_features(pipeline)))
    return ranker


@cache
def _preranker(pipeline: Pipeline) -> PreRanker:
    follower, rows, publish = _parts("prerank", pipeline)
    preranker = PreRanker(pipeline, follower, OPTIONS, rows)
    publish(lambda dense: TowerScorer(pipeline, dense))
    return preranker


def _parts(role: str, pipeline: Pipeline) -> tuple[VersionFollower, LookupRows, Callable[..., None]]:
    """Follower and look-up rows of a server, and a call that lets it serve a version with a scorer."""
    follower = version_follower(role, pipeline, OPTIONS)
    follower.reader = _NothingElse(AWAY, "livectr", pipeline.fingerprint)
    rows = LookupRows(follower.reader, ttl_s=1e9)
    step = DesStep(pipeline, seed=1)
    layout = value_layout(model_configs(pipeline), pipeline.row_values, "rank")
    segments = tuple((segment.name, segment.dim) for segment in layout.segments)
    manifest = VersionManifest(1, 1, "1-1", 1, pipeline.fingerprint, 1, 0, layout.dim, segments, {})
    rng = np.random.default_rng(0)

    def publish(scorer: Callable[[Mapping[str, torch.Tensor]], object]) -> None:
        for table, known in zip(rows.tables(pipeline.log.lookups), (USERS, ADS), strict=True):
            values = [encode_lookup_row(row) for row in known.values()]
            table.put(np.array(list(known)), values, time.monotonic())
        dense = step.weights()
        vectors = rng.normal(size=(len(ADS), 8)).astype(np.float32)
        items = IdVectors(np.array(list(ADS)), vectors) if role == "prerank" else None
        version = ModelVersion(
            manifest, dense, None if items is None else ItemVectors(items), {role: scorer(dense)}, {}
        )
        cache = NearCache(sorted(step.tables), layout, seed=1, max_rows=10_000, version=1)
        for name in ("user", "ad"):
            keys = np.array(list(USERS if name == "user" else ADS))
            cache.add({name: (keys, rng.normal(size=(len(keys), layout.dim)).astype(np.float32))}, {}, 1)
        follower._served = version, cache

    return follower, rows, publish


def rank_answer(data: bytes) -> None:
    """A RankRequest, and its RankResponse; a request that is answered from its bytes has the same reply."""
    _check(_ranker(pipeline), data)


def rank_lists(data: bytes) -> None:
    """The same of a model that pools lists."""
    _check(_ranker(lists), data)


def prerank_answer(data: bytes) -> None:
    """A PreRankRequest, and its PreRankResponse, which is the same when it is answered from its bytes."""
    preranker = _preranker(towers)
    assert preranker.plain is not None
    try:
        request = preranker.schema.reader.read(data)
        reply = preranker.prerank(request, RequestCall("prerank"))
    except RequestError:
        assert preranker.plain.answers.answer(data, None, 0.0, 0.0) is None
        return
    response = pb.PreRankResponse.FromString(reply.serialized())
    named = request.items is not None
    size = len(request.items.array) if request.items is not None else len(ADS)
    assert len(response.ids.values) == len(response.score) == min(request.top_k, size)
    assert len(response.index) == (len(response.score) if named else 0)
    assert response.version == 1 and not response.degraded and response.request_id == request.request_id
    order = np.array(response.value if request.bids_size else response.score)
    assert len(order) == len(response.score) and (np.diff(order) <= 0).all()
    if (plain := preranker.plain.answers.answer(data, None, 0.0, 0.0)) is not None:
        response.side = STABLE
        assert pb.PreRankResponse.FromString(plain) == response
    else:
        assert response.unknown or request.version or request.side or request.contents


def _check(ranker: Ranker, data: bytes) -> None:
    assert ranker.plain is not None
    try:
        request = ranker.schema.reader.read(data)
        reply = ranker.rank(request, RequestCall("rank"))
    except RequestError:
        assert ranker.plain.answers.answer(data, None, 0.0, 0.0) is None
        return
    response = pb.RankResponse.FromString(reply.serialized())
    assert sorted(response.index) == list(range(request.size))
    assert response.version == 1 and not response.degraded and response.request_id == request.request_id
    pctr = np.array(response.pctr)
    assert ((pctr >= 0) & (pctr <= 1)).all() and not np.isnan(response.ecpm).any()
    assert (np.diff(response.ecpm) <= 0).all()
    if (plain := ranker.plain.answers.answer(data, None, 0.0, 0.0)) is not None:
        response.side = STABLE
        assert pb.RankResponse.FromString(plain) == response
