"""Layout of a published model in Redis: key names, row slots, blobs.

The trainer writes this layout and the servers read it. The module converts arrays into keys and bytes, and
back; it does not connect to Redis.

    {livectr}:epoch            int     fence: number of the trainer that may publish
    {livectr}:manifest         JSON    store.manifest of the newest complete version (the flip)
    {livectr}:floor            int     rows erased by this version or before are gone from Redis
    {livectr}:owner            text    owner of the epoch: taking a new epoch is idempotent
                                       (trainer.publish.fence)
    {livectr}:highest          int     greatest version number ever used; no number is used twice
    {livectr}:log:<version>    JSON    push of a version that began (trainer.publish.log.entries)
    {livectr}:hold             JSON    store.hold: while it is there, no trainer flips a version
    {livectr}:canary           JSON    store.live_share: share of the requests that a canary answers
    {livectr}:release          mark    the operator asks the trainer's gate to accept its window; it expires
    livectr:versions           channel number of each flipped version
    livectr:blob:<version>:…   bytes   safetensors: dense weights, changed keys, item and content vectors
    livectr:{bb}:epoch         int     the same fence, for each bucket
    livectr:{bb}:<set>:part:<rank>     mark: this rank began a complete publish, and no key was lost since
    livectr:{bb}:<set>:sentinel        the bucket has all rows; value: the manifest's `sentinel`
    livectr:{bb}:values:sentinel       of look-up rows and histories; value: the pipeline's fingerprint
    livectr:{bb}:<set>:<table>:<key>   embedding row: newest slot, then the slot before it
    livectr:{bb}:lookup:<table>:<key>  look-up row: JSON list of its columns
    livectr:{bb}:history:<name>:<key>  behavior history: i64 pairs (item, event time in ms)

``livectr`` is the namespace, ``<set>`` a row set, ``bb`` a bucket of 16 in two hex digits, ``<key>`` eight
bytes, little endian. The braces are Redis Cluster hash tags: a bucket lives on a single node. So a script can
fence and write a bucket atomically, and a reader can read a bucket with an MGET. `store.keyspace` makes the
names, and has the differences of a cluster.

A slot is ``version u64`` and ``D float32``. Rows written for version v+1 keep their slot of version ≤ v, so a
reader of v is not disturbed before the flip. It stays right until v+2 is being written.

A row that version v erases gets a slot of v whose version has its top bit set (a tombstone): from v on it is
missing, at v-1 it is still read. Two versions later its key is removed, after `floor` has risen to v. A
reader of a version below `floor` that finds no row cannot know whether the row existed, and must move on to a
newer version.

A missing row means "never trained" only if the sentinel of its bucket, read with the row or after it, has the
manifest's value. The sentinel disappears when Redis is emptied, when the row set is garbage-collected
(sentinels go first), and when another pipeline takes over. So the read that would be wrong shows the loss.
Look-up rows and histories have no version: their sentinel names the pipeline that wrote them.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from livectr.store.keyspace import BUCKETS as BUCKETS
from livectr.store.keyspace import VALUES as VALUES
from livectr.store.keyspace import Keyspace as Keyspace
from livectr.store.keyspace import buckets_of as buckets_of
from livectr.store.keyspace import by_bucket as by_bucket
from livectr.store.keyspace import cut
from livectr.store.keyspace import key_bytes as key_bytes
from livectr.store.keyspace import key_of as key_of
from livectr.store.plain import read_json

KEPT_VERSIONS = 3
"""Versions whose blobs stay in Redis, so that a reader may lag behind."""
ERASED = np.uint64(1 << 63)
"""Tombstone bit of a slot's version: the row is missing from that version on."""
CONTENT_CHUNK = 1 << 18
"""Most ids of a blob of content vectors; longer commands would hold up all other clients of Redis."""
CONTENT = "content."
"""Prefix of the parameters of sub-models in rank 0's dense blob: "content.<name>.<parameter>"."""
FEATURES = "features."
"""Prefix of features' running statistics in rank 0's dense blob; weights have the role as prefix."""

