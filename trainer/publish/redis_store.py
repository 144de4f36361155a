"""Fenced writes of the published layout (store.layout) to Redis.

Every write runs inside a script that first compares the epoch of its bucket with the trainer's. A trainer
that was replaced finds a higher epoch and is refused (`FencedError`). A trainer whose Redis was emptied finds
none: its earlier writes are gone (`LostError`). Writes are idempotent for a version. So a push that failed
halfway is repeated under the same number, once `renew` has fenced out the rest of the first push
(trainer.publish.fence).

Rows live under a row set = "<epoch>-<n>" of the n-th complete publish of a trainer. Later versions
write their changes into it.
"""

import logging
import uuid
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from livectr.store.evictions import Evictions
from livectr.store.keyspace import seal_mark
from livectr.store.layout import (
    BUCKETS,
    VALUES,
    erased_slot,
    key_bytes,
    row_bytes,
    slot_bytes,
    slot_head,
)
from livectr.store.manifest import VersionManifest
from livectr.store.packed_calls import PackedCall, framed
from livectr.system.errors import MismatchError
from livectr.trainer.publish.bucket_seals import (
    begin_buckets,
    claim_buckets,
    mark_shares,
    open_buckets,
    seal_buckets,
    seal_server,
)
from livectr.trainer.publish.fence import BEGIN, CLAIM, FLIP, PUSHED, RENEW, TAKE
from livectr.trainer.publish.log.entries import LogEntry
from livectr.trainer.publish.row_scripts import (
    ERASE_ROWS,
    RAISE_FLOOR,
    REMOVE_ERASED,
    UNLINK,
    WRITE_ROWS,
    WRITE_VALUES,
)
from livectr.trainer.publish.store_connection import StoreConnection
from livectr.trainer.publish.store_types import (
    CHUNK_ROWS,
    LostError,
    Values,
    chunked,
    unless_refused,
)
from livectr.trainer.publish.version import blobs_of

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

LOG = logging.getLogger(__name__)
PART_ROWS = 1 << 17
"""Rows that are grouped by bucket at once."""


