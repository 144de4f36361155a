"""Prediction log: every example as it was scored before it was learned (test-then-train).

Rank 0 writes a line of JSON that names the columns, then packed records in training order. A checkpoint names
the length of the log and the SHA-256 up to it. A resumed run truncates the log to that length, so that an
example that is scored again is logged once. The file is not buffered: the batch that does not fit finds the
full disk.

A log that is bounded to the newest K records is written anew once it has 2 K: its header says how many
records came before its first. Such a log is for looking at (`livectr experiment compare`, `livectr rollout`),
and checkpoints name its length alone.

    instance, user, item   int64    keys of the join, of the user and of the item (0 without an items table)
    time_ms                int64    event time of the impression
    seen                   uint32   examples of the item that were learned before (trainer.quality.seen)
    label                  uint8    1: clicked
    <role>                 float32  logit of each model: rank, prerank, shadows

Of a pipeline with weights or sampled negatives, besides:

    weight                 float32  examples of the whole log that it counts for (models.importance)

Of a pipeline with a value, besides, for each of its labels:

    worth.<label>          float32  what the label is worth, times the target's expected value where it counts
    worth.<label>.came     float32  where it counts: worth times the value that came, 0 if none did

Of a pipeline with targets, besides, for the head of each:

    <role>.label           uint8    1: the target came; UNKNOWN: not known with this record
    <role>                 float32  logit of its probability, that of the click included

An impression whose target is known later than its click has another record then, whose `label` is UNKNOWN.
Readers get the records of examples alone, with the targets' logits and labels of these (`examples_of`).

Of a calibrated pipeline, besides:

    segment                int64    key of the calibration's field (ingest.plan.segments)
    calibrated             float32  calibrated logit of the model that ranks
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from livectr.ingest.plan.segments import NO_SEGMENT
from livectr.ingest.plan.worths import CAME
from livectr.system.disk import write_all, writing
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import LAST, Quality, quality
from livectr.trainer.quality.seen import is_cold

LOG = logging.getLogger(__name__)

COLUMNS = {
    "instance": "<i8",
    "user": "<i8",
    "item": "<i8",
    "time_ms": "<i8",
    "seen": "<u4",
    "label": "u1",
}
SEGMENT, CALIBRATED, WEIGHT = "segment", "calibrated", "weight"
NO_ROLES = (*COLUMNS, SEGMENT, WEIGHT)
"""Columns that are no model's logits, beside the labels of targets."""
LABEL = ".label"
"""End of the name of the column with a target's label."""
WORTH = "worth."
"""Beginning of the name of the column with a label's worth."""
UNKNOWN = 255
"""Label that is not known with a record."""
FORMAT = "livectr predictions"
LONGEST_HEADER = 1 << 16
READ_BYTES = 1 << 20

Records = npt.NDArray[np.void]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]


def layout(
    roles: Iterable[str], *, weighted: bool = False, targets: Iterable[str] = (), worths: Iterable[str] = ()
) -> np.dtype[np.void]:
    """Columns of a record; with calibrated logits also the segment.

    Args:
        roles: models.
        weighted: examples have weights.
        targets: roles among them with labels of their own.
        worths: names of measured worths (`Worths.measured`).

    Raises:
        ConfigError: a role has the name of another column.
    """
    roles = list(roles)
    for role in roles:
        if role in NO_ROLES:
            raise ConfigError(f"a model cannot be named {role!r}: the prediction log has such a column.")
    more = [(SEGMENT, "<i8")] if CALIBRATED in roles else []
    more += [(WEIGHT, "<f4")] if weighted else []
    more += [(WORTH + label, "<f4") for label in worths]
    more += [(role + LABEL, "u1") for role in targets]
    return np.dtype([*COLUMNS.items(), *more, *((role, "<f4") for role in roles)])


def weights_of(held: Records) -> F32 | None:
    """Weights f32[n] of records; None: each counts once."""
    return held[WEIGHT] if WEIGHT in (held.dtype.names or ()) else None


def weights_of_both(old: Records, new: Records) -> F32 | None:
    """Weights f32[n] of two runs' records of the same examples: the new run's, if it has some."""
    found = weights_of(new)
    return weights_of(old) if found is None else found


