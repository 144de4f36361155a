"""Published vectors of content and items that are older than their version (`content_refresh_s`).

The checkpoint has the sub-model and the item tower of the version's step alone, which do not explain a
vector of an earlier step. So such a version's vectors are taken as they were published, and all else is
recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import numpy.typing as npt

from livectr.ingest.pipeline import Pipeline
from livectr.store.layout import Keyspace, without_password
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import connect_redis
from livectr.store.redis_errors import REDIS_ERRORS
from livectr.store.redis_url import is_clustered
from livectr.store.vectors import decode_vectors
from livectr.system.errors import ConnectError

ITEMS = "item vectors"
"""Name of the vectors of items, beside names of content."""

Vectors = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Ids i64[n], and their vectors f32[n, out]; of a repeated id the last counts."""


class PublishedVectors:
    """Reads manifests and vectors from the Redis that the servers read.

    Args:
        url: of Redis.
        namespace: prefix of its keys.
    """

    def __init__(self, pipeline: Pipeline, url: str, namespace: str) -> None:
        self._url, self._space = url, Keyspace(namespace, clustered=is_clustered(url))
        self._worths = pipeline.worths is not None and pipeline.worths.published
        self._redis = (
            connect_redis("verify", url, timeout_s=30) if pipeline.content or pipeline.prerank else None
        )

    def manifest(self) -> VersionManifest | None:
        """Manifest of the newest version; None: nothing is published, or the pipeline has no vectors."""
        text = self._get(self._space.manifest)
        return VersionManifest.from_json(text) if text is not None else None

    def older(self, manifest: VersionManifest | None) -> Mapping[str, Vectors] | None:
        """Content, or `ITEMS`, that has vectors of earlier versions → all of its vectors.

        None: they are gone from Redis.

        Args:
            manifest: of the version; None: the pipeline has no vectors.
        """
        if manifest is None:
            return {}
        found: dict[str, Vectors] = {}
        for name, blobs in {**manifest.content, ITEMS: manifest.item_vectors}.items():
            if all(blob.startswith(self._space.blob(manifest.version, "")) for blob in blobs):
                continue
            values = [self._get(blob) for blob in blobs]
            parts = [decode_vectors(value) for value in values if value is not None]
            if len(parts) < len(blobs):
                return None
            gone = [ids for ids, vectors in parts if not vectors.shape[1]]
            ids, vectors = zip(*(part for part in parts if part[1].shape[1]), strict=True)
            found[name] = np.concatenate(ids), np.concatenate(vectors)
            if name == ITEMS and self._worths:
                found[name] = found[name][0], found[name][1][:, :-1]
            if gone:
                stay = ~np.isin(found[name][0], np.concatenate(gone))
                found[name] = found[name][0][stay], found[name][1][stay]
        return found

    def close(self) -> None:
        """Close the connection to Redis, if one was opened."""
        if self._redis is not None:
            self._redis.close()

    def _get(self, name: str) -> bytes | None:
        if self._redis is None:
            return None
        try:
            return cast("bytes | None", self._redis.get(name))
        except REDIS_ERRORS as error:
            raise ConnectError(
                f"Redis at {without_password(self._url)} does not answer ({error}); name the Redis that the "
                "servers read with --redis"
            ) from None
