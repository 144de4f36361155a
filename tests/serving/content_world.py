"""Users, ads with pictures, a content store of their features, and a step trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from livectr.ingest.content.store import ContentStore
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.content import Content
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Field, Pipeline
from livectr.models import DICM, DNN, EmbeddingModel, TwoTower
from livectr.models.configs import model_configs
from livectr.models.embedding import SubNetwork
from livectr.models.inputs import Gathered, Ragged
from livectr.serving.score.published import value_layout
from livectr.trainer.content.precompute import ContentPrecompute
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from tests.serving.publication import Publication

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

NOW_MS = 1_700_000_000_000
IMAGES = "recent(clicks.image_id,6,1209600000)"
SEED = 5
WIDTH = 16
USERS, ADS = range(1, 15), range(100, 140)

columns = {"request_id": "string", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
impressions = Stream("impressions", key="user_id", time="ts", columns=columns)
clicks = Stream("clicks", key="user_id", time="ts", columns={**columns, "image_id": "int64"})
ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "image_id": "int64", "category": "string"})
log = label_join(impressions, clicks, on="request_id", window="10m").lookup(ads)
pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "ad": log.ad_id,
        "category": ads.category,
        "image": ads.image_id,
        "clicked": Field(recent(clicks.image_id, n=6, within="14d"), table="image"),
    },
    rank=DICM(
        ad_image="image", behavior_images="clicked", ad="ad", image_dim=4, dim=4, hidden=(8,), attention=(6,)
    ),
    prerank=TwoTower(
        user=("user", "clicked"),
        item=("ad", "category"),
        user_images=("clicked",),
        item_images=("image",),
        image_dim=4,
        dim=4,
        hidden=(8,),
        out=6,
    ),
    shadows={"ids": DNN(dim=3, hidden=(8,))},
    content={"images": Content(("image", "clicked"), EmbeddingModel(width=WIDTH, hidden=(10, 8), out=4))},
    items=ads,
)
SEGMENTS = tuple((s.name, s.dim) for s in value_layout(model_configs(pipeline)).segments)
D = sum(dim for _, dim in SEGMENTS)


def features_of(ids: Sequence[int]) -> npt.NDArray[np.float16]:
    """Raw features f16[n, WIDTH] of images, a function of their ids."""
    rows = [np.random.default_rng(id).standard_normal(WIDTH) for id in ids]
    return np.array(rows, np.float32).reshape(-1, WIDTH).astype(np.float16)


def make_store(folder: Path) -> ContentStore:
    """Features of the images of all ads but every fifth; an ad's image is its id + 5000."""
    store = ContentStore.create(folder, width=WIDTH, encoder="test", shards=4)
    ids = [ad + 5000 for ad in ADS if ad % 5]
    store.append(np.array(ids, np.int64), features_of(ids))
    return store


class World:
    """Step that is trained on 12 batches of random clicks, or the given step."""

    def __init__(self, store: ContentStore, step: DesStep | None = None) -> None:
        self.store = store
        self.ads = {ad: [ad, ad + 5000, f"cat{ad % 4}"] for ad in ADS}
        self.extract = Extractor(pipeline.plan)
        self.step = step or DesStep(pipeline, seed=SEED, content={"images": store})
        self.rng = np.random.default_rng(0)
        if step is None:
            for _ in range(12):
                self.train()

    @property
    def network(self) -> SubNetwork:
        assert self.step.ams is not None
        return self.step.ams.networks["images"]

    def train(self) -> None:
        rng = self.rng
        shown = rng.choice(list(self.ads), 64).tolist()
        batch = self.columns(int(rng.integers(1, 15)), shown, rng.choice(np.arange(5100, 5140), 3).tolist())
        self.step.step(self.extract(batch), (rng.random(64) < 0.3).astype(np.float32))

    def columns(
        self, user: int, shown: Sequence[int], history: Sequence[int], more: Mapping[int, list[Any]] = {}
    ) -> pa.RecordBatch:
        """Columns of impressions of ads, as ingest computes them.

        Args:
            history: images that the user clicked.
            more: rows of other ads.
        """
        known = {**self.ads, **more}
        rows = [known.get(ad, [None] * 3) for ad in shown]
        values: dict[str, list[Any]] = {
            "impressions.user_id": [user] * len(shown),
            "impressions.ad_id": list(shown),
            "ads.image_id": [row[1] for row in rows],
            "ads.category": [row[2] for row in rows],
            IMAGES: [list(history)] * len(shown),
        }
        roots = pipeline.plan.roots
        arrays = [pa.array(values[root.name], dtypes.arrow_type(root.dtype)) for root in roots]
        return pa.RecordBatch.from_arrays(arrays, names=[root.name for root in roots])

    @torch.no_grad()
    def vectors(self, ids: I64, extra: Mapping[int, npt.NDArray[np.float16]] = {}) -> torch.Tensor:
        """Vectors of images, each computed by itself; extra: features that the store lacks."""
        out = []
        for id in ids.tolist():
            row, known = self.store.read(np.array([id]))
            if id in extra:
                row, known = extra[id][None], np.array([True])
            out.append(self.network(torch.from_numpy(row), torch.from_numpy(known)))
        return torch.cat(out) if out else torch.empty(0, 4)

    @torch.no_grad()
    def logits(
        self, role: str, batch: pa.RecordBatch, extra: Mapping[int, npt.NDArray[np.float16]] = {}
    ) -> F32:
        """Logits of the trainer's tables and networks."""
        features = self.extract(batch)
        (values,) = self.step.front.infer(features.offsets, features.keys, features.rows)
        part = torch.from_numpy(values)[..., self.step.spec.slices[role]]
        wanted = self.step.spec.configs[role].gathers(self.step.spec.fields)
        content = {}
        for name in wanted.content:
            offsets, keys = features.field(self.step.spec.fields.index(name))
            content[name] = Ragged(self.vectors(keys, extra), torch.from_numpy(offsets.astype(np.int64)))
        pooled = part[:, [self.step.spec.fields.index(name) for name in wanted.pooled]]
        seen = Gathered(pooled, {}, None, content)
        out: F32 = self.step.models[role](part, torch.from_numpy(features.dense), seen).numpy()
        return out

    def items(self) -> tuple[I64, F32]:
        """Ids and vectors of all ads."""
        names = ("ad_id", "image_id", "category")
        rows = pa.RecordBatch.from_pydict(
            {name: [row[i] for row in self.ads.values()] for i, name in enumerate(names)}
        )
        return np.array(list(self.ads), np.int64), item_vectors(
            self.step, self.extract(pipeline.item_columns(rows))
        )

    def publish(self, publication: Publication) -> int:
        """Publish everything that is served as a version."""
        publication.lookup_rows("ads", self.ads)
        exported = {name: table.export(state=False) for name, table in self.step.tables.items()}
        served = {n: t for n, t in self.step.weights().items() if not n.startswith("ids.")}
        return publication.publish(
            {name: (keys, rows[:, :D]) for name, (keys, rows) in exported.items()},
            served,
            self.items(),
            content={
                "images": list(ContentPrecompute("images", self.network, self.store).run(lambda: False))
            },
        )


def publication(url: str) -> Publication:
    """Publication of this pipeline."""
    return Publication(url, pipeline.fingerprint, SEGMENTS, seed=SEED)
