"""Versions that share blobs of content vectors: a server reads the new ones alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from livectr.serving.version.content import Contents
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.loader import ModelVersion, RoleSpec, VersionLoader
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import encode_vectors
from tests.serving.content_world import pipeline

OUT = 4


def vectors(ids: Sequence[int], value: float) -> bytes:
    return encode_vectors(np.array(ids, np.int64), np.full((len(ids), OUT), value, np.float32))


@dataclass
class Redis:
    """Blobs, and the names of those that were read."""

    blobs_of: dict[str, bytes]
    url: str = "redis://test"
    read: list[str] = field(default_factory=list)

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.blobs_of.get(name) for name in names]

    def large_blobs(self, names: Sequence[str]) -> list[bytes | None]:
        self.read += names
        return self.blobs(names)


class Server:
    """Loads one version after the other."""

    def __init__(self, redis: Redis) -> None:
        config: Any = pipeline.content["images"].model
        network = config.network("content.images", 1)
        weights = {f"content.images.{name}": p.detach() for name, p in network.named_parameters()}
        redis.blobs_of["dense"] = safetensors.torch.save(weights)
        self.redis = redis
        contents = Contents(pipeline, ("image", "clicked"), None)
        spec = RoleSpec("rank", pipeline.fingerprint, contents, False, lambda _: None, lambda *_: None)  # type: ignore[arg-type,return-value]
        self.loader = VersionLoader(redis, spec)  # type: ignore[arg-type]
        self.version: ModelVersion | None = None

    def load(self, number: int, names: Sequence[str]) -> dict[int, float]:
        manifest = VersionManifest(
            number, 1, "1-0", number, pipeline.fingerprint, 1, 0, 1, (), {}, ("dense",),
            content={"images": tuple(names)},
        )  # fmt: skip
        self.redis.read.clear()
        loaded = self.loader.load(manifest, self.version)
        if loaded is None:
            return {}
        self.version = loaded
        found = loaded.content["images"].published
        rows, known = found.find(found.ids)
        assert known.all() and np.array_equal(rows, np.arange(len(rows)))
        return dict(zip(found.ids.tolist(), found.vectors[:, -1].tolist(), strict=True))


BLOBS = {
    "1-0.0": vectors([5, 3, 4], 1), "1-1.0": vectors([10, 11], 1), "1-newer": vectors([], 1),
    "2-newer": vectors([4, 7], 2),
    "3-0.0": vectors([3, 4, 5, 7], 3), "3-newer": vectors([], 3),
}  # fmt: skip
VERSIONS: Mapping[int, tuple[Sequence[str], Mapping[int, float]]] = {
    1: (("1-0.0", "1-1.0", "1-newer"), {3: 1, 4: 1, 5: 1, 10: 1, 11: 1}),
    2: (("1-0.0", "1-1.0", "2-newer"), {3: 1, 4: 2, 5: 1, 7: 2, 10: 1, 11: 1}),
    3: (("1-1.0", "3-0.0", "3-newer"), {3: 3, 4: 3, 5: 3, 7: 3, 10: 1, 11: 1}),
}


@pytest.mark.parametrize("numbers", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_every_way_to_a_version_gives_its_vectors(numbers: Sequence[int]) -> None:
    server, before = Server(Redis(dict(BLOBS))), set[str]()
    for number in numbers:
        names, expected = VERSIONS[number]
        assert server.load(number, names) == expected
        assert set(server.redis.read) == set(names) - before
        before = set(names)


def test_a_version_that_shares_all_blobs_reads_none() -> None:
    server = Server(Redis(dict(BLOBS)))
    names, expected = VERSIONS[2]
    server.load(2, names)
    assert server.load(3, names) == expected and server.redis.read == []


def test_a_new_blob_that_is_gone_leaves_the_version_before() -> None:
    server = Server(Redis({name: blob for name, blob in BLOBS.items() if name != "3-0.0"}))
    server.load(2, VERSIONS[2][0])
    before = server.version
    assert server.load(3, VERSIONS[3][0]) == {} and server.version is before


def test_the_version_before_keeps_its_vectors() -> None:
    """Requests that began under it still read them."""
    before = IdVectors(np.array([1, 2]), np.ones((2, OUT), np.float32))
    after = before.with_newer(np.array([2, 2]), np.array([[2.0] * OUT, [3.0] * OUT], np.float32))
    assert before.vectors[:, 0].tolist() == [1, 1] and after.vectors[:, 0].tolist() == [1, 3]
    assert after.find(np.array([2]))[0].tolist() == [1]
