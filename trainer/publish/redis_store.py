"""Fenced writes of the published layout (protos.store) to Redis.

Every write runs inside a script that first compares the epoch of its bucket with the trainer's. A trainer
that was replaced finds a higher epoch and is refused (`FencedError`). A trainer whose Redis was emptied finds
none: its earlier writes are gone (`LostError`). Writes are idempotent for a version. So a push that failed
halfway is repeated under the same number, once `renew` has fenced out the rest of the first push
(trainer.publish.fence).

Rows live under a row set = "<epoch>-<n>" of the n-th complete publish of a trainer. Later versions
write their changes into it.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from livectr.kernels.errors import ConfigError, ConnectError, MismatchError
from livectr.protos.evictions import Evictions
from livectr.protos.manifest import VersionManifest
from livectr.protos.measured_redis import MeasuredRedis
from livectr.protos.redis_errors import is_forbidden
from livectr.protos.store import (
    BUCKETS,
    VALUES,
    Keyspace,
    encode_slots,
    erased_slot,
    slot_bytes,
    without_password,
)
from livectr.trainer.publish.fence import BEGIN, CLAIM, FLIP, OPEN, PUSHED, RENEW, SEAL, TAKE
from livectr.trainer.publish.row_scripts import (
    ERASE_ROWS,
    RAISE_FLOOR,
    REMOVE_ERASED,
    UNLINK,
    WRITE_ROWS,
    WRITE_VALUES,
)
from livectr.trainer.publish.store_types import FencedError, HeldError, LostError, Values, chunked

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

CHUNKS_IN_FLIGHT = 16
PART_ROWS = 1 << 17
"""Rows whose names and slots are in memory as bytes objects at once."""


class RedisStore:
    """Connection of a trainer process to Redis.

    Args:
        url: redis://HOST:PORT.
        namespace: prefix of all keys: letters, digits, - and _.

    Attributes:
        used: highest version number that `renew` has found.

    Raises:
        ConnectError: Redis does not answer.
        ConfigError: the URL or the namespace cannot be used.
    """

    def __init__(self, url: str, namespace: str) -> None:
        if not namespace or not all(c.isalnum() or c in "_-" for c in namespace):
            raise ConfigError(f"namespace {namespace!r}: use letters, digits, - and _")
        self.url = without_password(url)
        self.space = Keyspace(namespace)
        self.epoch = self.used = 0
        self._owner = uuid.uuid4().hex
        self._pushing, self._highest, self._owner_key = (
            f"{{{namespace}}}:{name}" for name in ("pushing", "highest", "owner")
        )
        try:
            self.client = MeasuredRedis.named(
                "publish", url, socket_timeout=30, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0)
            )
            self.client.ping()
        except ValueError as error:
            raise ConfigError(f"publish: {self.url!r} is no Redis URL ({error})") from None
        except redis.RedisError as error:
            raise ConnectError(
                f"Redis at {self.url} does not answer ({error}); start it or change --publish"
            ) from None
        self._scripts: dict[str, Any] = {}

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

    def pushing(self) -> bool:
        """Tell if a push began that never became a version: rows of it may lie about."""
        return bool(self.client.exists(self._pushing))

    def highest(self) -> int | None:
        """Highest version number that was ever begun; None if Redis has none, or lost it."""
        number = self.client.get(self._highest)
        return None if number is None else int(number)

    # ── the fence ──

    def take(self, seen: bytes | None, *, epoch: int = 0, version: int = 0) -> int | None:
        """Become the trainer of this namespace: every trainer of a lower epoch is fenced out from now on.

        A compare-and-swap: nothing is done if another manifest stands in Redis than the caller has seen.

        Args:
            seen: text of the manifest that the caller has seen.
            epoch, version: highest numbers that were used before, whatever Redis says.

        Returns:
            The highest version number that was ever begun; None if nothing was done.
        """
        keys = [self.space.epoch, self._owner_key, self.space.manifest, self._highest]
        answer = self._script(TAKE)(keys=keys, args=[epoch, self._owner, seen or b"", version])
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
        keys = [self.space.epoch, self._owner_key, self.space.hold, self._highest]
        answer = self._script(RENEW)(keys=keys, args=[self.epoch, self._owner])
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
        whole = True
        for name in (self.space.epoch, *(self.space.bucket_epoch(b) for b in range(BUCKETS))):
            answer = self._script(CLAIM)(keys=[name], args=[epoch])
            if answer == b"LOST":
                whole = False
            else:
                self._check(answer)
        return whole

    # ── writing ──

    def begin(self, version: int) -> None:
        """Mark that a push of `version` is under way, and its number as used; its flip removes the mark."""
        keys = [self.space.epoch, self._pushing, self._highest]
        self._check(self._script(BEGIN)(keys=keys, args=[self.epoch, version]))

    def open(self, rank: int, manifest: VersionManifest) -> None:
        """Begin a rank's share of a complete publish: mark every bucket, before anything is written there.

        Look-up rows and histories that another pipeline wrote are not whole from here on.
        """
        space, args = self.space, [manifest.sentinel, manifest.fingerprint]
        self._chunks(
            (OPEN, b, [space.part(b, manifest.row_set, rank).encode(), *space.sentinels(VALUES, [b])], args)
            for b in range(BUCKETS)
        )

    def seal(self, manifest: VersionManifest) -> None:
        """Set the sentinels of a complete publish, before its flip.

        Raises:
            LostError: Redis, or a node of it, was emptied after a rank had begun its share.
        """
        space, args = self.space, [manifest.sentinel, manifest.fingerprint]
        self._chunks(
            (
                SEAL,
                b,
                [
                    *space.sentinels(manifest.row_set, [b]),
                    *space.sentinels(VALUES, [b]),
                    *(space.part(b, manifest.row_set, rank).encode() for rank in range(manifest.world)),
                ],
                args,
            )
            for b in range(BUCKETS)
        )

    def is_complete(self, manifest: VersionManifest) -> bool:
        """Tell if every bucket has its sentinels: of the manifest's rows, and of its pipeline's values."""
        buckets = range(BUCKETS)
        names = [*self.space.sentinels(manifest.row_set, buckets), *self.space.sentinels(VALUES, buckets)]
        wanted = [manifest.sentinel.encode()] * BUCKETS + [manifest.fingerprint.encode()] * BUCKETS
        return bool(manifest.sentinel) and self.client.mget(names) == wanted

    def evictions(self) -> Evictions:
        """Evictions of Redis so far; an empty value if INFO is refused."""
        return Evictions.of(self._info())

    def write_rows(self, version: int, row_set: str, table: str, keys: I64, rows: F32) -> None:
        """Write slots of `version`; the slots before stay readable.

        Args:
            keys: int64[n].
            rows: f32[n, D].
        """
        head = [version.to_bytes(8, "little"), slot_bytes(rows.shape[1])]
        for start in range(0, len(keys), PART_ROWS):
            part = keys[start : start + PART_ROWS]
            names = self.space.rows(row_set, table, part)
            slots = encode_slots(version, rows[start : start + PART_ROWS])
            self._chunks(
                (WRITE_ROWS, bucket, [names[i] for i in at], [*head, *(slots[i] for i in at)])
                for bucket, at in chunked(part)
            )

    def erase_rows(self, version: int, row_set: str, table: str, keys: I64, dim: int) -> None:
        """Mark rows of keys int64[n] as missing from `version` on; the slots before stay readable."""
        names = self.space.rows(row_set, table, keys)
        args = [version.to_bytes(8, "little"), slot_bytes(dim), erased_slot(version, dim)]
        self._chunks((ERASE_ROWS, bucket, [names[i] for i in at], args) for bucket, at in chunked(keys))

    def remove_erased(self, version: int, row_set: str, table: str, keys: I64) -> None:
        """Remove rows of keys int64[n] that `version` or an earlier version erased, after `raise_floor`."""
        names = self.space.rows(row_set, table, keys)
        self._chunks(
            (REMOVE_ERASED, bucket, [names[i] for i in at], [version]) for bucket, at in chunked(keys)
        )

    def raise_floor(self, version: int) -> None:
        """Tell readers of versions before `version` that a row which they do not find may have been there."""
        keys = [self.space.epoch, self.space.floor]
        self._check(self._script(RAISE_FLOOR)(keys=keys, args=[self.epoch, version]))

    def blob(self, name: str) -> bytes | None:
        """Read a blob; None if it is gone."""
        value = self.client.get(name)
        return value.encode() if isinstance(value, str) else value

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

    def write_blob(self, name: str, value: bytes) -> None:
        """Set a blob. Its name holds the epoch, so no other trainer writes it."""
        self.client.set(name, value)

    def run_id(self) -> str:
        """Word that a Redis process has for itself; "" if INFO is refused."""
        return str(self._info("server").get("run_id", ""))

    def pushed(self, rank: int, version: int, run_id: str) -> None:
        """Mark a rank's share of `version` as written, after its last key.

        Args:
            run_id: of the server that took its first key.

        Raises:
            FencedError: another trainer has taken over.
            LostError: another server has taken over meanwhile, and may lack what the first server took.
        """
        keys = [self.space.epoch, self._pushed(rank)]
        self._check(self._script(PUSHED)(keys=keys, args=[self.epoch, f"{self.epoch}-{version}"]))
        if self.run_id() != run_id:
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
        space, mark = self.space, f"{self.epoch}-{version}"
        answer = self._script(FLIP)(
            keys=[space.epoch, space.manifest, self._pushing, space.hold, *map(self._pushed, range(world))],
            args=[self.epoch, manifest, before, space.versions, version, mark, int(over_hold)],
        )
        self._check(answer)

    # ── removing ──

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """Names of keys that match a pattern, in parts."""
        cursor = 0
        while True:
            cursor, names = self.client.scan(cursor, match=pattern, count=2000)
            if names:
                yield [name if isinstance(name, bytes) else name.encode() for name in names]
            if cursor == 0:
                return

    def unlink(self, names: Sequence[bytes]) -> int:
        """Remove keys; returns how many there were."""
        return int(self.client.unlink(*names)) if names else 0

    def drop(self, names: Sequence[str]) -> None:
        """Remove blobs that nobody reads any more."""
        if names:
            self.client.unlink(*names)

    def interrupt(self) -> None:
        """Break the connections, so that a thread which waits for an answer fails at once."""
        self.client.interrupt()

    def close(self) -> None:
        self.client.close()

    def _chunks(self, calls: Iterator[tuple[str, int, list[bytes], list[Any]]]) -> None:
        """Run script calls, CHUNKS_IN_FLIGHT in one round trip."""
        pipe = self.client.pipeline(transaction=False)
        for script, bucket, names, args in calls:
            self._script(script)(
                keys=[self.space.bucket_epoch(bucket), *names], args=[self.epoch, *args], client=pipe
            )
            if len(pipe) >= CHUNKS_IN_FLIGHT:
                for answer in pipe.execute():
                    self._check(answer)
        for answer in pipe.execute():
            self._check(answer)

    def _info(self, *section: str) -> Any:
        """Answer to INFO; {} if it is refused."""
        try:
            return self.client.info(*section)
        except redis.ResponseError as error:
            if not is_forbidden(error):
                raise
            return {}

    def _pushed(self, rank: int) -> str:
        return f"{self._pushing[: -len('pushing')]}pushed:{rank}"

    def _script(self, source: str) -> Any:
        if source not in self._scripts:
            self._scripts[source] = self.client.register_script(source)
        return self._scripts[source]

    def _check(self, answer: object) -> None:
        if answer == b"OK":
            return
        if answer == b"FENCED":
            raise FencedError(
                f"another trainer has taken over namespace {self.space.namespace!r} in Redis at {self.url}; "
                "this one ends (run one trainer for each namespace)"
            )
        if answer == b"HELD":
            raise HeldError(f"namespace {self.space.namespace!r} in Redis at {self.url} is held")
        raise LostError(f"Redis at {self.url} no longer holds the version that was published there")
