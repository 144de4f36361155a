"""Draft of a version: ranks tell each other of their shares, and every rank writes the same manifest."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from livectr.store.evictions import Evictions
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import Freshness, VersionManifest
from livectr.trainer.content.names import ContentNames, described, names_of
from livectr.trainer.counts import summed
from livectr.trainer.publish.lineage import Lineage
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot, earlier_blobs, is_served


@dataclass(frozen=True)
class ShareNotice:
    """Facts of a rank's share that all ranks need; epoch, version, sentinel and time of rank 0 count.

    Attributes:
        epoch: of the trainer; rank 0 takes a new one when a publish fails.
        version: next number; rank 0 knows the numbers of rollbacks.
        rows: table → rows on the rank.
        written: rows that the rank writes.
        content: blobs of content vectors that it writes (content.names.described).
        sentinel: random word of a complete version.
        created_ms: time of the version, ms since 1970.
    """

    epoch: int
    version: int
    rows: Mapping[str, int]
    written: int
    content: Mapping[str, Any]
    sentinel: str
    created_ms: int

    @staticmethod
    def of(snapshot: VersionSnapshot, epoch: int, version: int) -> ShareNotice:
        """Notice of this rank, as of now."""
        return ShareNotice(
            epoch=epoch,
            version=version,
            rows=dict(snapshot.table_rows),
            written=snapshot.written,
            content=described(snapshot.content),
            sentinel=secrets.token_hex(8),
            created_ms=time.time_ns() // 1_000_000,
        )

    def as_json(self) -> dict[str, Any]:
        """Values for `ShareNotice(**values)` on another rank."""
        return asdict(self)


@dataclass(frozen=True)
class Learning:
    """Examples that a version has learned.

    Attributes:
        examples: of the model.
        committed: of the oldest kept checkpoint.
        freshness: event times since the version before.
    """

    examples: int
    committed: int
    freshness: Freshness


@dataclass(frozen=True)
class Draft:
    """Version about to begin, the same on every rank.

    Attributes:
        content: content → names of its blobs.
        rows: table rows that all ranks write.
    """

    manifest: VersionManifest
    content: Mapping[str, ContentNames]
    rows: int

    @staticmethod
    def of(
        shares: Sequence[ShareNotice],
        lineage: Lineage,
        model: PublishedModel,
        snapshot: VersionSnapshot,
        learning: Learning,
        space: Keyspace,
        evictions: Evictions,
    ) -> Draft:
        """Draft the next version of a lineage.

        Args:
            shares: of every rank.
            lineage: versions before it.
            model: of the trainer.
            snapshot: of this rank; step, champion and items are those of all ranks.
            learning: how far the model has learned.
            space: keys of the namespace.
            evictions: newest count; a delta keeps that of the version which it extends.
        """
        first, base = shares[0], lineage.base
        version, epoch, world = first.version, first.epoch, len(shares)

        def blob(name: str) -> str:
            return space.blob(version, name)

        content = names_of(
            [share.content for share in shares],
            lambda name, rank, tag: blob(f"content-{name}-{epoch}-{rank}-{tag}"),
            base.content if base is not None else {},
        )
        segments = model.served(snapshot.champion)
        manifest = VersionManifest(
            version=version,
            epoch=epoch,
            row_set=lineage.row_set(epoch),
            step=snapshot.step,
            world=world,
            created_ms=first.created_ms,
            tables=summed([dict(share.rows) for share in shares]),
            dense=tuple(blob(f"dense-{epoch}-{rank}") for rank in range(world)),
            changed=tuple(blob(f"changed-{epoch}-{rank}") for rank in range(world)),
            earlier=earlier_blobs(base),
            item_vectors=snapshot.item_names(lambda tag: blob(f"items-{epoch}-{tag}"), base),
            content={name: names.all for name, names in content.items()},
            freshness=learning.freshness,
            examples=learning.examples,
            committed=learning.committed,
            sentinel=first.sentinel if base is None else base.sentinel,
            evictions=evictions if base is None else base.evictions,
            fingerprint=model.fingerprint,
            dim=sum(dim for _, dim in segments),
            segments=segments,
            seed=model.seed,
            run_id=lineage.run_id,
            champion=snapshot.champion,
            from_zero=tuple(pair for pair in model.from_zero if is_served(pair[0], snapshot.champion)),
        )
        return Draft(manifest, content, sum(share.written for share in shares))
