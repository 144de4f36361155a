"""Publishing as a trainer does it, step by step, through the trainer's own fenced store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch

from livectr.store.layout import (
    LOOKUP,
    encode_changed,
    encode_history,
    encode_lookup_row,
)
from livectr.store.manifest import Freshness, VersionManifest
from livectr.store.vectors import encode_vectors
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class Publication:
    """Trainer of a pipeline, as far as Redis sees it."""

    def __init__(
        self,
        url: str,
        fingerprint: str,
        segments: tuple[tuple[str, int], ...],
        *,
        seed: int = 1,
        namespace: str = "livectr",
    ) -> None:
        self.store = RedisStore(url, namespace)
        self.store.fence.take(self.store.manifest_text())
        self.fingerprint = fingerprint
        self.segments = segments
        self.seed = seed
        self.row_set = f"{self.store.connection.epoch}-0"
        self.version = 0
        self.last: VersionManifest | None = None
        self.sentinel = ""
        self.champion = "rank"
        self.facts: dict[str, I64] = {}
        """Keys of look-up rows that the next version lists."""

    def promote(self, champion: str, segments: tuple[tuple[str, int], ...]) -> None:
        """Begin a fresh row set of another champion; the next version holds all rows."""
        self.champion, self.segments = champion, segments
        self.row_set = f"{self.store.connection.epoch}-{int(self.row_set.split('-')[1]) + 1}"

    def write_rows(self, rows: Mapping[str, tuple[I64, F32]]) -> None:
        """Write rows of the next version, before its flip."""
        for table, (keys, values) in rows.items():
            self.store.rows.write(self.version + 1, self.row_set, table, keys, values)

    def erase_rows(self, erased: Mapping[str, I64]) -> None:
        """Erase rows in the next version, before its flip."""
        for table, keys in erased.items():
            dim = sum(dim for _, dim in self.segments)
            self.store.rows.erase(self.version + 1, self.row_set, table, keys, dim)

    def flip(
        self,
        rows: Mapping[str, tuple[I64, F32]],
        dense: Mapping[str, torch.Tensor],
        items: tuple[I64, F32] | None = None,
        times_ms: I64 | None = None,
        erased: Mapping[str, I64] | None = None,
        content: Mapping[str, Sequence[tuple[I64, F32]]] = {},
    ) -> int:
        """Publish the next version, whose rows are written already; return its number."""
        version = self.version + 1
        blob = self.store.space.blob
        manifest = VersionManifest(
            version=version,
            epoch=self.store.connection.epoch,
            row_set=self.row_set,
            step=version,
            fingerprint=self.fingerprint,
            world=1,
            created_ms=time.time_ns() // 1_000_000,
            dim=sum(dim for _, dim in self.segments),
            segments=self.segments,
            tables={table: len(keys) for table, (keys, _) in rows.items()},
            dense=(blob(version, "dense"),),
            changed=(blob(version, "changed"),),
            earlier={} if self.last is None else {self.last.version: self.last.changed},
            item_vectors=() if items is None else (blob(version, "items"),),
            content={
                name: tuple(blob(version, f"content-{name}-{i}") for i in range(len(parts)))
                for name, parts in content.items()
            },
            freshness=Freshness() if times_ms is None else Freshness.of(times_ms),
            seed=self.seed,
            sentinel=self.sentinel
            if self.last is not None and self.last.row_set == self.row_set
            else secrets.token_hex(8),
            evictions=self.store.evictions(),
            champion=self.champion,
        )
        complete = manifest.sentinel != self.sentinel  # the first version of a row set
        if complete:
            self.store.open(0, manifest)
        if self.store.space.clustered:
            self.store.begin(version, manifest)
            self.store.pushed(0, manifest, self.store.servers())
        self.store.seal(manifest, None if complete else self.last)
        self.sentinel = manifest.sentinel
        self.store.connection.write_blob(blob(version, "dense"), safetensors.torch.save(dict(dense)))
        self.store.connection.write_blob(
            blob(version, "changed"),
            encode_changed({**{table: keys for table, (keys, _) in rows.items()}, **self.facts}, erased),
        )
        self.facts = {}
        if items is not None:
            self.store.connection.write_blob(blob(version, "items"), encode_vectors(*items))
        for name, parts in content.items():
            for at, part in zip(manifest.content[name], parts, strict=True):
                self.store.connection.write_blob(at, encode_vectors(*part))
        self.store.flip(manifest.to_json(), version, b"")
        self.version, self.last = version, manifest
        return version

    def publish(
        self,
        rows: Mapping[str, tuple[I64, F32]],
        dense: Mapping[str, torch.Tensor],
        items: tuple[I64, F32] | None = None,
        times_ms: I64 | None = None,
        content: Mapping[str, Sequence[tuple[I64, F32]]] = {},
    ) -> int:
        """Write rows and flip; return the version's number."""
        self.write_rows(rows)
        return self.flip(rows, dense, items, times_ms, content=content)

    def lookup_rows(self, table: str, rows: Mapping[int, list[object]]) -> None:
        """Write look-up rows by key: their columns in declared order."""
        keys = np.array(list(rows), np.int64)
        names = self.store.space.lookup_rows(table, keys)
        self.store.rows.write_values(Values(keys, names, [encode_lookup_row(row) for row in rows.values()]))
        self.facts[LOOKUP + table] = keys

    def history(self, root: str, user: int, items: list[int], times_ms: list[int]) -> None:
        """Write the behavior history of a user."""
        keys = np.array([user], np.int64)
        value = encode_history(np.array(items, np.int64), np.array(times_ms, np.int64))
        self.store.rows.write_values(Values(keys, self.store.space.histories(root, keys), [value]))

    def as_of(self, fingerprint: str) -> VersionManifest:
        """Flip the last manifest with another fingerprint: another pipeline takes over the namespace."""
        assert self.last is not None
        manifest = replace(self.last, fingerprint=fingerprint, version=self.version + 1)
        self.store.flip(manifest.to_json(), manifest.version, b"")
        self.version += 1
        return manifest


def seal_values(store: RedisStore, fingerprint: str) -> None:
    """Write the sentinels of a pipeline's look-up rows and histories, for tests without a version."""
    manifest = VersionManifest(
        version=0,
        epoch=store.connection.epoch,
        row_set=f"{store.connection.epoch}-0",
        step=0,
        fingerprint=fingerprint,
        world=1,
        created_ms=0,
        dim=1,
        segments=(),
        tables={},
        sentinel=secrets.token_hex(8),
    )
    store.open(0, manifest)
    store.seal(manifest)