def label_of(held: Records, role: str) -> npt.NDArray[np.uint8]:
    """Labels u8[n] that a role predicts: the click's, or those of its target."""
    own = role + LABEL
    found: npt.NDArray[np.uint8] = held[own if own in (held.dtype.names or ()) else "label"]
    return found


def as_floats(label: npt.NDArray[np.uint8]) -> F32:
    """Labels f32[n], NaN where they are not known."""
    return np.where(label == UNKNOWN, np.float32(np.nan), label).astype(np.float32)


def knows(held: Records, role: str) -> npt.NDArray[np.bool_]:
    """Mask bool[n] of the records whose label of a role is known."""
    return np.asarray(label_of(held, role) != UNKNOWN)


def known_of(held: Records, role: str) -> Records:
    """Records whose label of a role is known."""
    known = knows(held, role)
    return held if known.all() else held[known]


def quality_of(held: Records, role: str) -> Quality:
    """Quality of a model over the records that know its label, with their weights where they have some."""
    held = known_of(held, role)
    label, cold = label_of(held, role).astype(np.float32), is_cold(held["seen"])
    return quality(held["user"], held[role], label, cold, weights_of(held))


def roles_of(held: Records) -> tuple[str, ...]:
    """Models whose logits the records hold."""
    names = (n for n in held.dtype.names or () if n not in NO_ROLES)
    return tuple(n for n in names if not n.endswith(LABEL) and not n.startswith(WORTH))


def targets_of(held: Records) -> tuple[str, ...]:
    """Roles with labels of their own."""
    return tuple(n.removesuffix(LABEL) for n in held.dtype.names or () if n.endswith(LABEL))


def worths_of(held: Records) -> tuple[str, ...]:
    """Names of measured worths: labels, and with CAME behind them those that have come."""
    return tuple(n.removeprefix(WORTH) for n in held.dtype.names or () if n.startswith(WORTH))


def records(
    *,
    instance: I64,
    user: I64,
    item: I64,
    time_ms: I64,
    seen: U32,
    logits: Mapping[str, F32],
    label: F32,
    segment: I64 | None = None,
    weight: F32 | None = None,
    targets: Mapping[str, F32] = MappingProxyType({}),
    worths: Mapping[str, F32] = MappingProxyType({}),
) -> Records:
    """Pack columns of B values into records[B]; only calibrated logits have a segment.

    Labels of targets are by role, worths by name. A label that is NaN is UNKNOWN.
    """
    kinds = layout(logits, weighted=weight is not None, targets=targets, worths=worths)
    packed = np.empty(len(instance), kinds)
    columns: dict[str, Any] = dict(
        instance=instance, user=user, item=item, time_ms=time_ms, seen=seen, label=_written(label)
    )
    if CALIBRATED in logits:
        columns[SEGMENT] = NO_SEGMENT if segment is None else segment
    if weight is not None:
        columns[WEIGHT] = weight
    columns |= {WORTH + label: worth for label, worth in worths.items()}
    columns |= {role + LABEL: _written(came) for role, came in targets.items()}
    for name, values in (columns | dict(logits)).items():
        packed[name] = values
    return packed


def _written(label: F32) -> npt.NDArray[np.uint8]:
    """Labels u8[n] as they are written."""
    return np.where(np.isnan(label), UNKNOWN, label).astype(np.uint8)


def examples_of(held: Records) -> Records:
    """Records of examples, with the labels that later records of their impressions know.

    A later record whose example is not among them is left out.

    Args:
        held: in training order.
    """
    return held[examples_in(held)] if (held["label"] == UNKNOWN).any() else held


def examples_in(held: Records) -> npt.NDArray[np.bool_]:
    """Mask bool[n] of the examples' records, which get what others of their impressions know."""
    first: npt.NDArray[np.bool_] = held["label"] != UNKNOWN
    at, again = np.flatnonzero(first), np.flatnonzero(~first)
    by = at[np.lexsort((held["time_ms"][at], held["instance"][at]))]
    ids = np.rec.fromarrays([held["instance"], held["time_ms"]])
    place = np.searchsorted(ids[by], ids[again])
    found = place < len(by)
    found[found] = ids[by[place[found]]] == ids[again[found]]
    to, of = by[place[found]], again[found]
    for role in targets_of(held):
        known = held[role + LABEL][of] != UNKNOWN
        worth = WORTH + role.removeprefix("rank.")  # an expected value is predicted as the probability is
        more = (worth, worth + CAME) if worth + CAME in (held.dtype.names or ()) else ()
        for name in (role, role + LABEL, *more):
            held[name][to[known]] = held[name][of[known]]
    return first


