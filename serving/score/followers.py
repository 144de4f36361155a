"""Followers of the versions of each role: which models, tables and content a version has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from livectr.ingest.pipeline import Pipeline
from livectr.models.configs import model_configs
from livectr.models.forward import ItemFeatures
from livectr.serving import metrics
from livectr.serving.options import ServeOptions
from livectr.serving.score.head_scorers import scorer_of
from livectr.serving.score.item_features import item_features
from livectr.serving.score.published import content_fields, value_layout
from livectr.serving.score.tower_scorer import SIDES, TowerScorer, tower_features
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import RoleSpec
from livectr.serving.version.near_cache import NearCache
from livectr.serving.version.reader import Reader
from livectr.store.manifest import VersionManifest
from livectr.system.errors import MismatchError

_MODELS = {"rank": ("rank",), "prerank": ("prerank",), "recommend": ("prerank", "rank")}
"""Role of a server → roles of the models that it answers with."""


def version_follower(role: str, pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """Follower of a role's versions, which does not follow yet.

    A pre-rank server reads the tables of its towers alone; the others read every table.

    Args:
        role: "rank", "prerank" or "recommend".
        pipeline: whose models and tables the role reads.
        options: settings of the server.

    Raises:
        ConfigError: the pipeline has no model for the role, or a setting cannot be used.
    """
    models = _MODELS[role]
    ranks, selects = "rank" in models, "prerank" in models
    towers = [name for side in SIDES for name in tower_features(pipeline, side).fields] if selects else []
    tables = pipeline.plan.fields if ranks else towers
    content = dict.fromkeys(field for model in models for field in content_fields(pipeline, model))
    items = item_features(pipeline) if ranks else ItemFeatures()

    def scorers(manifest: VersionManifest, dense: Mapping[str, Tensor]) -> dict[str, object]:
        made: dict[str, object] = {}
        if selects:
            made["prerank"] = TowerScorer(pipeline, dense, manifest.champion)
        if ranks:
            made["rank"] = scorer_of(pipeline, dense, manifest.champion, items)
        return made

    spec = RoleSpec(
        role=role,
        fingerprint=pipeline.fingerprint,
        contents=Contents(pipeline, tuple(content), options.content),
        with_items=selects,
        near_cache=lambda manifest: _near_cache(pipeline, tables, manifest, options.near_cache_rows),
        scorers=scorers,
        leaves_ms=pipeline.log.leaves_ms,
        contenders=tuple(pipeline.contenders) if ranks else (),
        with_worths=pipeline.worths is not None and pipeline.worths.published,
    )
    reader = Reader(options.redis, options.namespace, pipeline.fingerprint)
    return VersionFollower(reader, spec, options.lost_grace_s, options.max_stale_s)


def _near_cache(pipeline: Pipeline, fields: Sequence[str], manifest: VersionManifest, rows: int) -> NearCache:
    """Make an empty near-cache for the tables of some fields.

    Args:
        pipeline: its tables and seeds of rows.
        fields: whose tables are read.
        manifest: of the version.
        rows: bound over all tables.

    Raises:
        MismatchError: the published rows have another layout.
    """
    layout = value_layout(model_configs(pipeline), pipeline.row_values, manifest.champion)
    published = tuple(manifest.segments)
    if published != tuple((s.name, s.dim) for s in layout.segments):
        raise MismatchError(f"version {manifest.version} has rows of {published}: another pipeline's")
    metrics.begin_fields(fields)
    tables = {spec.table for spec in pipeline.fields if spec.name in fields}
    return NearCache(
        sorted(tables),
        layout,
        seed=manifest.seed,
        max_rows=rows,
        version=manifest.version,
        from_zero=manifest.from_zero,
    )
