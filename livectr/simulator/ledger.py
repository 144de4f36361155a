"""Ledger of the simulator: every unique impression with its true click probability and its correct label.

An Arrow IPC stream: request_id, user_id, ad_id, ts int64; probability float64 (of a click within the label
window); label uint8. With it, the AUC of a perfect predictor is known, and a prediction log can be checked
for lost and duplicated examples.
"""

from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from livectr.simulator.traffic import Columns, Shown
from livectr.system.errors import ConfigError, reason_of

SCHEMA = pa.schema(
    [
        ("request_id", pa.int64()),
        ("user_id", pa.int64()),
        ("ad_id", pa.int64()),
        ("ts", pa.int64()),
        ("probability", pa.float64()),
        ("label", pa.uint8()),
    ]
)


class Ledger:
    """Writer of the ledger. An impression is written when its label is final.

    A click is too late when its partition already holds an event after the impression's deadline.

    Args:
        path: file of the ledger.
        label_window_ms: as in TrafficOptions.
        partitions: of the click topic.
    """

    def __init__(self, path: Path, label_window_ms: int, partitions: int) -> None:
        self._window = label_window_ms
        try:
            self._file = pa.OSFile(str(path), "wb")
        except OSError as error:
            raise ConfigError(
                f"the ledger {path} cannot be written ({reason_of(error)}); name another --ledger"
            ) from None
        self._writer = pa.ipc.new_stream(self._file, SCHEMA)
        self._open: deque[Shown] = deque()
        self._first = 0  # request id of labels[0]
        self._labels: NDArray[np.uint8] = np.zeros(1024, np.uint8)
        self._shown_at: NDArray[np.int64] = np.zeros(1024, np.int64)
        self._click_mark = np.zeros(partitions, np.int64)  # cummax of the event time, per partition

    def show(self, shown: Shown) -> None:
        """Add the impressions of a tick. Request ids continue from the last call; the first may be any."""
        if not len(shown.ts):
            return
        if not self._open:
            self._first = int(shown.request_id[0])
        self._open.append(shown)
        end = int(shown.request_id[-1]) + 1 - self._first
        if end > len(self._labels):
            self._labels = np.concatenate([self._labels, np.zeros(end, np.uint8)])
            self._shown_at = np.concatenate([self._shown_at, np.zeros(end, np.int64)])
        self._shown_at[end - len(shown.ts) : end] = shown.ts

    def click(self, clicks: Columns, partition: NDArray[np.int32]) -> None:
        """Add clicks, in the order in which they were written."""
        for p in np.unique(partition).tolist():
            mine = partition == p
            ts, row = clicks["ts"][mine], clicks["request_id"][mine] - self._first
            mark = np.maximum.accumulate(np.concatenate([self._click_mark[p : p + 1], ts]))[1:]
            self._click_mark[p] = mark[-1]
            known = row >= 0  # a duplicate may come long after its impression was written
            row, mark = row[known], mark[known]
            self._labels[row[mark <= self._shown_at[row] + self._window]] = 1

    def settle(self, now_ms: int) -> None:
        """Write the impressions whose labels are final at `now_ms`."""
        while self._open and int(self._open[0].ts[-1]) + 2 * self._window < now_ms:
            self._write(self._open.popleft())

    def _write(self, shown: Shown) -> None:
        n = len(shown.ts)
        columns = [
            shown.request_id,
            shown.user_id,
            shown.ad_id,
            shown.ts,
            shown.probability,
            self._labels[:n],
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SCHEMA))
        self._first += n
        self._labels, self._shown_at = self._labels[n:], self._shown_at[n:]

    def close(self) -> None:
        """Write the rest, and close the file."""
        while self._open:
            self._write(self._open.popleft())
        self._writer.close()
        self._file.close()


def read_ledger(path: str | Path) -> pa.Table:
    """Read a ledger, as far as it was written. Raises ConfigError when the file is no ledger."""
    batches = []
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            batches = list(reader)
            schema = reader.schema
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"the ledger {path} cannot be read: {reason_of(error)}") from None
    return pa.Table.from_batches(batches, schema)


class LedgerTail:
    """Reader that follows a growing ledger."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new_batches(self) -> list[pa.RecordBatch]:
        """Batches that were written since the last call."""
        batches: list[pa.RecordBatch] = []
        if not self._path.exists():
            return batches
        with pa.OSFile(str(self._path)) as file:
            file.seek(self._at)
            while True:
                try:
                    message = pa.ipc.read_message(file)
                except (EOFError, OSError, pa.ArrowInvalid):  # the end, or a batch that is half written
                    return batches
                self._at = file.tell()
                if message.type == "record batch":
                    batches.append(pa.ipc.read_record_batch(message, SCHEMA))