def read_predictions(path: Path) -> Records:
    """Read the examples of a prediction log, in training order. Raises ConfigError for another file."""
    return examples_of(read_records(path))


def read_records(path: Path) -> Records:
    """Read all records of a prediction log, in training order. Raises ConfigError for another file."""
    try:
        with path.open("rb") as file:
            columns, start, _ = _header(file)
            if columns is None:
                raise ConfigError(f"{path} is no log of predictions of livectr train.")
            # A running trainer may have written a part of its last record.
            count = (os.fstat(file.fileno()).st_size - start) // columns.itemsize
            file.seek(start)
            return np.fromfile(file, columns, count)
    except FileNotFoundError:
        raise ConfigError(
            f"there are no predictions {path}; livectr train --set predictions={path} writes them."
        ) from None


def is_prediction_log(path: Path) -> bool:
    """Tell by its first line if a file is a prediction log."""
    try:
        with path.open("rb") as file:
            return _header(file)[0] is not None
    except FileNotFoundError:
        return False


def wrong_predictions(path: Path, length: int, sha256: str) -> str:
    """Check the first `length` records of a log by their SHA-256.

    A log that was removed or that is shorter passes: `PredictionLog.truncate` warns of it. So does a log that
    was bounded since.

    Returns:
        A complaint; "" if the records are as they were written.
    """
    try:
        with path.open("rb") as file:
            columns, start, first = _header(file)
            size = start + length * (columns.itemsize if columns is not None else 0)
            if columns is None or first or size > path.stat().st_size:
                return ""
            if _hashed(file, size).hexdigest() == sha256:
                return ""
    except FileNotFoundError:
        return ""
    return (
        f"the prediction log {path} is not what was written; bring it back, or move it away to continue "
        "without what it holds"
    )


