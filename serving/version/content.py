"""Vectors of content (images, texts) at a version; content that is too new for it is embedded on the fly.

id ─► published vector of the version
   └► cold: its raw features ─► sub-model of the version ─► vector, kept while the version is served
          inline content of this request
          the server's folder (its setting `content`)
   └► neither: the sub-model's learned "absent" vector, as in training

Inline content answers its own request alone: a client may send any features under any id. Its vectors are
kept by a digest of the features, so equal features are embedded once, and no client changes another's answer.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from livectr.ingest.content.folders import content_folders
from livectr.ingest.content.store import ContentStore
from livectr.ingest.language.content import content_of
from livectr.ingest.pipeline import Pipeline
from livectr.models.embedding import SubModel, SubNetwork
from livectr.models.weights import loaded
from livectr.serving import metrics
from livectr.serving.deadlines import CALL
from livectr.serving.version.id_vectors import IdVectors, joined
from livectr.store.layout import CONTENT, F32, I64
from livectr.store.vectors import Blob, decode_vectors
from livectr.system.errors import ConfigError, MismatchError, UserError

F16 = npt.NDArray[np.float16]

log = logging.getLogger(__name__)

_COLD_VECTORS = 100_000
"""Vectors of cold content that are kept for a version; when there are more, all are dropped."""
_EMBEDDED_ROWS = 1024
"""Rows that the sub-model takes at a time: between two times the request may stop."""
_REFRESH_S = 1.0
"""Shortest interval in seconds at which a folder is searched for new rows, after an unknown id."""


class RawFeatures:
    """Raw features of a content, for every version: a folder.

    Args:
        name: of the content in the pipeline.
        model: configuration of its sub-model.
        fields: features of the pipeline whose keys are the ids.
        folder: content store, or None.

    Raises:
        ConfigError: the folder is not a content store, or has another width.
    """

    def __init__(self, name: str, model: SubModel, fields: Sequence[str], folder: Path | None) -> None:
        self.name, self.model, self.fields = name, model, tuple(fields)
        self._store = None if folder is None else ContentStore.open(folder)
        if self._store is not None and self._store.width != model.width:
            raise ConfigError(
                f"content {name!r}: {folder} has rows of {self._store.width} numbers, the sub-model takes "
                f"{model.width}; encode with the encoder that it was trained with"
            )
        self._refreshed = time.monotonic()

    def read(self, ids: I64) -> tuple[F16, npt.NDArray[np.bool_]]:
        """Read features f16[n, width] of ids i64[n], and known bool[n]."""
        rows, known = np.zeros((len(ids), self.model.width), np.float16), np.zeros(len(ids), bool)
        if self._store is not None:
            rows, known = self._store.read(ids)
            if not known.all() and time.monotonic() >= self._refreshed + _REFRESH_S and self.refresh():
                rows, known = self._store.read(ids)
        return rows, known

    def refresh(self) -> bool:
        """Load rows that another process has added to the folder; True if there were any."""
        self._refreshed = time.monotonic()
        try:
            return self._store is not None and self._store.refresh()
        except (UserError, OSError) as error:  # requests continue with the rows that are known
            log.error("content %s: %s", self.name, error)
            return False


class ContentVectors:
    """Vectors of a content at a version.

    Args:
        raw: raw features, for ids without a published vector.
        network: the version's sub-model.
        blobs: published vectors; of an id in two blobs the last counts.
        before: vectors of the previous version; their index is shared when the ids are equal.
        added: the previous version's vectors that no blob has are this version's, too.

    Attributes:
        fields: features of the pipeline whose keys are the ids.
        published: published vectors by id.
    """

    def __init__(
        self,
        raw: RawFeatures,
        network: SubNetwork,
        blobs: Sequence[Blob],
        before: ContentVectors | None,
        *,
        added: bool = False,
    ) -> None:
        self.published: IdVectors = _published(blobs, None if before is None else before.published, added)
        self.fields = raw.fields
        self._raw = raw
        self._network = network
        self._cold: dict[int | bytes, F32] = {}
        """Id of a row in the folder, or digest of a row of inline content → its vector."""

    def find(self, ids: I64, inline: Mapping[int, F16]) -> F32:
        """Vectors f32[n, out] of ids i64[n].

        Args:
            ids: i64[n].
            inline: inline content of the request: id → raw features f16[width].
        """
        rows, known = self.published.find(ids)
        if known.all():
            return self.published.vectors.take(rows, axis=0)
        out = np.empty((len(ids), self.published.vectors.shape[1]), np.float32)
        out[known] = self.published.vectors[rows[known]]
        unique, index = np.unique(ids[~known], return_inverse=True)
        out[~known] = self._cold_vectors(unique, inline)[index]
        return out

    def set_gauges(self) -> None:
        """Set the gauges when the version begins to be served."""
        metrics.CONTENT_VECTORS.labels(self._raw.name).set(len(self.published))
        metrics.COLD_VECTORS.labels(self._raw.name).set(len(self._cold))

    def _cold_vectors(self, ids: I64, inline: Mapping[int, F16]) -> F32:
        """Vectors f32[m, out] of unique ids i64[m] without a published vector."""
        out = np.empty((len(ids), self.published.vectors.shape[1]), np.float32)
        sent: list[tuple[int, bytes, F16]] = []
        other: list[int] = []
        for i, id in enumerate(ids.tolist()):
            row = inline.get(id)
            digest = b"" if row is None else hashlib.blake2b(row.tobytes(), digest_size=32).digest()
            kept = self._cold.get(digest or id)
            if kept is not None:
                out[i] = kept
            elif row is None:
                other.append(i)
            else:
                sent.append((i, digest, row))
        cached = len(ids) - len(sent) - len(other)
        rows, known = (
            self._raw.read(ids[other]) if other else (np.empty((0, 0), np.float16), np.empty(0, bool))
        )
        if sent:
            out[[i for i, _, _ in sent]] = self._embed(np.stack([row for _, _, row in sent]))
            self._keep({digest: out[i].copy() for i, digest, _ in sent})
        if other:
            out[other] = self._embed(rows, known)
            self._keep({int(ids[i]): out[i].copy() for i in np.array(other)[known].tolist()})
        counter = metrics.COLD_CONTENT
        name, absent = self._raw.name, int((~known).sum())
        counter.labels(name, "cached").inc(cached)
        counter.labels(name, "embedded").inc(len(ids) - cached - absent)
        counter.labels(name, "absent").inc(absent)
        return out

    def _keep(self, embedded: Mapping[int | bytes, F32]) -> None:
        if len(self._cold) + len(embedded) > _COLD_VECTORS:
            self._cold = {}
        self._cold.update(embedded)
        metrics.COLD_VECTORS.labels(self._raw.name).set(len(self._cold))

    @torch.inference_mode()
    def _embed(self, rows: F16, known: npt.NDArray[np.bool_] | None = None) -> F32:
        """Embed raw features f16[m, width] as training does: f32[m, out].

        Args:
            rows: f16[m, width]; m may be 0.
            known: bool[m], False for rows without features; None: all have features.

        Raises:
            DeadlineError, CancelledError: the deadline of the thread's call passed, or its client cancelled.
        """
        mask = np.ones(len(rows), bool) if known is None else known
        parts: list[F32] = []
        for first in range(0, max(len(rows), 1), _EMBEDDED_ROWS):
            if parts:
                CALL.get().check("look_up")
            some = slice(first, first + _EMBEDDED_ROWS)
            parts.append(self._network(torch.from_numpy(rows[some]), torch.from_numpy(mask[some])).numpy())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Contents:
    """Content that the model of a role reads; may be empty.

    Args:
        fields: fields of which the model reads the content.
        folders: "images=DIR,texts=DIR2", or None.

    Attributes:
        widths: content name → width of its raw features, for all content of the pipeline.
        raw: content name → raw features, for content that the model reads.

    Raises:
        ConfigError: a folder is named for unknown content, or cannot be used.
    """

    def __init__(self, pipeline: Pipeline, fields: Sequence[str], folders: str | None) -> None:
        given = content_folders(folders)
        for name in given:
            if name not in pipeline.content:
                known = ", ".join(pipeline.content) or "none"
                raise ConfigError(f"content names {name!r}, but the content of the pipeline is {known}")
        self.widths: dict[str, int] = {}
        self.raw: dict[str, RawFeatures] = {}
        used = content_of(pipeline.content, fields)
        for name, content in pipeline.content.items():
            if not isinstance(content.model, SubModel):
                raise ConfigError(f"content {name!r}: model is {content.model!r}, but must be a SubModel")
            self.widths[name] = content.model.width
            if name in used:
                own = [field for field in content.fields if field in fields]
                self.raw[name] = RawFeatures(name, content.model, own, given.get(name))

    def blobs(
        self, published: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
    ) -> dict[str, Sequence[str]]:
        """Select the names of blobs to load from a manifest's `content`: those that are not loaded.

        Args:
            published: name → blobs of the version's manifest.
            before: names of the blobs of the previous version, whose vectors are loaded.

        Raises:
            MismatchError: the version has no vectors of a content.
        """
        for name in self.raw:
            if name not in published:
                raise MismatchError(f"the published version has no vectors of content {name!r}")
        loaded = {name: set(before.get(name, ())) for name in self.raw}
        return {name: [blob for blob in published[name] if blob not in loaded[name]] for name in self.raw}

    def decode(
        self,
        blobs: Mapping[str, Sequence[Blob]],
        dense: Mapping[str, Tensor],
        before: Mapping[str, ContentVectors],
        added: Collection[str] = (),
    ) -> dict[str, ContentVectors]:
        """Decode the vectors of a version.

        Args:
            blobs: content name → blobs, in the order of `blobs`.
            dense: all dense tensors of the version.
            before: vectors of the previous version.
            added: content of which some blobs are the previous version's, and not in `blobs`.
        """
        vectors = {}
        for name, raw in self.raw.items():
            raw.refresh()
            network = loaded(
                raw.model.network(f"{CONTENT}{name}", 0),
                dense,
                f"{CONTENT}{name}.",
                f"the published sub-model of content {name!r}",
            )
            vectors[name] = ContentVectors(raw, network, blobs[name], before.get(name), added=name in added)
        return vectors


def _published(blobs: Sequence[Blob], before: IdVectors | None, added: bool) -> IdVectors:
    parts = [decode_vectors(blob) for blob in blobs]
    if added and before is not None:
        return before.with_newer(*joined(parts)) if parts else before
    return IdVectors(*joined(parts), before)
