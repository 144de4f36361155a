"""Fenced writes of rows, look-up rows and histories, a bucket at a time (layout: store.layout)."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from livectr.store.layout import BUCKETS, by_bucket, erased_slot, key_bytes, row_bytes, slot_bytes, slot_head
from livectr.store.packed_calls import PackedCall, framed
from livectr.trainer.publish.row_scripts import (
    ERASE_ROWS,
    RAISE_FLOOR,
    REMOVE_ERASED,
    UNLINK,
    WRITE_ROWS,
    WRITE_VALUES,
)
from livectr.trainer.publish.store_connection import StoreConnection
from livectr.trainer.publish.values import Values

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

CHUNK_ROWS = 1000
"""Rows of a script call: enough to amortise it, few enough not to hold up readers (≈ 1 ms)."""
PART_ROWS = 1 << 17
"""Rows that are grouped by bucket at once."""


class RowWriter:
    """Writes rows and values of a version.

    Every method raises FencedError, LostError or an error of STORE_ERRORS.

    Attributes:
        cut_off: numbers of pushes that were never flipped, whose slots `write` replaces.
    """

    def __init__(self, connection: StoreConnection) -> None:
        self._connection, self._space = connection, connection.space
        self.cut_off: tuple[int, ...] = ()

    def write(
        self, version: int, row_set: str, table: str, keys: I64, rows: F32, fresh: bool = False
    ) -> None:
        """Write slots of `version`; the slots before stay readable.

        Args:
            version: number in the heads of the slots.
            row_set: prefix of the rows' keys.
            table: of the rows.
            keys: int64[n].
            rows: f32[n, D].
            fresh: no version before has the row set, so that no slot is read.
        """
        source = WRITE_VALUES if fresh else WRITE_ROWS
        head: list[bytes | int] = [] if fresh else [self._replaced(version), slot_bytes(rows.shape[1])]
        names = [self._space.row_head(row_set, table, bucket) for bucket in range(BUCKETS)]

        def calls(keys: I64, rows: F32) -> Iterator[PackedCall]:
            for b, at in _chunked(keys):  # the rows of a call stay in the core's cache until they are sent
                epoch, slots = self._space.bucket_epoch(b), framed(row_bytes(rows[at]), slot_head(version))
                yield PackedCall(
                    source,
                    epoch,
                    [self._connection.epoch, *head],
                    framed(key_bytes(keys[at]), names[b]),
                    slots,
                )

        for start in range(0, len(keys), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            for answer in self._connection.client.call_packed(calls(keys[part], rows[part]), source):
                self._connection.check(answer)

    def erase(self, version: int, row_set: str, table: str, keys: I64, dim: int) -> None:
        """Mark rows of keys int64[n] as missing from `version` on; the slots before stay readable."""
        names = self._space.rows(row_set, table, keys)
        args = [self._replaced(version), slot_bytes(dim), erased_slot(version, dim)]
        self._connection.run_all(
            (ERASE_ROWS, bucket, [names[i] for i in at], args) for bucket, at in _chunked(keys)
        )

    def _replaced(self, version: int) -> bytes:
        """Versions whose slots a push of `version` replaces."""
        return b"".join(number.to_bytes(8, "little") for number in (version, *self.cut_off))

    def remove_erased(self, version: int, row_set: str, table: str, keys: I64) -> None:
        """Remove rows of keys int64[n] that `version` or an earlier version erased, after `raise_floor`."""
        names = self._space.rows(row_set, table, keys)
        self._connection.run_all(
            (REMOVE_ERASED, bucket, [names[i] for i in at], [version]) for bucket, at in _chunked(keys)
        )

    def raise_floor(self, version: int) -> None:
        """Tell readers of versions before `version` that a row which they do not find may have been there."""
        if self._space.clustered:
            self._connection.run_all(
                (RAISE_FLOOR, b, self._space.floors([b]), [version]) for b in range(BUCKETS)
            )
        else:
            self._connection.run(RAISE_FLOOR, [self._space.floor], [version])

    def write_values(self, values: Values) -> None:
        """Set or remove unversioned values."""
        kept = np.array([v is not None for v in values.values], bool)
        for chosen, script in ((np.flatnonzero(kept), WRITE_VALUES), (np.flatnonzero(~kept), UNLINK)):
            self._connection.run_all(
                (
                    script,
                    bucket,
                    [values.names[i] for i in chosen[at]],
                    [v for i in chosen[at] if (v := values.values[i]) is not None],
                )
                for bucket, at in _chunked(values.keys[chosen])
            )


def _chunked(keys: I64) -> Iterator[tuple[int, I64]]:
    """Bucket and positions of at most CHUNK_ROWS keys, over all keys i64[n]; buckets take turns.

    So the nodes of a cluster are written to side by side.
    """
    buckets = by_bucket(keys)
    for start in range(0, max((len(at) for _, at in buckets), default=0), CHUNK_ROWS):
        for bucket, at in buckets:
            if start < len(at):
                yield bucket, at[start : start + CHUNK_ROWS]
