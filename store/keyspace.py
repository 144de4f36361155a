"""Names of the Redis keys of a namespace, on a single server and in a cluster.

The layout is in `store.layout`. A single server and a cluster have the same buckets. They differ in three
points, and this module is the only place that knows them:

                        single server (also behind sentinels)      cluster
    hash tag            {bb}                                       {bb-sss}
    floor               {livectr}:floor                            livectr:{bb-sss}:floor
    value of sentinels  TEXT                                       TEXT:VERSION-EPOCH-CREATED

``sss`` is a suffix that spreads the 16 buckets evenly over the slots. A cluster gives a node a range of
slots, so nodes hold equally many buckets, up to one.

A single server loses the newest writes of all keys together: its manifest shows the state of its rows. Nodes
of a cluster fail over one by one. So the sentinels of a bucket also name the newest version that is whole
there (`seal_mark`), and the floor is read from the node that the rows are read from.
"""

import binascii
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.store.manifest import VersionManifest

BUCKETS = 16
VALUES = "values"
"""Stands for the row set in the sentinels of look-up rows and histories."""
SLOTS = 1 << 14
"""Hash slots of a Redis Cluster."""

I64 = npt.NDArray[np.int64]


def buckets_of(keys: I64) -> npt.NDArray[np.uint8]:
    """Bucket u8[n] of keys i64[n]: low bits of the 64-bit finalizer of MurmurHash3 (fmix64)."""
    if len(keys) == 1:  # NumPy's calls cost more than the key
        return np.array([_bucket_of(int(keys[0]))], np.uint8)
    x = np.ascontiguousarray(keys, np.int64).view(np.uint64).copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x ^= x >> np.uint64(33)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(33)
    return (x & np.uint64(BUCKETS - 1)).astype(np.uint8)


def _bucket_of(key: int) -> int:
    """Bucket of a key, as `buckets_of`."""
    mask = (1 << 64) - 1
    x = key & mask
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ x >> 33) * factor & mask
    return (x ^ x >> 33) & (BUCKETS - 1)


def by_bucket(keys: I64) -> list[tuple[int, I64]]:
    """Non-empty buckets of keys i64[n], in rising order, each with the positions i64[m] of its keys."""
    bucket = buckets_of(keys)
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
    return [(b, order[ends[b] : ends[b + 1]]) for b in range(BUCKETS) if ends[b] < ends[b + 1]]


