"""Vectors of content (images, texts) at the version that answers; of what is too new for it, on the fly.

id ─► published vector of the version
   └► cold: its raw features ─► sub-model of the version ─► vector, kept while the version is served
          brought by this request
          in the server's folder (--content images=DIR)
          brought by an earlier request
   └► neither: the sub-model's learned "absent" vector, as in training
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from livectr.ingest.content.folders import content_folders
from livectr.ingest.content.store import ContentStore
from livectr.ingest.language.content import content_of
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.errors import ConfigError, MismatchError, UserError
from livectr.models.embedding import SubModel, SubNetwork
from livectr.protos.store import CONTENT, F32, I64, decode_vectors
from livectr.serving import metrics
from livectr.serving.version.id_vectors import IdVectors

F16 = npt.NDArray[np.float16]

log = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Rows of features that requests have brought and that are kept for later ones: 8 KB each at width 4096."""
_COLD_VECTORS = 100_000
"""Vectors of cold ids that are kept for a version; when there are more, all are computed anew."""
_REFRESH_S = 1.0
"""A folder is looked at for new rows at most so often, when a request has an id that is not in it."""


class Source:
    """Where raw features of one content come from, for every version.

    fields: the features of the pipeline whose keys are its ids. folder: a content store, or None.
    Raises ConfigError for a folder that is none, or of another width.
    """

    def __init__(self, name: str, model: SubModel, fields: Sequence[str], folder: Path | None) -> None:
        self.name, self.model, self.fields = name, model, tuple(fields)
        self._store = None if folder is None else ContentStore.open(folder)
        if self._store is not None and self._store.width != model.width:
            raise ConfigError(
                f"content {name!r}: {folder} has rows of {self._store.width} numbers, the sub-model takes "
                f"{model.width}; encode with the encoder that it was trained with"
            )
        self._remembered: OrderedDict[int, F16] = OrderedDict()
        self._lock = threading.Lock()
        self._looked = time.monotonic()

    def remember(self, id: int, row: F16) -> F16:
        """Keeps a row that a request brought; gives the one that is kept, the same object for equal rows."""
        with self._lock:
            held = self._remembered.get(id)
            if held is None or not np.array_equal(held, row):
                held = self._remembered[id] = row.copy()  # not a view of the whole request
            self._remembered.move_to_end(id)
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
            return held

    def read(self, ids: I64) -> tuple[F16, npt.NDArray[np.bool_]]:
        """Features f16[n, width] of ids i64[n], and known bool[n]."""
        rows, known = np.zeros((len(ids), self.model.width), np.float16), np.zeros(len(ids), bool)
        if self._store is not None:
            rows, known = self._store.read(ids)
            if not known.all() and time.monotonic() >= self._looked + _REFRESH_S and self.refresh():
                rows, known = self._store.read(ids)
        with self._lock:
            for i in np.flatnonzero(~known).tolist():
                held = self._remembered.get(int(ids[i]))
                if held is not None:
                    rows[i], known[i] = held, True
        return rows, known

    def refresh(self) -> bool:
        """Looks for rows that another process has added to the folder; whether there were any."""
        self._looked = time.monotonic()
        try:
            return self._store is not None and self._store.refresh()
        except (UserError, OSError) as error:  # requests go on with the rows that are known
            log.error("content %s: %s", self.name, error)
            return False


