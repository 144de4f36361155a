"""Entries of the publish log, and rank 0's record of which of them are kept.

    livectr:blob:<version>:changed-…   keys that the version wrote or erased: rows, look-up rows, histories;
                                       every rank writes its blob first of all
    {livectr}:log:<version>            JSON of a `LogEntry`, set when a push begins: when all of its blobs are
                                       there, before its first row

The log is in Redis, beside the rows: what loses the log has lost the rows, too. It reaches back to the
version that was served when the oldest checkpoint was begun, from which a restart may resume. It names at
most as many keys as the tables have rows. Beyond that the oldest entries go, and a restart from there
publishes everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from livectr.store.keyspace import seal_mark
from livectr.store.manifest import VersionManifest
from livectr.store.plain import from_plain, read_json

LOGGED_KEYS = 1_000_000
"""Keys that the log may always name, however few rows there are."""


@dataclass(frozen=True)
class LogEntry:
    """Push of a version that began.

    Attributes:
        row_set, step, epoch: of its manifest.
        mark: of this push (store.keyspace.seal_mark).
        changed: blobs of the keys that it changed, of all ranks.
        keys: rows that it wrote.
        before: version that it extends; 0: it is complete.
        servers: digest of the Redis processes that took it; "": unknown.
    """

    row_set: str
    step: int
    epoch: int
    mark: str
    changed: tuple[str, ...]
    keys: int
    before: int = 0
    servers: str = ""

    @staticmethod
    def of(manifest: VersionManifest, keys: int, before: VersionManifest | None) -> LogEntry:
        """Entry of a version of so many keys, and of the version that a delta extends."""
        return LogEntry(
            manifest.row_set,
            manifest.step,
            manifest.epoch,
            seal_mark(manifest),
            manifest.changed,
            keys,
            before.version if before is not None else 0,
        )

    def taken_by(self, servers: Sequence[str]) -> LogEntry:
        """The entry with the servers that take the push (RedisStore.servers)."""
        return replace(self, servers=digest(servers))

    def to_json(self) -> str:
        """JSON of the fields, without spaces; `from_json` reads it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: bytes | str) -> LogEntry:
        """Decode the result of `to_json`.

        Raises:
            ValueError: another program wrote it.
        """
        entry: LogEntry = from_plain(LogEntry, read_json(text))
        return entry

    @staticmethod
    def parsed(values: dict[str, Any]) -> LogEntry:
        """Decode `dataclasses.asdict` that went through JSON."""
        return LogEntry(**{**values, "changed": tuple(values["changed"])})


def digest(servers: Sequence[str]) -> str:
    """Short word for the Redis processes that hold the buckets; "" where INFO is refused."""
    return hashlib.blake2b("\n".join(servers).encode(), digest_size=8).hexdigest() if servers else ""


class PublishLog:
    """Versions whose entries are kept in Redis. Rank 0 reads it.

    Attributes:
        kept: version → its entry.
        needed: version that was served when the oldest checkpoint was begun; None: there are no checkpoints.
    """

    def __init__(self) -> None:
        self.kept: dict[int, LogEntry] = {}
        self.needed: int | None = None
        self._dropped: dict[int, tuple[str, ...]] = {}

    def expire(self, row_set: str, rows: int) -> None:
        """Drop entries that no restart needs.

        Args:
            row_set: of the version that is served.
            rows: of all tables.
        """
        logged = 0
        for version in sorted(self.kept, reverse=True):
            entry = self.kept[version]
            logged += entry.keys
            useless = self.needed is None or version < self.needed or entry.row_set != row_set
            if useless or logged > max(LOGGED_KEYS, rows):
                self._dropped[version] = entry.changed
                del self.kept[version]

    @property
    def blobs(self) -> frozenset[str]:
        """Blobs of all kept entries."""
        return frozenset(name for entry in [*self.kept.values()] for name in entry.changed)

    def take_dropped(self) -> dict[int, tuple[str, ...]]:
        """Version → blobs of the entries that were dropped since the last call."""
        dropped, self._dropped = self._dropped, {}
        return dropped
