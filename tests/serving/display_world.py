"""Users, ads and a trained step of `display_pipeline`; columns and logits as the trainer computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from tests.serving.display_pipeline import pipeline
from tests.serving.publication import Publication

NOW_MS = 1_700_000_000_000
HISTORY = "recent(clicks.ad_id,5,1209600000)"
SEED = 7
SEGMENTS = tuple((s.name, s.dim) for s in row_segments(model_configs(pipeline)))


class World:
    """19 users, 50 ads, and a step that is trained on 30 batches of random clicks, or the given step."""

    def __init__(self, step: DesStep | None = None) -> None:
        rng = np.random.default_rng(0)
        self.users = {u: [u, int(rng.integers(10, 70)), f"städte {u % 3}"] for u in range(1, 20)}
        self.ads = {a: [a, f"cat{a % 4}", float(np.float32(rng.random() * 10))] for a in range(100, 150)}
        self.extract = Extractor(pipeline.plan)
        self.step = step or DesStep(pipeline, seed=SEED)
        if step is None:
            for _ in range(30):
                self.train(rng)

    def train(self, rng: np.random.Generator) -> None:
        ads = rng.choice(list(self.ads), 64).tolist()
        batch = self.columns(
            int(rng.integers(1, 20)),
            ads,
            rng.integers(0, 5, 64).tolist(),
            history=rng.choice(list(self.ads), 3).tolist(),
        )
        self.step.step(self.extract(batch), (rng.random(64) < 0.3).astype(np.float32))

    def columns(
        self,
        user: int,
        ads: Sequence[int],
        position: Sequence[int],
        *,
        history: Sequence[int] = (),
        query: str | None = "Hello Wörld",
        tags: Sequence[str] = ("x", "y"),
        ts: int = NOW_MS,
        profile: Sequence[Any] | None = None,
        more_ads: Mapping[int, Sequence[Any]] | None = None,
    ) -> pa.RecordBatch:
        """Record batch of the plan's roots for impressions of `ads`, as ingest computes it.

        Args:
            profile: the user's look-up row; None: the row of `users`.
            more_ads: look-up rows besides `ads`.
        """
        n = len(ads)
        nobody: list[Any] = [None] * 3
        profile = profile or self.users.get(user, nobody)
        known = {**self.ads, **(more_ads or {})}
        rows = [known.get(a, nobody) for a in ads]
        values: dict[str, list[Any]] = {
            "impressions.user_id": [user] * n,
            "impressions.ad_id": list(ads),
            "impressions.ts": [ts] * n,
            "impressions.position": list(position),
            "impressions.query": [query] * n,
            "impressions.tags": [list(tags)] * n,
            "users.age": [profile[1]] * n,
            "users.city": [profile[2]] * n,
            "ads.category": [row[1] for row in rows],
            "ads.price": [row[2] for row in rows],
            HISTORY: [list(history)] * n,
        }
        roots = pipeline.plan.roots
        arrays = [pa.array(values[r.name], dtypes.arrow_type(r.dtype)) for r in roots]
        return pa.RecordBatch.from_arrays(arrays, names=[r.name for r in roots])

    @torch.no_grad()
    def logits(self, role: str, batch: pa.RecordBatch) -> npt.NDArray[np.float32]:
        """Logits of the trainer's tables and networks for a batch."""
        features = self.extract(batch)
        (values,) = self.step.front.infer(features.offsets, features.keys, features.rows)
        part = torch.from_numpy(values)[..., self.step.spec.slices[role]]
        out: npt.NDArray[np.float32] = self.step.models[role](part, torch.from_numpy(features.dense)).numpy()
        return out

    def items(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and vectors of all ads."""
        ids = np.array(list(self.ads), np.int64)
        rows = pa.RecordBatch.from_pydict(
            {
                "ad_id": ids,
                "category": [row[1] for row in self.ads.values()],
                "price": pa.array([row[2] for row in self.ads.values()], pa.float32()),
            }
        )
        return ids, item_vectors(self.step, self.extract(pipeline.item_columns(rows)))

    def publish(self, publication: Publication, more: Mapping[str, torch.Tensor] = {}) -> int:
        """Publish everything as a version, with more tensors beside the weights."""
        publication.lookup_rows("users", self.users)
        publication.lookup_rows("ads", self.ads)
        rows = {name: table.export(state=False) for name, table in self.step.tables.items()}
        return publication.publish(rows, {**self.step.weights(), **more}, self.items())


def publication(url: str) -> Publication:
    """Publication of this pipeline."""
    return Publication(url, pipeline.fingerprint, SEGMENTS, seed=SEED)
