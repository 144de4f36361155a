"""Pipeline and published version of items with string keys."""

from __future__ import annotations

import numpy as np

from livectr.ingest.language.keys import hash_strings
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, TwoTower
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.trainer.des.step import DesStep
from tests.serving.publication import Publication

impressions = Stream("shows", key="user", columns={"user": "string", "song": "string", "label": "int64"})
songs = Table("songs", key="song", columns={"song": "string", "genre": "string"})
log = labelled(impressions, label="label").lookup(songs)
pipeline = Pipeline(
    log,
    sparse={"user": log.user, "song": log.song, "genre": songs.genre},
    rank=LR(),
    prerank=TwoTower(user=("user",), item=("song", "genre"), dim=4, hidden=(8,), out=4),
    items=songs,
)
NAMES = ["Für Elise", "Bolero", "夜曲", "Clair de lune"]


def published(redis_url: str, *, with_vectors: bool) -> None:
    """Publish a version whose catalogue is NAMES."""
    step = DesStep(pipeline, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(pipeline)))
    publication = Publication(redis_url, pipeline.fingerprint, segments)
    keys = hash_strings(NAMES)
    publication.lookup_rows("songs", {int(k): [name, "piano"] for k, name in zip(keys, NAMES, strict=True)})
    vectors = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    publication.publish({}, step.weights(), (keys, vectors) if with_vectors else None)
