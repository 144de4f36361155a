"""Plain pipelines with two towers: neither their rank nor their pre-rank requests need anything of Redis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from livectr import probability
from livectr.client.clients import column_of
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.models import TwoTower
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.protos import livectr_pb2 as pb
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from tests.serving import display_pipeline
from tests.serving.display_requests import CONTEXT
from tests.serving.display_world import World
from tests.serving.plain_pipeline import NO_HISTORY
from tests.serving.publication import Publication

PRERANK = "/livectr.v1.PreRank/PreRank"
towers = replace(
    NO_HISTORY,
    prerank=TwoTower(
        user=("user", "age", "city", "words", "seniority"),
        item=("ad", "category", "price"),
        dim=8,
        hidden=(16,),
        out=8,
    ),
)
by_value = replace(towers, value=display_pipeline.ads.price * probability("click"))
EVERY = list(range(100, 150))


def prerank_request(
    ids: list[int] | None = EVERY, top_k: int = 10, context: Any = CONTEXT, **more: Any
) -> bytes:
    """Bytes of a PreRankRequest; None: of all items."""
    named = {} if ids is None else {"ids": pb.Int64s(values=ids)}
    columns = [column_of(name, [value]) for name, value in context.items() if name != "tags"]
    return pb.PreRankRequest(context=columns, top_k=top_k, **named, **more).SerializeToString()


def publish_towers(url: str, world: World, of: Pipeline = towers) -> None:
    """Publish a version of a pipeline, with the look-up rows of a world and vectors of its items."""
    step = DesStep(of, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(of)))
    trainer = Publication(url, of.fingerprint, segments, seed=1)
    trainer.lookup_rows("users", world.users)
    trainer.lookup_rows("ads", world.ads)
    columns = {
        "ad_id": np.array(list(world.ads)),
        "category": [row[1] for row in world.ads.values()],
        "price": pa.array([row[2] for row in world.ads.values()], pa.float32()),
    }
    vectors = item_vectors(step, Extractor(of.plan)(of.item_columns(pa.RecordBatch.from_pydict(columns))))
    if of.worths is not None:
        vectors = np.column_stack([vectors, columns["price"].to_numpy()]).astype(np.float32)
    tables = {name: table.export(state=False) for name, table in step.tables.items()}
    trainer.publish(tables, step.weights(), (columns["ad_id"], vectors))
