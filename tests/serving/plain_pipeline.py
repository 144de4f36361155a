"""Display pipeline without histories: its plain rank requests need nothing of Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from livectr.client.clients import column_of
from livectr.ingest.pipeline import Pipeline
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.protos import livectr_pb2 as pb
from livectr.trainer.des.step import DesStep
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS
from tests.serving.display_world import World
from tests.serving.publication import Publication

NO_HISTORY = Pipeline(
    pipeline.log,
    sparse={name: node for name, node in pipeline.plan.sparse.items() if name != "behaviors"},
    dense=pipeline.plan.dense,
    rank=pipeline.rank,
    items=pipeline.items,
)


def publish_plain(url: str, world: World, of: Pipeline = NO_HISTORY) -> None:
    """Publish a version of the pipeline, or of one with its features, with the look-up rows of a world."""
    step = DesStep(of, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(of)))
    published = Publication(url, of.fingerprint, segments, seed=1)
    published.lookup_rows("users", world.users)
    published.lookup_rows("ads", world.ads)
    published.publish({name: t.export(state=False) for name, t in step.tables.items()}, step.weights())


def plain_request(
    context: Mapping[str, Any] = CONTEXT,
    candidates: Mapping[str, list[Any]] = {"ad_id": ADS, "position": POSITIONS},
    **more: Any,
) -> bytes:
    """Bytes of a RankRequest."""
    message = pb.RankRequest(
        context=[column_of(name, [value]) for name, value in context.items()],
        candidates=[column_of(name, values) for name, values in candidates.items()],
        **more,
    )
    return message.SerializeToString()