@dataclass(frozen=True)
class Keyspace:
    """Redis keys of a namespace.

    Args:
        clustered: the keys are in a Redis Cluster.
    """

    namespace: str = "livectr"
    clustered: bool = False

    @property
    def epoch(self) -> str:
        """Redis key of the newest trainer's epoch."""
        return f"{{{self.namespace}}}:epoch"

    @property
    def owner(self) -> str:
        """Redis key of the word of the process that took the epoch."""
        return f"{{{self.namespace}}}:owner"

    @property
    def highest(self) -> str:
        """Redis key of the highest version number that was ever begun."""
        return f"{{{self.namespace}}}:highest"

    @property
    def pushing(self) -> str:
        """Redis key of the version whose push has begun and was not flipped."""
        return f"{{{self.namespace}}}:pushing"

    def pushed(self, rank: int) -> str:
        """Redis key of the `seal_mark` of the last share that a rank has written."""
        return f"{{{self.namespace}}}:pushed:{rank}"

    @property
    def manifest(self) -> str:
        """Redis key of the served version's manifest."""
        return f"{{{self.namespace}}}:manifest"

    @property
    def floor(self) -> str:
        """Floor on a single server."""
        return f"{{{self.namespace}}}:floor"

    def floors(self, buckets: Iterable[int]) -> list[bytes]:
        """Redis keys of the floors that rows of some buckets are read with."""
        if not self.clustered:
            return [self.floor.encode()]
        return [f"{self._bucket(b)}:floor".encode() for b in buckets]

    @property
    def hold(self) -> str:
        """Redis key of an operator's hold."""
        return f"{{{self.namespace}}}:hold"

    @property
    def release(self) -> str:
        """Redis key of an operator's wish to end a hold or a rollback."""
        return f"{{{self.namespace}}}:release"

    @property
    def canary(self) -> str:
        """Redis key of the live share of the servers' canary (`store.live_share`)."""
        return f"{{{self.namespace}}}:canary"

    def log(self, version: int) -> str:
        """Redis key of a version's entry in the publish log (trainer.publish.log.entries)."""
        return f"{{{self.namespace}}}:log:{version}"

    @property
    def log_pattern(self) -> str:
        """SCAN pattern of all entries of the publish log."""
        return f"{{{self.namespace}}}:log:*"

    @property
    def versions(self) -> str:
        """Pub/sub channel of the numbers of flipped versions."""
        return f"{self.namespace}:versions"

    def blob(self, version: int, name: str) -> str:
        """Redis key of a part of a version that is no row."""
        return f"{self.namespace}:blob:{version}:{name}"

    def bucket_epoch(self, bucket: int) -> str:
        """Redis key of a bucket's epoch, in a cluster."""
        return f"{self._bucket(bucket)}:epoch"

    def bucket_owner(self, bucket: int) -> str:
        """Redis key of the owner of a bucket's epoch, in a cluster."""
        return f"{self._bucket(bucket)}:owner"

    def rows(self, row_set: str, table: str, keys: I64) -> list[bytes]:
        """Redis keys of embedding rows, in the order of keys i64[n]."""
        return self._keys(f":{row_set}:{table}:", keys)

    def row_head(self, row_set: str, table: str, bucket: int) -> bytes:
        """Redis keys of a bucket's embedding rows, up to `key_bytes`."""
        return bytes(_prefixes(self, f":{row_set}:{table}:")[bucket])

    def lookup_rows(self, table: str, keys: I64) -> list[bytes]:
        """Redis keys of look-up rows, in the order of keys i64[n]."""
        return self._keys(f":lookup:{table}:", keys)

    def histories(self, name: str, users: I64) -> list[bytes]:
        """Redis keys of behavior histories, in the order of users i64[n].

        Args:
            name: of the root in the feature plan.
            users: keys of the users.
        """
        return self._keys(f":history:{name}:", users)

    def sentinels(self, row_set: str, buckets: Iterable[int]) -> list[bytes]:
        """Redis keys of the sentinels of some buckets.

        Args:
            row_set: name of a row set, or VALUES.
            buckets: numbers of the buckets.
        """
        names = _sentinels(self, row_set)
        return [names[bucket] for bucket in buckets]

    def part(self, bucket: int, row_set: str, rank: int) -> str:
        """Redis key of a rank's mark of a complete publish."""
        return f"{self._bucket(bucket)}:{row_set}:part:{rank}"

    def begun(self, bucket: int) -> str:
        """Redis key of the `seal_mark` of the push that began last in a bucket of a cluster."""
        return f"{self._bucket(bucket)}:begun"

    def share(self, bucket: int, rank: int) -> str:
        """Redis key of the `seal_mark` of a rank's share that is written whole to a bucket of a cluster."""
        return f"{self._bucket(bucket)}:share:{rank}"

    def sentinel_value(self, text: str, manifest: VersionManifest) -> str:
        """Value of a sentinel.

        Args:
            text: the manifest's `sentinel` for its rows, its `fingerprint` for look-up rows and histories.
            manifest: of the version.
        """
        return f"{text}:{seal_mark(manifest)}" if self.clustered else text

    def shows_all(self, value: bytes | None, text: str, manifest: VersionManifest | None) -> bool:
        """Tell if the value of a sentinel shows that its bucket has all keys of a version.

        In a cluster a later version shows it too: it is sealed only where the version before it was whole.

        Args:
            value: of the sentinel; None: it is missing.
            text: as of `sentinel_value`.
            manifest: of the version; None: any.
        """
        if value is None or not text:
            return False
        if not self.clustered:
            return value == text.encode()
        head, _, mark = value.rpartition(b":")
        if head != text.encode():
            return False
        if manifest is None or mark == seal_mark(manifest).encode():
            return True
        newest = mark.partition(b"-")[0]
        return newest.isdigit() and len(newest) < 20 and int(newest) > manifest.version

    def buckets_in(self, redis_keys: Sequence[bytes]) -> Sequence[int]:
        """Buckets of Redis keys of rows, look-up rows or histories, ascending; all buckets for many keys."""
        if len(redis_keys) > 4 * BUCKETS:
            return range(BUCKETS)
        return sorted({self.bucket_of(key) for key in redis_keys})

    def bucket_of(self, redis_key: bytes) -> int:
        """Bucket of the Redis key of a row, look-up row or history."""
        at = len(self.namespace) + 2
        return int(redis_key[at : at + 2], 16)

    @property
    def bucketed_pattern(self) -> str:
        """SCAN pattern of all keys in buckets; the third part of a key between colons is its row set."""
        return f"{self.namespace}:{{{'??-???' if self.clustered else '??'}}}:*"

    @property
    def value_pattern(self) -> str:
        """SCAN pattern of all look-up rows and histories: no other third part begins as theirs do."""
        return f"{self.bucketed_pattern[:-1]}[lh]*:*"

    @property
    def blob_pattern(self) -> str:
        """SCAN pattern of all blobs; the third part of a key between colons is its version."""
        return f"{self.namespace}:blob:*"

    def _keys(self, middle: str, keys: I64) -> list[bytes]:
        """Redis keys as the rows of a byte matrix: about a million keys a second."""
        prefixes = _prefixes(self, middle)
        if len(keys) == 1:  # NumPy's calls cost more than the key
            key = int(keys[0])
            return [prefixes[_bucket_of(key)].tobytes() + key.to_bytes(8, "little", signed=True)]
        matrix = np.empty((len(keys), prefixes.shape[1] + 8), np.uint8)
        matrix[:, :-8] = prefixes[buckets_of(keys)]
        matrix[:, -8:] = key_bytes(keys)
        return cut(matrix)

    def _bucket(self, bucket: int) -> str:
        """Prefix of the keys of a bucket."""
        return f"{self.namespace}:{{{spread_tag(bucket) if self.clustered else f'{bucket:02x}'}}}"