LOOKUP = "lookup:"
"""Prefix of look-up tables' topics among the tables of which a version lists the changed keys."""
HISTORY = "history:"
"""Prefix of the names of behavior histories, where keys are listed beside those of look-up rows."""

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


def without_password(url: str) -> str:
    """Hide the password of a Redis URL, for messages and logs."""
    url = re.sub(r"(://[^/@:]*:).*@", r"\1***@", url)
    return re.sub(r"([?&](?:sentinel_)?password=)[^&]*", r"\1***", url)


class RowStatus(IntEnum):
    """State of a row for a reader of version v."""

    FOUND = 0
    MISSING = 1
    """The row did not exist at v: it has its initial values."""
    OVERWRITTEN = 2
    """Both slots are newer than v, or the row may have been removed since. A newer version exists: read again
    at that version."""
    LOST = 3
    """Unknown: the bucket lost keys. `decode_rows` never gives this status."""


# ── embedding rows ───────────────────────────────────────────────────────────────────────────────────


def slot_bytes(dim: int) -> int:
    """Bytes of a slot of D = `dim` values."""
    return 8 + 4 * dim


def encode_slots(version: int, rows: F32) -> list[bytes]:
    """Encode rows f32[n, D] as n slots."""
    matrix = np.empty((len(rows), slot_bytes(rows.shape[1])), np.uint8)
    matrix[:, :8] = np.frombuffer(slot_head(version), np.uint8)
    matrix[:, 8:] = row_bytes(rows)
    return cut(matrix)


def slot_head(version: int) -> bytes:
    """Slots of a version up to `row_bytes`."""
    return version.to_bytes(8, "little")


def row_bytes(rows: F32) -> npt.NDArray[np.uint8]:
    """Slots of rows f32[n, D] after `slot_head`, u8[n, 4 · D]."""
    n, dim = rows.shape
    return np.ascontiguousarray(rows, "<f4").view(np.uint8).reshape(n, 4 * dim)


def erased_slot(version: int, dim: int) -> bytes:
    """Tombstone slot of D = `dim` values of a row that `version` erases."""
    return (version | int(ERASED)).to_bytes(8, "little") + bytes(4 * dim)


def decode_rows(
    values: Sequence[bytes | None], version: int, dim: int, floor: int = 0
) -> tuple[F32, npt.NDArray[np.uint8]]:
    """Decode rows as of a version.

    Args:
        values: n values of Redis; None for a missing key.
        version: number of the version to read.
        dim: D.
        floor: `Keyspace.floor`, read with the values or after them.

    Returns:
        Rows f32[n, D], zeros unless found, and RowStatus u8[n].

    Raises:
        ValueError: a value has neither 1 nor 2 slots of D values.
    """
    slot = slot_bytes(dim)
    if len(values) == 1 and len(value := values[0] or b"") in (slot, 2 * slot):  # most users' rows
        for start in range(0, len(value), slot):
            written = int.from_bytes(value[start : start + 8], "little")
            if written <= version:  # of an erased row it is larger
                return np.frombuffer(value[start + 8 : start + slot], "<f4")[None], np.zeros(1, np.uint8)
            if written & ~int(ERASED) <= version:
                break
    rows = np.zeros((len(values), dim), np.float32)
    missing = RowStatus.MISSING if version >= floor else RowStatus.OVERWRITTEN
    status = np.full(len(values), missing, np.uint8)
    length = np.fromiter((-1 if v is None else len(v) for v in values), np.int64, len(values))
    right = (length == -1) | (length == slot) | (length == 2 * slot)
    if not right.all():
        wrong = int(length[~right][0])
        raise ValueError(f"a published row has {wrong} bytes; {dim} values make {slot} or {2 * slot}")
    for slots in (1, 2):
        at = np.flatnonzero(length == slots * slot)
        if len(at) == 0:
            continue
        packed = b"".join(value for value in (values[i] for i in at.tolist()) if value is not None)
        matrix = np.frombuffer(packed, np.uint8).reshape(len(at), slots, slot)
        versions = np.ascontiguousarray(matrix[:, :, :8]).view("<u8")[:, :, 0]
        readable = versions & ~ERASED <= np.uint64(version)
        pick = np.argmax(readable, axis=1)
        found = readable.any(axis=1)
        if slots == 2:
            status[at[~found]] = RowStatus.OVERWRITTEN
        there = versions[np.arange(len(at)), pick] & ERASED == 0
        status[at[found & ~there]] = RowStatus.MISSING
        found &= there
        data = np.ascontiguousarray(matrix[np.arange(len(at)), pick, 8:]).view("<f4")
        rows[at[found]] = data[found]
        status[at[found]] = RowStatus.FOUND
    return rows, status


