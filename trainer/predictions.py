"""The log of test-then-train predictions: every example as it was scored before it was learned.

Packed records in training order, written by rank 0. A checkpoint names its length, and a resumed run cuts it
back to that: what is scored again is logged once.
"""

import logging
import os
import tempfile
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from trainer.metrics import Quality, run_report

LOG = logging.getLogger(__name__)

RECORD = np.dtype(
    [
        ("instance", "<i8"),
        ("user", "<i8"),
        ("time_ms", "<i8"),
        ("rank", "<f4"),
        ("prerank", "<f4"),
        ("label", "u1"),
    ]
)
"""`rank` and `prerank` are logits; NaN where the pipeline has no such model."""

Records = npt.NDArray[np.void]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


def records(*, instance: I64, user: I64, time_ms: I64, logits: dict[str, F32], label: F32) -> Records:
    """Predictions of a batch as RECORD[B], from columns of B values."""
    packed = np.empty(len(instance), RECORD)
    packed["instance"], packed["user"], packed["time_ms"] = instance, user, time_ms
    for role in ("rank", "prerank"):
        packed[role] = logits.get(role, np.float32(np.nan))
    packed["label"] = label
    return packed


class PredictionLog:
    """An append-only file of RECORDs.

    Args:
        path: the file; None: a temporary one that goes with the log.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._file = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._file = path.open("r+b")
        self._file.seek(0, os.SEEK_END)
        self._length = self._file.tell() // RECORD.itemsize

    def __len__(self) -> int:
        return self._length

    def append(self, batch: Records) -> None:
        self._file.write(batch.tobytes())
        self._length += len(batch)

    def sync(self) -> int:
        """Make the log durable and return its length in records."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._length

    def truncate(self, length: int) -> None:
        """Cut the log back to `length` records; a shorter log stays as it is, with a warning."""
        if length > self._length:
            LOG.warning(
                "the prediction log has %d records where the checkpoint counts %d: the report leaves %d out",
                self._length,
                length,
                length - self._length,
            )
            length = self._length
        self._file.truncate(length * RECORD.itemsize)
        self._file.seek(0, os.SEEK_END)
        self._length = length

    def read(self) -> Records:
        """All records, in training order."""
        self._file.flush()
        if self._length == 0:
            return np.empty(0, RECORD)
        return np.memmap(self._file, RECORD, "r", shape=(self._length,))

    def report(self, role: str) -> dict[str, Quality]:
        """Quality of a model over the whole run ("all") and over its last fifth ("last")."""
        held = self.read()
        return run_report(held["user"], held[role], held["label"].astype(np.float32))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "PredictionLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
