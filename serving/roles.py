"""Roles of a server: what follows the versions, and what answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from livectr.ingest.pipeline import Pipeline
from livectr.serving.options import ServeOptions
from livectr.serving.request.sentences import ColumnSpec
from livectr.serving.score.followers import version_follower
from livectr.serving.score.prerank import PreRanker
from livectr.serving.score.rank import Ranker
from livectr.serving.score.recommend import recommender
from livectr.serving.server import Method
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Role:
    """Parts of a server that depend on its role.

    Args:
        pipeline: whose requests are answered.
        follower: of the published versions.
        methods: that answer requests.
        columns: of a request, as `Describe` lists them.
        model_of: name of a version's model.
        ranks: whether the server ranks.
        close: ends the background work beside the requests.
    """

    pipeline: Pipeline
    follower: VersionFollower
    methods: list[Method[Any]]
    columns: Mapping[str, ColumnSpec]
    model_of: Callable[[ModelVersion | None], str]
    ranks: bool
    close: Callable[[], None] = lambda: None


def _rank_method(ranker: Ranker) -> Method[Any]:
    return Method(
        "livectr.v1.Rank",
        "Rank",
        ranker.schema.reader.read,
        ranker.rank,
        role="rank",
        plain=None if ranker.plain is None else ranker.plain.answers,
        columns=ranker.schema.columns,
    )


def _say_cut(pipeline: Pipeline) -> None:
    """Say by which part of the pipeline's value pre-rank cuts, where expected values are another."""
    if pipeline.worths is not None and (sentence := pipeline.worths.cut_without):
        log.info("%s", sentence)


def _prerank_method(preranker: PreRanker) -> Method[Any]:
    return Method(
        "livectr.v1.PreRank",
        "PreRank",
        preranker.schema.reader.read,
        preranker.prerank,
        role="prerank",
        plain=None if preranker.plain is None else preranker.plain.answers,
        columns=preranker.schema.columns,
    )


def _rank(pipeline: Pipeline, options: ServeOptions) -> Role:
    follower = version_follower("rank", pipeline, options)
    ranker = Ranker(pipeline, follower, options)
    columns = ranker.schema.columns
    return Role(pipeline, follower, [_rank_method(ranker)], columns, ranker.model_of, True, ranker.close)


def _prerank(pipeline: Pipeline, options: ServeOptions) -> Role:
    follower = version_follower("prerank", pipeline, options)
    preranker = PreRanker(pipeline, follower, options)
    _say_cut(pipeline)
    columns = preranker.schema.columns
    methods = [_prerank_method(preranker)]
    return Role(pipeline, follower, methods, columns, lambda _: preranker.model, ranks=False)


def _recommend(pipeline: Pipeline, options: ServeOptions) -> Role:
    follower = version_follower("recommend", pipeline, options)
    preranker, ranker, answers = recommender(pipeline, follower, options)
    _say_cut(pipeline)
    columns = {**answers.schema.columns, answers.item.name: answers.item}
    method: Method[Any] = Method(
        "livectr.v1.Recommend",
        "Recommend",
        answers.schema.reader.read,
        answers.recommend,
        role="recommend",
        columns=columns,
    )
    methods = [_rank_method(ranker), _prerank_method(preranker), method]
    return Role(pipeline, follower, methods, columns, ranker.model_of, True, ranker.close)


ROLES: dict[str, Callable[[Pipeline, ServeOptions], Role]] = {
    "rank": _rank,
    "prerank": _prerank,
    "recommend": _recommend,
}
"""Name → parts of a server; raises ConfigError when the role cannot serve the pipeline."""