class RedisStore(StoreConnection):
    """Connection of a trainer process to Redis.

    Args:
        url: of `store.redis_url`.
        namespace: prefix of all keys: letters, digits, - and _.
        full_rate: most rows a second that this process writes of a complete version; 0: no limit.

    Attributes:
        used: highest version number that `renew` has found.
        cut_off: numbers of pushes that were never flipped, whose slots `write_rows` replaces.

    Raises:
        ConnectError: Redis does not answer.
        ConfigError: the URL or the namespace cannot be used.
    """

    def __init__(self, url: str, namespace: str, *, full_rate: float = 0.0) -> None:
        super().__init__(url, namespace)
        self.full_rate = full_rate
        self.used = 0
        self.cut_off: tuple[int, ...] = ()
        self._owner = uuid.uuid4().hex
        self._takes = False
        """This process takes epochs: rank 0, or a rollback."""
        self._pushing, self._highest, self._owner_key = (
            f"{{{namespace}}}:{name}" for name in ("pushing", "highest", "owner")
        )

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
        return self.blob(self.space.manifest)

    def pushing(self, held: VersionManifest | None = None) -> bool:
        """Tell if a push began that never became a version: rows of it may lie about.

        Args:
            held: version that is served; in a cluster, every bucket must have seen its push last.
        """
        if self.client.exists(self._pushing):
            return True
        if not self.space.clustered or held is None:
            return False
        return self.marks() != [seal_mark(held).encode()] * BUCKETS

    def begun(self) -> int | None:
        """Version whose push began and was not flipped; None: no such push."""
        return self._number(self._pushing, self.client.get(self._pushing))

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

    def highest(self) -> int | None:
        """Highest version number that was ever begun; None if Redis has none, or lost it."""
        return self._number(self._highest, self.client.get(self._highest))

    # ── the fence ──

    def take(self, seen: bytes | None, *, epoch: int = 0, version: int = 0) -> int | None:
        """Become the trainer of this namespace: every trainer of a lower epoch is fenced out from now on.

        A compare-and-swap: nothing is done if another manifest stands in Redis than the caller has seen.

        Args:
            seen: text of the manifest that the caller has seen.
            epoch, version: highest numbers that were used before, whatever Redis says.

        Returns:
            The highest version number that was ever begun; None if nothing was done.

        Raises:
            MismatchError: another program wrote the numbers.
        """
        self._takes = True
        for name in (self.space.epoch, self._highest):
            self._number(name, self.client.get(name))
        epoch = max(epoch, *(held for held, _ in self._fences()), 0)
        keys = [self.space.epoch, self._owner_key, self.space.manifest, self._highest]
        answer = self._call(TAKE, keys, [epoch, self._owner, seen or b"", version])
        if answer[0] == -1:
            return None
        self.claim(answer[0])
        return int(answer[1])

    def share_owner(self) -> None:
        """Write beside the trainer: an epoch that this process takes can be renewed by the trainer."""
        self._owner = (self.blob(self._owner_key) or self._owner.encode()).decode()

    def renew(self) -> bool:
        """Take a new epoch, so that no earlier command of this trainer can still take effect.

        Returns:
            True if Redis still held the fences.

        Raises:
            FencedError: another trainer has taken over.
            HeldError: the namespace is held.
        """
        highest = self.epoch
        for held, owner in self._fences():
            if held > self.epoch and owner != self._owner:
                self._check(b"FENCED")
            highest = max(highest, held)
        keys = [self.space.epoch, self._owner_key, self.space.hold, self._highest]
        answer = self._call(RENEW, keys, [highest, self._owner])
        if answer[0] < 0:
            self._check(b"FENCED" if answer[0] == -1 else b"HELD")
        self.used = int(answer[2])
        return self.claim(answer[0]) and bool(answer[1])

    def claim(self, epoch: int) -> bool:
        """Set the fence of all buckets to `epoch`.

        Returns:
            True if no bucket had lost its fence.

        Raises:
            FencedError: a bucket has a higher epoch.
        """
        self.epoch = epoch
        answers = [self._call(CLAIM, [self.space.epoch], [epoch])]
        if answers[0] != b"FENCED":
            owner = self._owner if self._takes else ""
            answers += self.client.call_all([*claim_buckets(self.space, epoch, owner)])
        for answer in answers:
            if answer != b"LOST":
                self._check(answer)
        return b"LOST" not in answers

    def _fences(self) -> list[tuple[int, str]]:
        """Epoch and owner of each bucket of a cluster that has a fence."""
        if not self.space.clustered:
            return []
        every = range(BUCKETS)
        names = [self.space.bucket_epoch(b) for b in every] + [self.space.bucket_owner(b) for b in every]
        values = self.client.fetch([name.encode() for name in names])
        epochs = [self._number(name, value) for name, value in zip(names, values[:BUCKETS], strict=False)]
        pairs = zip(epochs, values[BUCKETS:], strict=True)
        return [(epoch, (owner or b"").decode()) for epoch, owner in pairs if epoch is not None]

    def _number(self, name: str, value: bytes | str | None) -> int | None:
        """Number that a key holds. Raises MismatchError if another program wrote it."""
        try:
            return None if value is None else int(value)
        except ValueError:
            raise MismatchError(
                f"{name} in Redis at {self.url} was written by another program ({value!r:.40}); "
                "use another namespace"
            ) from None

    # ── writing ──

    def begin(
        self, version: int, manifest: VersionManifest | None = None, entry: LogEntry | None = None
    ) -> None:
        """Mark that a push of `version` is under way, and its number as used; its flip removes the mark.

        Args:
            manifest: of the version; a cluster's buckets are marked, too.
            entry: of the publish log; None: nothing is logged.
        """
        keys = [self.space.epoch, self._pushing, self._highest, self.space.log(version)]
        self._check(self._call(BEGIN, keys, [self.epoch, version, entry.to_json() if entry else ""]))
        if self.space.clustered and manifest is not None:
            self._chunks(begin_buckets(self.space, manifest))

    def open(self, rank: int, manifest: VersionManifest) -> None:
        """Begin a rank's share of a complete publish: mark every bucket, before anything is written there.

        Look-up rows and histories that another pipeline wrote are not whole from here on.
        """
        self._chunks(open_buckets(self.space, rank, manifest))

    def seal(self, manifest: VersionManifest, before: VersionManifest | None = None) -> None:
        """Set the sentinels of a version, before its flip. On a single server a delta leaves them.

        Args:
            before: version that a delta extends; None: the version is complete.

        Raises:
            LostError: Redis, or a node of it, was emptied after a rank had begun its share, or lost writes.
        """
        if self.space.clustered:
            self._chunks(seal_buckets(self.space, manifest, before))
        elif before is None:
            self._chunks(seal_server(self.space, manifest))

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
        return unless_refused(lambda: Evictions.of_all(self.client.infos()), Evictions())

    def write_rows(
        self, version: int, row_set: str, table: str, keys: I64, rows: F32, fresh: bool = False
    ) -> None:
        """Write slots of `version`; the slots before stay readable.

        Args:
            keys: int64[n].
            rows: f32[n, D].
            fresh: no version before has the row set, so that no slot is read.
        """
        source = WRITE_VALUES if fresh else WRITE_ROWS
        head: list[bytes | int] = [] if fresh else [self._replaced(version), slot_bytes(rows.shape[1])]
        names = [self.space.row_head(row_set, table, bucket) for bucket in range(BUCKETS)]

        def calls(keys: I64, rows: F32) -> Iterator[PackedCall]:
            for b, at in chunked(keys):  # the rows of a call stay in the core's cache until they are sent
                epoch, slots = self.space.bucket_epoch(b), framed(row_bytes(rows[at]), slot_head(version))
                yield PackedCall(
                    source, epoch, [self.epoch, *head], framed(key_bytes(keys[at]), names[b]), slots
                )

        for start in range(0, len(keys), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            for answer in self.client.call_packed(calls(keys[part], rows[part]), source):
                self._check(answer)

    def erase_rows(self, version: int, row_set: str, table: str, keys: I64, dim: int) -> None:
        """Mark rows of keys int64[n] as missing from `version` on; the slots before stay readable."""
        names = self.space.rows(row_set, table, keys)
        args = [self._replaced(version), slot_bytes(dim), erased_slot(version, dim)]
        self._chunks((ERASE_ROWS, bucket, [names[i] for i in at], args) for bucket, at in chunked(keys))

    def _replaced(self, version: int) -> bytes:
        """Versions whose slots a push of `version` replaces."""
        return b"".join(number.to_bytes(8, "little") for number in (version, *self.cut_off))

    def remove_erased(self, version: int, row_set: str, table: str, keys: I64) -> None:
        """Remove rows of keys int64[n] that `version` or an earlier version erased, after `raise_floor`."""
        names = self.space.rows(row_set, table, keys)
        self._chunks(
            (REMOVE_ERASED, bucket, [names[i] for i in at], [version]) for bucket, at in chunked(keys)
        )

    def raise_floor(self, version: int) -> None:
        """Tell readers of versions before `version` that a row which they do not find may have been there."""
        if self.space.clustered:
            self._chunks((RAISE_FLOOR, b, self.space.floors([b]), [version]) for b in range(BUCKETS))
        else:
            self._check(self._call(RAISE_FLOOR, [self.space.epoch, self.space.floor], [self.epoch, version]))

    def write_values(self, values: Values) -> None:
        """Set or remove unversioned values."""
        kept = np.array([v is not None for v in values.values], bool)
        for chosen, script in ((np.flatnonzero(kept), WRITE_VALUES), (np.flatnonzero(~kept), UNLINK)):
            self._chunks(
                (
                    script,
                    bucket,
                    [values.names[i] for i in chosen[at]],
                    [v for i in chosen[at] if (v := values.values[i]) is not None],
                )
                for bucket, at in chunked(values.keys[chosen])
            )

    def servers(self) -> tuple[str, ...]:
        """Word that the process which holds each bucket has for itself; () if INFO is refused."""
        names = [self.space.bucket_epoch(b) for b in range(BUCKETS)]
        return unless_refused(lambda: self.client.run_ids(names), ())

    def pushed(self, rank: int, manifest: VersionManifest, servers: tuple[str, ...]) -> None:
        """Mark a rank's share of a version as written, after its last key.

        Args:
            servers: that took its first keys.

        Raises:
            FencedError: another trainer has taken over.
            LostError: another server has taken over meanwhile, and may lack what the first server took.
        """
        keys = [self.space.epoch, self._pushed(rank)]
        version = manifest.version
        self._check(self._call(PUSHED, keys, [self.epoch, seal_mark(manifest)]))
        if self.space.clustered:
            self._chunks(mark_shares(self.space, rank, manifest))
        if self.servers() != servers:
            raise LostError(f"another server answers for Redis at {self.url} since version {version} began")

    def flip(
        self, manifest: bytes, version: int, before: bytes, *, world: int = 0, over_hold: bool = False
    ) -> None:
        """Make `version` the served version by compare-and-swap of the manifest.

        Args:
            manifest: text of the version's manifest.
            before: text of the manifest that must stand in Redis; b"": any.
            world: ranks whose shares must be marked as written.
            over_hold: flip although the namespace is held.

        Raises:
            FencedError, LostError, HeldError: the version is not served.
        """
        space, mark = self.space, seal_mark(VersionManifest.from_json(manifest)) if world else ""
        keys = [space.epoch, space.manifest, self._pushing, space.hold, *map(self._pushed, range(world))]
        args = [self.epoch, manifest, before, space.versions, version, mark, int(over_hold)]
        self._check(self._call(FLIP, keys, args))

    def _pushed(self, rank: int) -> str:
        return f"{self._pushing[: -len('pushing')]}pushed:{rank}"