# ── look-up rows, histories, blobs ──────────────────────────────────────────────────────────────────────────


def encode_lookup_row(columns: Sequence[object]) -> bytes:
    """Encode a look-up row as a JSON list of its columns; bytes become {"base64": …}."""
    return json.dumps(columns, separators=(",", ":"), ensure_ascii=False, default=_json_bytes).encode()


def decode_lookup_rows(values: Sequence[bytes]) -> list[list[object]]:
    """Decode look-up rows; a single call of the JSON decoder for all rows is far cheaper.

    Raises:
        ValueError: a value is no look-up row.
    """
    text = b"[" + b",".join(values) + b"]"
    rows: list[list[object]] = read_json(text)
    if len(rows) != len(values) or not all(isinstance(row, list) for row in rows):
        raise ValueError("a look-up row is no list of columns")
    if b"{" not in text:
        return rows
    return [[_of_json(c) if isinstance(c, dict) else c for c in row] for row in rows]


def encode_history(items: I64, times_ms: I64) -> bytes:
    """Encode a behavior history: items i64[n] and event times i64[n] in ms, newest last."""
    return np.stack([items, times_ms], axis=1).astype("<i8", copy=False).tobytes()


def decode_history(value: bytes) -> tuple[I64, I64]:
    """Decode a behavior history: (items i64[n], times_ms i64[n]).

    Raises:
        ValueError: it has a piece of a pair.
    """
    pairs = np.frombuffer(value, "<i8").reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def encode_changed(keys: Mapping[str, I64], erased: Mapping[str, I64] | None = None) -> bytes:
    """Encode the keys i64[m] of rows that a version wrote and erased, by table, as safetensors."""
    tensors = {f"written/{table}": np.ascontiguousarray(k) for table, k in keys.items()}
    tensors |= {f"erased/{table}": np.ascontiguousarray(k) for table, k in (erased or {}).items()}
    blob: bytes = save_tensors(tensors)
    return blob


def decode_changed(value: bytes) -> dict[str, I64]:
    """Decode the keys of each table that a version changed: written rows and erased rows.

    Raises:
        ValueError: not a blob of keys.
    """
    parts: dict[str, list[I64]] = {}
    for name, keys in sorted(_keys_of(value).items()):
        parts.setdefault(name.partition("/")[2], []).append(keys)
    return {table: np.concatenate(keys) for table, keys in parts.items()}


def decode_erased(value: bytes) -> dict[str, I64]:
    """Decode the keys of each table whose rows a version erased.

    Raises:
        ValueError: not a blob of keys.
    """
    tensors = _keys_of(value).items()
    return {name.removeprefix("erased/"): keys for name, keys in tensors if name.startswith("erased/")}


def _keys_of(value: bytes) -> dict[str, I64]:
    """Tensors of a blob of keys."""
    try:
        tensors: dict[str, I64] = load_tensors(value)
    except (SafetensorError, KeyError) as error:  # KeyError: a type that NumPy lacks
        raise ValueError(f"a blob of {len(value)} bytes holds no keys: {error}") from None
    if any(keys.dtype != np.int64 or keys.ndim != 1 for keys in tensors.values()):
        raise ValueError(f"a blob of {len(value)} bytes holds other tensors than keys")
    return tensors


def _of_json(value: dict[str, object]) -> object:
    """Bytes of a look-up column."""
    text = value.get("base64")
    if not isinstance(text, str):
        raise ValueError("a look-up column is an object, and no bytes in base64")
    return base64.b64decode(text)


def _json_bytes(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a look-up column holds {type(value).__name__}, which has no JSON form")
