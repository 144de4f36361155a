"""Protocol of a version in Redis: begin, open, write, pushed, seal, flip; and what a namespace holds.

Every write runs inside a script that first compares the epoch of its bucket with the trainer's. A trainer
that was replaced finds a higher epoch and is refused (`FencedError`). A trainer whose Redis was emptied finds
none: its earlier writes are gone (`LostError`). Writes are idempotent for a version. So a push that failed
halfway is repeated under the same number, once `Fence.renew` has fenced out the rest of the first push.

Rows live under a row set = "<epoch>-<n>" of the n-th complete publish of a trainer. Later versions
write their changes into it.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import redis

from livectr.store.evictions import Evictions
from livectr.store.keyspace import seal_mark
from livectr.store.layout import BUCKETS, VALUES
from livectr.store.manifest import VersionManifest
from livectr.store.redis_errors import is_forbidden
from livectr.system.errors import MismatchError
from livectr.trainer.publish.bucket_seals import (
    begin_buckets,
    mark_shares,
    open_buckets,
    seal_buckets,
    seal_server,
)
from livectr.trainer.publish.fence import Fence
from livectr.trainer.publish.fence_scripts import BEGIN, FLIP, PUSHED
from livectr.trainer.publish.log.entries import LogEntry
from livectr.trainer.publish.row_writer import CHUNK_ROWS, RowWriter
from livectr.trainer.publish.store_connection import StoreConnection
from livectr.trainer.publish.store_errors import LostError
from livectr.trainer.publish.version import blobs_of

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class RedisStore:
    """Versions of a namespace in Redis, as a trainer process writes them.

    Args:
        url: of `store.redis_url`.
        namespace: prefix of all keys: letters, digits, - and _.
        full_rate: most rows a second that this process writes of a complete version; 0: no limit.

    Attributes:
        connection: runs fenced scripts; has the epoch of this trainer, and blobs.
        fence: takes epochs.
        rows: writes rows, look-up rows and histories.

    Raises:
        ConnectError: Redis does not answer.
        ConfigError: the URL or the namespace cannot be used.
    """

    def __init__(self, url: str, namespace: str, *, full_rate: float = 0.0) -> None:
        self.connection = StoreConnection(url, namespace)
        self.fence, self.rows = Fence(self.connection), RowWriter(self.connection)
        self.url, self.space = self.connection.url, self.connection.space
        self.client = self.connection.client
        self.full_rate = full_rate

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    # ── reading ──

    def manifest_of(self, text: bytes | None) -> VersionManifest | None:
        """Parse a manifest's text. Raises MismatchError if another program wrote it."""
        if text is None:
            return None
        try:
            return VersionManifest.from_json(text)
        except ValueError as error:
            raise MismatchError(
                f"{self.space.manifest} in Redis at {self.url} was written by another program ({error}); "
                "use another namespace"
            ) from None

    def manifest_text(self) -> bytes | None:
        """Text of the manifest of the version that is served."""
        return self.connection.blob(self.space.manifest)

    def pushing(self, held: VersionManifest | None = None) -> bool:
        """Tell if a push began that never became a version: rows of it may lie about.

        Args:
            held: version that is served; in a cluster, every bucket must have seen its push last.
        """
        if self.client.exists(self.space.pushing):
            return True
        if not self.space.clustered or held is None:
            return False
        return self.marks() != [seal_mark(held).encode()] * BUCKETS

    def begun(self) -> int | None:
        """Version whose push began and was not flipped; None: no such push."""
        return self.connection.number(self.space.pushing)

    def marks(self) -> list[bytes | None]:
        """Mark of the push that began last in each bucket of a cluster."""
        return self.client.fetch([self.space.begun(b).encode() for b in range(BUCKETS)])

    def log(self, first: int, last: int) -> dict[int, LogEntry]:
        """Version → its entry in the publish log, as far as there are any."""
        versions = range(first, last + 1)
        found: dict[int, LogEntry] = {}
        for start in range(0, len(versions), CHUNK_ROWS):
            part = versions[start : start + CHUNK_ROWS]
            texts = self.client.fetch([self.space.log(version).encode() for version in part])
            for version, text in zip(part, texts, strict=True):
                if text is None:
                    continue
                try:
                    found[version] = LogEntry.from_json(text)
                except ValueError as error:  # without the entry a restart publishes everything
                    LOG.warning("%s in Redis is no entry: %s", self.space.log(version), error)
        return found

    # ── writing ──

    def begin(
        self, version: int, manifest: VersionManifest | None = None, entry: LogEntry | None = None
    ) -> None:
        """Mark that a push of `version` is under way, and its number as used; its flip removes the mark.

        Args:
            version: number that the push takes.
            manifest: of the version; a cluster's buckets are marked, too.
            entry: of the publish log; None: nothing is logged.
        """
        keys = [self.space.pushing, self.space.highest, self.space.log(version)]
        self.connection.run(BEGIN, keys, [version, entry.to_json() if entry else ""])
        if self.space.clustered and manifest is not None:
            self.connection.run_all(begin_buckets(self.space, manifest))

    def open(self, rank: int, manifest: VersionManifest) -> None:
        """Begin a rank's share of a complete publish: mark every bucket, before anything is written there.

        Look-up rows and histories that another pipeline wrote are not whole from here on.
        """
        self.connection.run_all(open_buckets(self.space, rank, manifest))

    def seal(self, manifest: VersionManifest, before: VersionManifest | None = None) -> None:
        """Set the sentinels of a version, before its flip. On a single server a delta leaves them.

        Args:
            manifest: of the version.
            before: version that a delta extends; None: the version is complete.

        Raises:
            LostError: Redis, or a node of it, was emptied after a rank had begun its share, or lost writes.
        """
        if self.space.clustered:
            self.connection.run_all(seal_buckets(self.space, manifest, before))
        elif before is None:
            self.connection.run_all(seal_server(self.space, manifest))

    def is_complete(self, manifest: VersionManifest) -> bool:
        """Tell if every bucket has its sentinels, of the manifest's rows and of its pipeline's values.

        In a cluster, whose nodes lose keys one by one, blobs must be there, too.
        """
        space, every = self.space, range(BUCKETS)
        names = [*space.sentinels(manifest.row_set, every), *space.sentinels(VALUES, every)]
        texts = [manifest.sentinel] * BUCKETS + [manifest.fingerprint] * BUCKETS
        values = self.client.fetch(names)
        if not all(space.shows_all(v, text, manifest) for v, text in zip(values, texts, strict=True)):
            return False
        return not space.clustered or all(self.client.exists(blob) for blob in blobs_of(manifest))

    def evictions(self) -> Evictions:
        """Evictions of Redis so far; an empty value if INFO is refused."""
        return _unless_refused(lambda: Evictions.of_all(self.client.infos()), Evictions())

    def servers(self) -> tuple[str, ...]:
        """Word that the process which holds each bucket has for itself; () if INFO is refused."""
        names = [self.space.bucket_epoch(b) for b in range(BUCKETS)]
        return _unless_refused(lambda: self.client.run_ids(names), ())

    def pushed(self, rank: int, manifest: VersionManifest, servers: tuple[str, ...]) -> None:
        """Mark a rank's share of a version as written, after its last key.

        Args:
            rank: whose share is written.
            manifest: of the version.
            servers: that took its first keys.

        Raises:
            FencedError: another trainer has taken over.
            LostError: another server has taken over meanwhile, and may lack what the first server took.
        """
        version = manifest.version
        self.connection.run(PUSHED, [self.space.pushed(rank)], [seal_mark(manifest)])
        if self.space.clustered:
            self.connection.run_all(mark_shares(self.space, rank, manifest))
        if self.servers() != servers:
            raise LostError(f"another server answers for Redis at {self.url} since version {version} began")

    def flip(
        self, manifest: bytes, version: int, before: bytes, *, world: int = 0, over_hold: bool = False
    ) -> None:
        """Make `version` the served version by compare-and-swap of the manifest.

        Args:
            manifest: text of the version's manifest.
            version: number that `manifest` has.
            before: text of the manifest that must stand in Redis; b"": any.
            world: ranks whose shares must be marked as written.
            over_hold: flip although the namespace is held.

        Raises:
            FencedError, LostError, HeldError: the version is not served.
        """
        space, mark = self.space, seal_mark(VersionManifest.from_json(manifest)) if world else ""
        keys = [space.manifest, space.pushing, space.hold, *map(space.pushed, range(world))]
        self.connection.run(FLIP, keys, [manifest, before, space.versions, version, mark, int(over_hold)])


def _unless_refused(ask: Callable[[], T], otherwise: T) -> T:
    """Answer of INFO; `otherwise` where it is refused."""
    try:
        return ask()
    except redis.ResponseError as error:
        if not is_forbidden(error):
            raise
        return otherwise