class PredictionTail:
    """Reads what is new in a log that a trainer writes.

    Args:
        path: the log; it may come later.

    Attributes:
        position: records that were read or passed over, counted from the run's beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position = 0

    def read(self, most: int) -> Records | None:
        """Read the records since the last call, of which the newest `most`; None before there is a log.

        A log that was cut back, by a run that begins again from its checkpoint, is read from its new end.

        Raises:
            ConfigError: the file is no prediction log.
        """
        try:
            with self._path.open("rb") as file:
                columns, start, first = _header(file)
                size = os.fstat(file.fileno()).st_size
                if columns is None and not size:
                    return None  # its first line comes
                if columns is None:
                    raise ConfigError(f"{self._path} is no log of predictions of livectr train.")
                end = first + (size - start) // columns.itemsize
                begin = min(max(self.position, first, end - most), end)
                file.seek(start + (begin - first) * columns.itemsize)
                self.position = end
                return known_of(np.fromfile(file, columns, end - begin), "")
        except FileNotFoundError:
            return None


class PredictionLog:
    """Append-only file of records.

    Args:
        path: the file; None: a temporary file that goes with the log.
        roles: models that are logged. A log of other models is useless and begins again.
        keep: newest records that are kept at least, and at most twice as many; 0: all.
        weighted: examples have weights.
        targets: roles with labels of their own.
        worths: names of measured worths (`Worths.measured`).

    Raises:
        ConfigError: the file is no prediction log, so that it is not written over.
    """

    def __init__(
        self,
        path: Path | None = None,
        roles: Iterable[str] = ("rank",),
        keep: int = 0,
        *,
        weighted: bool = False,
        targets: Iterable[str] = (),
        worths: Iterable[str] = (),
    ) -> None:
        self.columns = layout(roles, weighted=weighted, targets=targets, worths=worths)
        self._keep = keep
        if path is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile("w+b", buffering=0))  # noqa: SIM115
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._file = path.open("r+b", buffering=0)
        self._path = path
        self._digest: hashlib._Hash | None = None  # of all that the file holds, once it is asked for
        saved, self._start, self._first = _header(self._file)
        size = self._file.seek(0, os.SEEK_END)
        if saved is None and size:
            self._file.close()
            raise ConfigError(f"{path} is no prediction log, and is not written over; name another file.")
        if saved != self.columns:
            self._file.truncate(0)
            self._file.seek(0)
            self._first, self._start = 0, self._begin(self._file, 0)
            size = self._start
        self._length = self._first + (size - self._start) // self.columns.itemsize

    def __len__(self) -> int:
        """Records since the run began, of which the oldest may be gone."""
        return self._length

    def _begin(self, file: BinaryIO, first: int) -> int:
        """Write the header of a log whose first record is the run's `first`; return its length in bytes."""
        head = {"format": FORMAT, "columns": self.columns.descr, **({"first": first} if first else {})}
        line = json.dumps(head).encode() + b"\n"
        with self._writing():
            write_all(file, line)
        return len(line)

    def append(self, batch: Records) -> None:
        """Raises ValueError for records of other columns."""
        if batch.dtype != self.columns:
            raise ValueError(f"records of {batch.dtype.names} in a log of {self.columns.names}")
        data = batch.tobytes()
        with self._writing():
            write_all(self._file, data)
        if self._digest is not None:
            self._digest.update(data)
        self._length += len(batch)
        if self._keep and self._length - self._first > 2 * self._keep:
            self._drop(self._length - self._keep)

    def _drop(self, first: int) -> None:
        """Drop the records before the run's `first`; a file with the others takes the log's place."""
        kept = self.read()[max(0, first - self._first) :].tobytes()
        if self._path is None:
            self._file.truncate(0)
            self._file.seek(0)
            file = self._file
        else:
            scratch = self._path.with_name(f".{self._path.name}.new")
            file = scratch.open("w+b", buffering=0)
        start = self._begin(file, first)
        with self._writing():
            write_all(file, kept)
        if self._path is not None:
            scratch.replace(self._path)
            self._file.close()
        self._file, self._start, self._first, self._digest = file, start, first, None

    def sync(self) -> int:
        """Make the log durable and return its length in records."""
        with self._writing():
            os.fsync(self._file.fileno())
        return self._length

    @property
    def sha256(self) -> str:
        """Digest of the header and all records; "" for a temporary or bounded log, which is not verified."""
        if self._path is None or self._keep or self._first:
            return ""
        if self._digest is None:
            self._digest = _hashed(self._file, self._start + self._length * self.columns.itemsize)
            self._file.seek(0, os.SEEK_END)
        return self._digest.copy().hexdigest()

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
        if length < self._first:
            self._drop(self._length)
            self._drop(length)
        self._file.truncate(self._start + (length - self._first) * self.columns.itemsize)
        self._file.seek(0, os.SEEK_END)
        if length != self._length:
            self._digest = None
        self._length = length

    def read(self) -> Records:
        """Records that are kept, in training order."""
        count = self._length - self._first
        if count == 0:
            return np.empty(0, self.columns)
        return np.memmap(self._file, self.columns, "r", offset=self._start, shape=(count,))

    def report(self, role: str) -> dict[str, Quality]:
        """Quality of a model over all records that are kept ("all") and over their last fifth ("last")."""
        held = known_of(self.read(), role)
        return {"all": quality_of(held, role), "last": quality_of(held[int(len(held) * (1 - LAST)) :], role)}

    def close(self) -> None:
        """Close the file; a temporary file goes."""
        self._file.close()

    def _writing(self) -> AbstractContextManager[None]:
        return writing("the prediction log", self._path or tempfile.gettempdir())

    def __enter__(self) -> "PredictionLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hashed(file: BinaryIO, size: int) -> "hashlib._Hash":
    """SHA-256 of the first `size` bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size and (piece := file.read(min(size, READ_BYTES))):
        digest.update(piece)
        size -= len(piece)
    return digest


def _header(file: BinaryIO) -> tuple[np.dtype[np.void] | None, int, int]:
    """Parse the file's first line.

    Returns:
        Columns, the line's length in bytes, and the records that came before the first; (None, 0, 0) if it is
        no header.
    """
    line = file.readline(LONGEST_HEADER)
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            return None, 0, 0
        columns = np.dtype([(name, kind) for name, kind in header["columns"]])
        first = int(header.get("first", 0))
    except (ValueError, TypeError, KeyError):
        return None, 0, 0
    return (
        (columns, len(line), first)
        if line.endswith(b"\n") and set(COLUMNS) <= set(columns.names or ())
        else (None, 0, 0)
    )
