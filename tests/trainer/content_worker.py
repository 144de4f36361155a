"""One rank of test_ams.py: trains models with content, sends ids, and writes the results.

Run by `run_ranks`; writes OUT/<form>.<how>.rank<r>.safetensors and .json. The stores
are in OUT/images and OUT/texts. What came of ids is in OUT/<kind>.rank<r>.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.content.store import ContentStore
from livectr.ingest.language.content import Content
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.models import (
    LR,
    EmbeddingModel,
    Gathered,
    Gathers,
    ModelConfig,
    SegmentSpec,
    TextProjection,
    adagrad,
)
from livectr.models.base import CTRModel
from livectr.models.inputs import Columns, Part, require_gathered
from livectr.models.layers import matrix
from livectr.models.ragged import list_sum
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.content.ams import I64, send_to_owners
from livectr.trainer.des.step import DesStep
from tests.trainer.checksums import checksum
from tests.trainer.common_worker import SETTINGS, SIZE, STEPS, batch
from tests.trainer.common_worker import pipeline as common_pipeline
from tests.waiting import left_s

IMAGE = EmbeddingModel(width=10, hidden=(6, 5), out=4)
TEXT = TextProjection(width=7, out=3)
WAYS = [("plain", how) for how in SETTINGS] + [
    ("grouped", "sample-parallel"),
    ("grouped", "partial"),
    ("some", "allreduce"),
]
IDS = np.arange(1, 9).astype(np.int64) * 0x9E3779B97F4A7C1 - 7
"""Ids that have features: the most frequent of `batch`; the others have none."""


@dataclass(frozen=True)
class Pictured(ModelConfig):
    """logit = Σ w + Σ_c u_c · (Σ of a content's vectors)², over the contents' fields."""

    images: tuple[str, ...] = ("ad", "liked")
    texts: tuple[str, ...] = ("words",)
    dense_lr: float = 1e-2

    def segments(self) -> tuple[SegmentSpec, ...]:
        return (SegmentSpec("w", 1, adagrad(), 0.1),)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        return Gathers(content=(*self.images, *self.texts))

    def network(self, part: Part) -> CTRModel:
        return PicturedModel(self, part.seed)


class PicturedModel(CTRModel):
    def __init__(self, config: Pictured, seed: int) -> None:
        super().__init__()
        self.partial_size = 1
        widths = {name: IMAGE.out for name in config.images} | {name: TEXT.out for name in config.texts}
        self.weights = nn.ParameterDict({name: matrix(seed, name, k, 1) for name, k in widths.items()})

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        return values.sum(dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        content = require_gathered(gathered).content
        parts = [(list_sum(content[name]) ** 2 @ weight)[:, 0] for name, weight in self.weights.items()]
        return aggregated[:, 0] + self.bias + torch.stack(parts).sum(dim=0)


def pipeline() -> Pipeline:
    """Pipeline of `common_worker`; ids of content are in its fields ad, liked (the users' own) and words."""
    return replace(
        common_pipeline(LR()),
        rank=Pictured(),
        shadows={"pictures": Pictured(texts=())},
        content={"images": Content(("ad", "liked"), IMAGE), "texts": Content(("words",), TEXT)},
    )


def make_stores(folder: Path) -> None:
    """Features of IDS, in several appends."""
    rng = np.random.default_rng(3)
    for name, width in (("images", IMAGE.width), ("texts", TEXT.width)):
        store = ContentStore.create(folder / name, width=width, encoder="random", shards=5)
        for ids in np.array_split(IDS, 3):
            values = rng.normal(size=(len(ids), width)).astype(np.float16)
            store.append(ids, values, np.zeros(len(ids), np.uint64))


def train(form: str, how: str, collectives: Collectives, out: Path) -> None:
    """Train; write logits, tables, dense state with that of the sub-models, and vectors of all ids."""
    rank, world = collectives.rank, collectives.world
    built = pipeline()
    common = Common.of(built)
    stores = {name: ContentStore.open(out / name, shards=range(rank, 5, world)) for name in built.content}
    des = DesStep(
        built,
        seed=5,
        collectives=collectives,
        settings=SETTINGS[how],
        content=stores,
    )
    assert des.ams is not None
    rng, checksums = np.random.default_rng(0), []
    tensors: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        features, label = batch(rng, SIZE, SIZE // 6)
        cuts = np.linspace(0, SIZE, world + 1).astype(int)
        if step == 1 and world > 1:
            cuts[1] = 0  # rank 0 has no rows
        mine = np.arange(cuts[rank], cuts[rank + 1])
        own: CommonFeatures | Features = features.take(mine)
        assert isinstance(own, CommonFeatures)
        if form == "plain" or (form == "some" and (rank + step) % 2):
            own = own.plain(common)
        result = des.step(own, label[mine])
        tensors |= {f"logits.{role}.{step}": torch.from_numpy(z) for role, z in result.logits.items()}
        for name in des.ams.contents:
            vectors = des.ams.vectors(name, np.r_[IDS, [1, 2]])
            tensors[f"vectors.{name}.{step}"] = torch.from_numpy(vectors)
        checksums.append(checksum(des.dense))
    tensors |= {f"dense.{n}": t for n, t in des.state_dense().items()}
    save_file(tensors, out / f"{form}.{how}.rank{rank}.safetensors")
    facts = {"checksums": checksums, "bytes": dict(collectives.bytes)}
    (out / f"{form}.{how}.rank{rank}.json").write_text(json.dumps(facts))


def asks(kind: str, rank: int, world: int) -> list[I64]:
    """Unique ids that a rank requests from each rank; lists are sometimes empty."""
    rng = np.random.default_rng([rank, world])
    counts = rng.integers(0, 60, world) * (rng.random(world) < 0.8)
    ids = rng.choice(5000, counts.sum(), replace=False).astype(np.int64) - 90
    return np.split(ids * 0x9E3779B97F4A7C1 if kind == "hashes" else ids, np.cumsum(counts)[:-1])


def tell(kind: str, shared: Collectives, out: Path) -> None:
    """Write the ids that every rank requests from this one, in order, and the bytes of the requests."""
    own = asks(kind, shared.rank, shared.world)
    counted = Collectives(shared.rank, shared.world)
    bounds, came = send_to_owners(np.concatenate(own), np.array([len(part) for part in own]), counted)
    lists = [part.tolist() for part in np.split(came, bounds[1:-1])]
    reported = {"came": lists, "bytes": counted.bytes.get("content ids", 0)}
    (out / f"{kind}.rank{shared.rank}.json").write_text(json.dumps(reported))


def main(folder: str) -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    with connect(timeout_s=left_s()) as shared:
        for kind in ("numbers", "hashes"):
            tell(kind, shared, Path(folder))
        for form, how in WAYS:
            if shared.world > 1 or (form, how) == ("plain", "partial"):
                train(form, how, Collectives(shared.rank, shared.world), Path(folder))
