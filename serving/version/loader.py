"""Loading of a version: manifest and blobs of Redis become a model with weights, vectors and changed keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from livectr.serving.version.content import Contents, ContentVectors
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.items import ItemVectors
from livectr.serving.version.near_cache import NearCache
from livectr.serving.version.reader import Reader
from livectr.store.layout import F32, I64, RowStatus, decode_changed
from livectr.store.manifest import VersionManifest
from livectr.system.errors import MismatchError


@dataclass(frozen=True)
class ModelVersion:
    """Version in memory, as requests use it.

    Args:
        dense: all dense tensors of the version, by their published names.
        item_vectors: item vectors and their blobs, if the role reads them.
        scorers: "rank" and "prerank" → model with its weights, of the role's models.
        content: content name → vectors, for content that the model reads.
    """

    manifest: VersionManifest
    dense: Mapping[str, torch.Tensor]
    item_vectors: ItemVectors | None
    scorers: Mapping[str, object]
    content: Mapping[str, ContentVectors]

    @property
    def items(self) -> IdVectors | None:
        """Matrix of the item vectors."""
        return self.item_vectors.matrix if self.item_vectors is not None else None

    @property
    def number(self) -> int:
        """Number of the version."""
        return self.manifest.version


@dataclass(frozen=True)
class RoleSpec:
    """Role-specific part of a version.

    Args:
        role: "rank" or "prerank".
        fingerprint: of the pipeline.
        contents: content that the role's model reads.
        with_items: whether item vectors are loaded.
        with_worths: whether they have worths behind them.
        near_cache: makes an empty near-cache for a version.
        scorers: makes the models of a version from its dense tensors; see `ModelVersion`.
        leaves_ms: time for which an impression waits before it is learned (`ingest.language.streams`).
        contenders: roles of the ranking models that a version may hold; () if the role does not rank.
    """

    role: str
    fingerprint: str
    contents: Contents
    with_items: bool
    near_cache: Callable[[VersionManifest], NearCache]
    scorers: Callable[[VersionManifest, Mapping[str, torch.Tensor]], Mapping[str, object]]
    leaves_ms: int = 0
    contenders: Sequence[str] = ()
    with_worths: bool = False


class VersionLoader:
    """Loads versions of a pipeline for a role."""

    def __init__(self, reader: Reader, spec: RoleSpec) -> None:
        self._reader = reader
        self._spec = spec

    def parse(self, manifest_json: bytes) -> VersionManifest:
        """Parse a manifest.

        Raises:
            ValueError: not a manifest.
            MismatchError: the version belongs to another pipeline, or has another format.
        """
        manifest = VersionManifest.from_json(manifest_json)
        expected = self._spec.fingerprint
        if manifest.fingerprint != expected:
            raise MismatchError(
                f"Redis at {self._reader.url} holds version {manifest.version} of another pipeline "
                f"(fingerprint {manifest.fingerprint[:12]}, this one is {expected[:12]}): serve the "
                "pipeline file that was trained, by its release, or use another namespace"
            )
        return manifest

    def load(self, manifest: VersionManifest, before: ModelVersion | None) -> ModelVersion | None:
        """Load weights, item vectors and content vectors.

        Args:
            manifest: of the version.
            before: the served version; indices of its vectors are shared when the ids are equal.

        Returns:
            The version; None if a blob is gone.

        Raises:
            redis.RedisError: an error of REDIS_ERRORS.
            MismatchError, ValueError: a blob does not fit the pipeline, or does not decode.
        """
        loaded = before.manifest.content if before is not None else {}
        content_names = self._spec.contents.blobs(manifest.content, loaded)
        added = [name for name, blobs in content_names.items() if len(blobs) < len(manifest.content[name])]
        item_names = manifest.item_vectors if self._spec.with_items else ()
        known = before.item_vectors if before is not None else None
        new_items = [name for name in item_names if known is None or name not in known.ids]
        names = [*new_items, *chain.from_iterable(content_names.values())]
        dense: dict[str, torch.Tensor] = {}
        for blob in self._reader.blobs(manifest.dense):
            if blob is None:
                return None
            dense |= load_tensors(blob)
        read = zip(names, self._reader.large_blobs(names), strict=True)
        vectors = {name: blob for name, blob in read if blob is not None}
        if len(vectors) < len(names):
            return None
        items = None
        if item_names:
            new = {name: vectors.pop(name) for name in new_items}
            items = ItemVectors.of(item_names, new, known, worths=self._spec.with_worths)
        content = self._spec.contents.decode(
            {name: [vectors[blob] for blob in parts] for name, parts in content_names.items()},
            dense,
            before.content if before else {},
            added,
        )
        return ModelVersion(manifest, dense, items, self._spec.scorers(manifest, dense), content)

    def changed_keys(self, manifest: VersionManifest, before: ModelVersion | None) -> dict[str, I64] | None:
        """Keys of each table that changed after the served version; None: unknown.

        Raises:
            redis.RedisError: an error of REDIS_ERRORS.
        """
        if before is None:
            return None
        names = manifest.changed_since(before.number, before.manifest.row_set)
        if names is None:
            return None
        changed: dict[str, list[I64]] = {}
        for blob in self._reader.blobs(names):
            if blob is None:
                return None
            for table, keys in decode_changed(blob).items():
                changed.setdefault(table, []).append(keys)
        return {table: np.unique(np.concatenate(parts)) for table, parts in changed.items()}

    def cached_rows(
        self, manifest: VersionManifest, cache: NearCache, changed: Mapping[str, I64]
    ) -> dict[str, tuple[I64, F32]]:
        """Read the changed rows that the near-cache holds, as of a version.

        Returns:
            Table → (keys i64[n], rows f32[n, D]); without rows that the version does not have.

        Raises:
            redis.RedisError: an error of REDIS_ERRORS.
        """
        keys = {table: cache.cached(table, ids) for table, ids in changed.items() if table in cache.tables}
        read = self._reader.rows(manifest, keys, patient=True)
        return {
            table: (keys[table][status == RowStatus.FOUND], rows[status == RowStatus.FOUND])
            for table, (rows, status) in read.items()
        }
