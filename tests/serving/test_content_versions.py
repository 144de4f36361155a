"""Content under load: every reply is of one version, of published vectors and of those made on the fly.

The crafted model: logit = b + the sum of the vectors of the ads' images. Version v publishes the vector v for
half of the images, its sub-model makes v of any features and of none, and b = v / 1000 - v. So the logit of a
reply is v / 1000 if and only if all its parts come from version v; a part of a neighbour moves it by 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from livectr.client.clients import RankClient
from livectr.ingest.language.content import Content
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models import Gathered, Gathers, ModelConfig, SegmentSpec, TextProjection, sgd
from livectr.models.base import CTRModel
from livectr.models.inputs import Columns, Part, require_gathered
from livectr.models.ragged import list_sum
from livectr.serving.app import App
from tests.serving.publication import Publication
from tests.serving.swaps import versions_of
from tests.waiting import until


@dataclass(frozen=True)
class OfImages(ModelConfig):
    dense_lr: float = 1e-3

    def segments(self) -> tuple[SegmentSpec, ...]:
        return (SegmentSpec("w", 1, sgd()),)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        return Gathers(content=("image",))

    def network(self, part: Part) -> CTRModel:
        return OfImagesModel()


class OfImagesModel(CTRModel):
    partial_size = 1

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        return values.sum(dim=1) * 0

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        images = require_gathered(gathered).content["image"]
        return (aggregated + list_sum(images))[:, 0] + self.bias


stream = Stream("impressions", key="user", columns={"user": "int64", "image": "int64", "label": "int64"})
log = labelled(stream, label="label")
pipeline = Pipeline(
    log,
    sparse={"user": log.user, "image": log.image},
    rank=OfImages(),
    content={"images": Content(("image",), TextProjection(width=2, out=1))},
)
PUBLISHED, BROUGHT, ABSENT = range(100), range(1000, 1020), range(2000, 2020)


def publish(out: Publication) -> int:
    version = out.version + 1
    ids = np.array(PUBLISHED, np.int64)
    vectors = np.full((len(ids), 1), version, np.float32)
    dense = {
        "rank.bias": torch.tensor(version / 1000 - version),
        "content.images.weight": torch.zeros(2, 1),
        "content.images.bias": torch.tensor([float(version)]),
        "content.images.absent": torch.tensor([float(version)]),
    }
    return out.publish({}, dense, content={"images": [(ids[:60], vectors[:60]), (ids[60:], vectors[60:])]})


def test_swaps_under_load_mix_nothing(redis_url: str, serve: Callable[..., App]) -> None:
    out = Publication(redis_url, pipeline.fingerprint, (("rank.w", 1),))
    publish(out)
    app = serve("rank", pipeline)
    images = [*PUBLISHED, *BROUGHT, *ABSENT]
    rows = {image: np.ones(2) for image in BROUGHT}
    stop, failures, seen = threading.Event(), list[str](), set[int]()

    def load() -> None:
        with RankClient(app.server.address, timeout_s=60) as client:
            while not stop.is_set():
                try:
                    response = client.rank({"user": 1}, {"image": images}, content={"images": rows})
                except Exception as error:
                    failures.append(str(error))
                    return
                found = versions_of(response)
                if found != {response.version}:
                    failures.append(f"version {response.version} has parts of {found}")
                seen.add(response.version)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            version = publish(out)
            until(lambda version=version: version in seen or failures)  # type: ignore[misc]
            assert version in seen, failures
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_candidates(redis_url: str, serve: Callable[..., App], count: int) -> None:
    out = Publication(redis_url, pipeline.fingerprint, (("rank.w", 1),))
    version = publish(out)
    with RankClient(serve("rank", pipeline).server.address) as client:
        response = client.rank({"user": 1}, {"image": [5, 2001][:count]})
    assert versions_of(response) == {version} and len(response.pctr) == count
