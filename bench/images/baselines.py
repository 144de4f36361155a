"""Baselines of AMS in DICM §7.3: the features come to the sub-model.

store-in-worker    a worker's training data carry the features of every image that its samples refer to
store-in-server    features are fetched from their owners, each once a worker and batch, by id

Both run the sub-model on the workers; otherwise they are our own step, with another `ams`:
`des.ams = StoreInServer.of(des.ams, …)`. They train the same model. Features are sent, and stored with the
samples, in `dtype`; the embedded numbers are the same.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from bench.images.workload import Batch
from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.content.ams import (
    Ams,
    Content,
    ContentRequest,
    Features16,
    Read,
    references_of,
    send_to_owners,
)

I64 = NDArray[np.int64]


class OnWorkers(Ams):
    """The sub-model runs for each rank's own unique ids, on that rank."""

    @classmethod
    def of(cls, ams: Ams, collectives: Collectives, common: Common, dtype: DTypeLike) -> Self:
        """In place of `ams`, over the same sub-models."""
        made = cls(list(ams.contents.values()), collectives, scatter=True, common=common)
        made.dtype = np.dtype(dtype)
        return made

    dtype: np.dtype[Any]

    def _request(self, content: Content, features: Features | CommonFeatures) -> ContentRequest:
        parts = {field: self._cells(number, features) for number, field in content.fields.items()}
        keys = np.concatenate([keys for _, keys, _ in parts.values()])
        unique = unique_segments(keys, np.array([0, len(keys)], np.int64))
        index = unique.index.astype(np.int64)
        reading = Future[Read]()
        reading.set_result((self.rows(content, unique.keys, index), np.ones(len(unique.keys), bool)))
        return ContentRequest(references_of(parts, index), (), [], reading)

    def rows(self, one: Content, ids: I64, index: I64) -> NDArray[Any]:
        """Features [U, width] of the own unique ids; index i64[nnz]: row of each reference."""
        raise NotImplementedError

    def _own_vectors(self, content: Content, request: ContentRequest) -> Tensor:
        return content.embed(*request.reading.result())


class StoreInServer(OnWorkers):
    """Collective: ids to their owners, rows of features back."""

    def rows(self, one: Content, ids: I64, index: I64) -> NDArray[Any]:
        """See `OnWorkers.rows`."""
        shared, width = self._collectives, one.store.width
        world, rank = shared.world, shared.rank
        owner = one.owners(ids, world)
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=world)
        bounds, requested = send_to_owners(ids[order], counts, shared)
        found = np.split(one.store.read(requested)[0].astype(self.dtype, copy=False), bounds[1:-1])
        each = width * self.dtype.itemsize
        away = sum(part.nbytes for r, part in enumerate(found) if r != rank)
        came = shared.all_to_all_bytes(
            [part.reshape(-1).view(np.uint8) for part in found],
            (each * counts).tolist(),
            {"content features": away},
        )
        rows = np.empty((len(ids), width), self.dtype)
        rows[order] = np.concatenate(came).view(self.dtype).reshape(-1, width)
        return rows


class StoreInWorker(OnWorkers):
    """Reads each batch's features from the file that `feed` names, in the order of the batches."""

    def feed(self, file: Path) -> None:
        """Feed the features of the next batch."""
        self.files.append(file)

    @property
    def files(self) -> deque[Path]:
        """Features of the batches to come."""
        if not hasattr(self, "_files"):
            self._files: deque[Path] = deque()
        return self._files

    def rows(self, one: Content, ids: I64, index: I64) -> NDArray[Any]:
        """See `OnWorkers.rows`."""
        stored = np.load(self.files.popleft(), mmap_mode="r")
        _, first = np.unique(index, return_index=True)
        return np.asarray(stored[first])


def references(batch: Batch, fields: tuple[int, int], common: Common) -> I64:
    """The images that a batch refers to, of the fields numbered so, in field order: i64[nnz]."""
    features = batch.features
    assert isinstance(features, CommonFeatures)
    clicked, shown = fields
    before = sum(f < shown for f in common.fields)
    return np.concatenate(
        [features.common.ids().field(clicked)[1], features.own.ids().field(shown - before)[1]]
    )


def write_ids(folder: Path, batch: Batch) -> int:
    """The training data of a batch without features, as files; returns their bytes."""
    features = batch.features
    assert isinstance(features, CommonFeatures)
    arrays: dict[str, NDArray[Any]] = {"label": batch.label, "index": features.index}
    for side, part in (("common", features.common), ("own", features.own)):
        arrays |= {f"{side}.keys": part.keys, f"{side}.offsets": part.offsets, f"{side}.dense": part.dense}
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return sum(file.stat().st_size for file in folder.iterdir())


def write_features(file: Path, images: I64, store: Features16, dtype: DTypeLike) -> int:
    """The features that a batch's samples carry in store-in-worker; returns the file's bytes."""
    stored = np.lib.format.open_memmap(file, "w+", np.dtype(dtype), (len(images), store.width))
    for start in range(0, len(images), 4096):
        part = slice(start, start + 4096)
        stored[part] = store.read(images[part])[0]
    stored.flush()
    return file.stat().st_size
