"""Models that gather vectors or lists, trained on the display pipeline."""

from __future__ import annotations

import numpy as np

from livectr.ingest.pipeline import Pipeline
from livectr.models import DCN, DIEN, DIN, DNN, FLEN, FM, LR, PNN, AutoInt, ModelConfig, WideDeep, XDeepFM
from livectr.models.roles import row_segments
from livectr.trainer.des.step import DesStep
from tests.models.one_rank import OneRank
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import HISTORY, NOW_MS, SEED, World
from tests.serving.publication import Publication

ADS = [*range(100, 140), 987654321]
POSITIONS = [i % 5 for i in range(41)]
TAGS = [["x", "y"][: i % 3] for i in range(41)]
CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "Hello Wörld"}
SEEN = [101, 102, 103, 101]
CONFIGS: dict[str, ModelConfig] = {
    "DIN": DIN(target=("ad",), behaviors=("behaviors",), dim=4, hidden=(8,), attention=(6,)),
    "DIN, two lists": DIN(target=("ad", "words"), behaviors=("behaviors", "tags"), dim=4, hidden=(8,)),
    "DIEN": DIEN(target=("ad",), behaviors=("behaviors",), dim=4, hidden=(8,), state=3),
    "AutoInt": AutoInt(dim=4, layers=2, out=4),
    "xDeepFM": XDeepFM(dim=4, cin=(4, 3), hidden=(8,)),
    "DCN": DCN(dim=4, layers=3, hidden=(8,)),
}
OTHERS: dict[str, ModelConfig] = {
    "LR": LR(),
    "FM": FM(dim=5),
    "DNN, prelu": DNN(dim=4, hidden=(8, 5), activation="prelu"),
    "Wide&Deep": WideDeep(dim=4, hidden=(8,)),
    "PNN": PNN(dim=4, hidden=(8,)),
    "FLEN": FLEN(groups=(("user", "words"), ("ad",)), dim=4, hidden=(8,)),
}
"""Models that gather nothing."""


class Trained:
    """Step that has learned some batches of the display pipeline, and its model on its tables."""

    def __init__(self, config: ModelConfig) -> None:
        self.world = World(object())  # type: ignore[arg-type]  # its users and ads; no step of its own
        self.pipeline = Pipeline(pipeline.log, sparse=pipeline.sparse, dense=pipeline.dense, rank=config)
        tables = {spec.name: spec.table for spec in self.pipeline.fields}
        dense = tuple(self.pipeline.plan.dense_names)
        self.step = DesStep(self.pipeline, seed=SEED)
        rng = np.random.default_rng(0)
        for _ in range(20):
            batch = self.world.columns(
                int(rng.integers(1, 20)),
                rng.choice(list(self.world.ads), 64).tolist(),
                rng.integers(0, 5, 64).tolist(),
                history=rng.choice(list(self.world.ads), int(rng.integers(0, 5))).tolist(),
            )
            self.step.step(self.world.extract(batch), (rng.random(64) < 0.3).astype(np.float32))

        self.rank = OneRank(config, table_of=tables, dense=dense, seed=SEED)
        for name, table in self.step.tables.items():
            self.rank.tables[name].assign(*table.export())
        model = self.step.models["rank"]
        self.rank.model.load(model.local_state() | model.shared_state())

    def publish(self, url: str) -> Publication:
        config = self.rank.config
        segments = tuple((s.name, s.dim) for s in row_segments({"rank": config}))
        out = Publication(url, self.pipeline.fingerprint, segments, seed=SEED)
        out.lookup_rows("users", self.world.users)
        out.lookup_rows("ads", self.world.ads)
        out.history(HISTORY, 3, SEEN, [NOW_MS - 5000 + i for i in range(len(SEEN))])
        out.publish(
            {name: table.export(state=False) for name, table in self.step.tables.items()},
            self.step.weights(),
        )
        return out

    def pctr(self, user: int, history: list[int], tags: list[list[str]] | list[str]) -> np.ndarray:
        """Click probabilities of ADS; tags are shared, or each candidate has its own."""
        if tags and isinstance(tags[0], list):
            parts = [
                self.world.columns(user, [ad], [position], history=history, tags=own)
                for ad, position, own in zip(ADS, POSITIONS, tags, strict=True)
            ]
        else:
            parts = [self.world.columns(user, ADS, POSITIONS, history=history, tags=tags)]  # type: ignore[arg-type]
        logits = np.concatenate([self.rank.logits(self.world.extract(part)) for part in parts])
        return 1 / (1 + np.exp(-logits.astype(np.float64)))