def key_bytes(keys: I64) -> npt.NDArray[np.uint8]:
    """End of the Redis keys of rows, look-up rows or histories, u8[n, 8]."""
    return np.ascontiguousarray(keys, "<i8").view(np.uint8).reshape(-1, 8)


def key_of(redis_key: bytes) -> int:
    """64-bit key at the end of the Redis key of a row, look-up row or history."""
    return int.from_bytes(redis_key[-8:], "little", signed=True)


def seal_mark(manifest: VersionManifest) -> str:
    """Mark of a push: VERSION-EPOCH-CREATED. A version that is pushed again has another."""
    return f"{manifest.version}-{manifest.epoch}-{manifest.created_ms}"


@functools.lru_cache(maxsize=1024)
def tag_slot(tag: bytes) -> int:
    """Hash slot of a tag (Redis Cluster specification: CRC-16/XMODEM mod 16384)."""
    return binascii.crc_hqx(tag, 0) % SLOTS


def slot_of(redis_key: bytes) -> int:
    """Hash slot of a Redis key: that of its tag, or of the key if it has none."""
    start = redis_key.find(b"{") + 1
    end = redis_key.find(b"}", start) if start else -1
    return tag_slot(redis_key[start:end] if end > start else redis_key)


def by_slot(redis_keys: Sequence[bytes]) -> dict[int, list[int]]:
    """Positions of the keys of each hash slot."""
    slots: dict[int, list[int]] = {}
    for position, redis_key in enumerate(redis_keys):
        slots.setdefault(slot_of(redis_key), []).append(position)
    return slots


@functools.cache
def spread_tag(bucket: int) -> str:
    """Hash tag of a bucket in a cluster: its slot is in the middle of the bucket's 16th of all slots."""
    width = SLOTS // BUCKETS
    for suffix in range(1 << 12):
        tag = f"{bucket:02x}-{suffix:03x}"
        if abs(tag_slot(tag.encode()) - (bucket * width + width // 2)) <= width // 8:
            return tag
    raise AssertionError(f"no hash tag for bucket {bucket}")


def cut(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    """Rows of a byte matrix as bytes (NumPy's bytes dtype would drop trailing zeros)."""
    packed, width = matrix.tobytes(), matrix.shape[1]
    return [packed[i : i + width] for i in range(0, len(packed), width)]


@functools.lru_cache(maxsize=256)
def _prefixes(space: Keyspace, middle: str) -> npt.NDArray[np.uint8]:
    """Prefix of the Redis keys of each bucket, u8[BUCKETS, width]."""
    heads = [f"{space._bucket(b)}{middle}".encode() for b in range(BUCKETS)]
    return np.frombuffer(b"".join(heads), np.uint8).reshape(BUCKETS, -1)


@functools.lru_cache(maxsize=16)
def _sentinels(space: Keyspace, row_set: str) -> tuple[bytes, ...]:
    """Redis keys of the sentinels of all buckets."""
    return tuple(f"{space._bucket(b)}:{row_set}:sentinel".encode() for b in range(BUCKETS))