class ContentVectors:
    """The vectors of one content at one version.

    network: the version's sub-model. before: those of the version before, whose index is used again where
    the ids are the same.

    Attributes:
        fields: those whose keys are the ids.
    """

    def __init__(
        self, source: Source, network: SubNetwork, blobs: Sequence[bytes], before: ContentVectors | None
    ) -> None:
        parts = [decode_vectors(blob) for blob in blobs]
        self.published: IdVectors = IdVectors(
            np.concatenate([ids for ids, _ in parts]),
            np.concatenate([vectors for _, vectors in parts]),
            None if before is None else before.published,
        )
        self.fields = source.fields
        self._source = source
        self._network = network.eval().requires_grad_(False)
        self._cold: dict[int, tuple[F16 | None, F32]] = {}
        """Id → what a request brought (None: it was in the folder), and its vector."""

    def find(self, ids: I64, brought: Mapping[int, F16]) -> F32:
        """Vectors f32[n, out] of ids i64[n]; brought: features of a request, by id."""
        rows, known = self.published.find(ids)
        if known.all():
            return self.published.vectors.take(rows, axis=0)
        out = np.empty((len(ids), self.published.vectors.shape[1]), np.float32)
        out[known] = self.published.vectors[rows[known]]
        unique, index = np.unique(ids[~known], return_inverse=True)
        out[~known] = self._cold_vectors(unique, brought)[index]
        return out

    def account(self) -> None:
        """Sets the gauges, when the version begins to be served."""
        metrics.CONTENT_VECTORS.labels(self._source.name).set(len(self.published))
        metrics.COLD_VECTORS.labels(self._source.name).set(len(self._cold))

    def _cold_vectors(self, ids: I64, brought: Mapping[int, F16]) -> F32:
        """Of different ids i64[m] that have no published vector: f32[m, out]."""
        out = np.empty((len(ids), self.published.vectors.shape[1]), np.float32)
        given: list[tuple[int, F16]] = []
        other: list[int] = []
        for i, id in enumerate(ids.tolist()):
            row = self._source.remember(id, brought[id]) if id in brought else None
            kept = self._cold.get(id)
            if kept is not None and (row is None or kept[0] is row):
                out[i] = kept[1]
            elif row is not None:
                given.append((i, row))
            else:
                other.append(i)
        cached = len(ids) - len(given) - len(other)
        rows, known = (
            self._source.read(ids[other]) if other else (np.empty((0, 0), np.float16), np.empty(0, bool))
        )
        if given:
            at = [i for i, _ in given]
            out[at] = self._embed(np.stack([row for _, row in given]))
            self._keep({int(ids[i]): (row, out[i].copy()) for i, row in given})
        if other:
            out[other] = self._embed(rows, known)
            self._keep({int(ids[i]): (None, out[i].copy()) for i in np.array(other)[known].tolist()})
        counter = metrics.COLD_CONTENT
        name, absent = self._source.name, int((~known).sum())
        counter.labels(name, "cached").inc(cached)
        counter.labels(name, "embedded").inc(len(ids) - cached - absent)
        counter.labels(name, "absent").inc(absent)
        return out

    def _keep(self, found: dict[int, tuple[F16 | None, F32]]) -> None:
        if len(self._cold) + len(found) > _COLD_VECTORS:
            self._cold = {}
        self._cold.update(found)
        metrics.COLD_VECTORS.labels(self._source.name).set(len(self._cold))

    @torch.inference_mode()
    def _embed(self, rows: F16, known: npt.NDArray[np.bool_] | None = None) -> F32:
        """As training does: f32[m, out] of features f16[m, width]; known: whether they are there."""
        there = np.ones(len(rows), bool) if known is None else known
        out: F32 = self._network(torch.from_numpy(rows), torch.from_numpy(there)).numpy()
        return out


class Contents:
    """The content that one server's model looks at; none where it looks at none.

    fields: those of which the model wants content. folders: "images=DIR,texts=DIR2", or None.
    Raises ConfigError for a folder of content that the pipeline has not, or that cannot be used.
    """

    def __init__(self, pipeline: Pipeline, fields: Sequence[str], folders: str | None) -> None:
        given = content_folders(folders)
        for name in given:
            if name not in pipeline.content:
                known = ", ".join(pipeline.content) or "none"
                raise ConfigError(f"content names {name!r}, but the content of the pipeline is {known}")
        self.widths: dict[str, int] = {}
        self.sources: dict[str, Source] = {}
        used = content_of(pipeline.content, fields)
        for name, content in pipeline.content.items():
            if not isinstance(content.model, SubModel):
                raise ConfigError(f"content {name!r}: model is {content.model!r}, but must be a SubModel")
            self.widths[name] = content.model.width
            if name in used:
                wanted = [field for field in content.fields if field in fields]
                self.sources[name] = Source(name, content.model, wanted, given.get(name))

    def blobs(self, published: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        """Names of blobs to fetch, out of a manifest's `content`. Raises MismatchError for one without."""
        for name in self.sources:
            if name not in published:
                raise MismatchError(f"the published version has no vectors of content {name!r}")
        return {name: published[name] for name in self.sources}

    def at(
        self,
        blobs: Mapping[str, Sequence[bytes]],
        dense: Mapping[str, Tensor],
        before: Mapping[str, ContentVectors],
    ) -> dict[str, ContentVectors]:
        """The vectors of a version: blobs as named by `blobs`, dense: all its tensors."""
        found = {}
        for name, source in self.sources.items():
            source.refresh()
            network = _loaded(name, source.model, dense)
            found[name] = ContentVectors(source, network, blobs[name], before.get(name))
        return found


def _loaded(name: str, model: SubModel, dense: Mapping[str, Tensor]) -> SubNetwork:
    prefix = f"{CONTENT}{name}."
    network = model.network(f"{CONTENT}{name}", 0)
    try:
        network.load({key.removeprefix(prefix): t for key, t in dense.items() if key.startswith(prefix)})
    except (KeyError, ValueError) as error:
        raise MismatchError(
            f"the published sub-model of content {name!r} is another pipeline's: {error}"
        ) from error
    return network
