"""Dead letters: records that cannot be used are counted and kept with position and reason.

A letter is a JSON object:

    topic, partition, offset, index   position of the record; index counts inside an Arrow message. An example
                                      is made of several records: offset -1, its instance as index
    reason                            a `Reason`
    detail                            what exactly is wrong
    value, encoding                   the record, as "text" or "base64"; its first 64 KiB
    value_bytes                       the length of the full record
    rows                              count of rows it stands for: above 1 for an Arrow message, or a piece
                                      of a file, that cannot be used as a whole

A letter is written when its record is read, perhaps before the checkpoint that covers the record. After a
crash the record is read again. So a file sink first reads which letters it has; in Kafka the message key is
the position and the topic is compacted. Each bad record keeps one letter.

`flush` puts letters on a disk, never into a broker: letters of a topic wait in a spool
(ingest.dead_letters.spool) for the thread that sends them (ingest.dead_letters.topic). A full spool pauses
the sources.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from livectr.ingest import metrics
from livectr.ingest.addresses import log_folder
from livectr.ingest.dead_letters.spool import TOPIC, Spool
from livectr.ingest.dead_letters.usable import RowCounts
from livectr.ingest.limits import SPOOL_BYTES
from livectr.system.errors import ConfigError, UserError

if TYPE_CHECKING:
    from livectr.ingest.chunks import Position

__all__ = ["TOPIC", "DeadLetters", "Reason"]

MAX_VALUE_BYTES = 64 << 10
EXAMPLE = -1
"""Offset of a letter about an example."""

SPOOL = "dead_letters"
"""Folder of the spool, beside the generations of a checkpoint."""


class Reason(StrEnum):
    """Reason why a record cannot be used; a closed set, because it labels a metric."""

    BAD_JSON = "bad_json"
    BAD_ARROW = "bad_arrow"
    BAD_AVRO = "bad_avro"
    BAD_PROTOBUF = "bad_protobuf"
    NO_SCHEMA = "no_schema"
    MISSING_COLUMN = "missing_column"
    WRONG_TYPE = "wrong_type"
    OVERSIZE = "oversize"
    TOO_DEEP = "too_deep"
    NO_VALUE = "no_value"
    BAD_KEY = "bad_key"
    BAD_FILE = "bad_file"
    BAD_IMAGE = "bad_image"
    BAD_BATCH = "bad_batch"
    NOT_DECODED = "not_decoded"
    BAD_LABEL = "bad_label"
    BAD_TIME = "bad_time"
    BAD_WEIGHT = "bad_weight"
    BAD_TARGET = "bad_target"
    BAD_POSITION = "bad_position"
    NOT_EXTRACTED = "not_extracted"
    JOIN_FULL = "join_full"

    @property
    def of_example(self) -> bool:
        """True if it is said of a joined row, which was decoded and counted before."""
        return self in (Reason.BAD_WEIGHT, Reason.BAD_TARGET, Reason.BAD_POSITION, Reason.NOT_EXTRACTED)


RecordPlace: TypeAlias = tuple[str, int, int, int]
"""Place of a record: topic, partition, offset, index; of an example: topic, partition, EXAMPLE, instance."""


class _Sink(Protocol):
    @property
    def full(self) -> bool: ...
    def resume(self, positions: Mapping[tuple[str, int], Position]) -> None: ...
    def write(self, place: RecordPlace, letter: dict[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class DeadLetters:
    """Writer of dead letters; thread-safe.

    Args:
        target: `kafka://HOST:PORT` (topic `livectr.dead_letters`), a folder, or None to count only.
        writer: number of this process (the rank).
        writers: number of processes that share the folder.
        spool: folder in which letters wait for a topic; None: a temporary folder, which stays if letters are
            left.
        spool_bytes: size of the spool from which the sources pause.

    Raises:
        ConnectError: the broker does not answer.
        ConfigError: the folder cannot be written.
    """

    def __init__(
        self,
        target: str | Path | None,
        *,
        writer: int = 0,
        writers: int = 1,
        spool: Path | None = None,
        spool_bytes: int = SPOOL_BYTES,
    ) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()  # reason → rows of this process that cannot be used
        self.rows = RowCounts()
        self._places: list[tuple[RecordPlace, str, int]] | None = None
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sink: _Sink | None = None
        self._temporary: Path | None = None
        for reason in Reason:
            metrics.dead_letters.labels(reason.value)
        if isinstance(target, str) and target.startswith("kafka:"):
            folder = spool or Path(tempfile.mkdtemp(prefix="livectr-dead-letters-"))
            self._temporary = folder if spool is None else None
            waiting = Spool(folder, writer=writer, writers=writers, most_bytes=spool_bytes)
            from livectr.ingest.dead_letters.topic import TopicSink  # imports kafka

            self._sink = TopicSink(target, waiting)
        elif target is not None:
            self._sink = _FileSink(Path(target), writer)

    @classmethod
    def for_source(cls, url: str, folder: str | Path | None = None, **options: Any) -> DeadLetters:
        """Open the default target of a log.

        It is `folder` if given, else a topic of the broker or a folder beside the topics.

        Args:
            url: of the log.
            folder: overrides the default target.
            options: writer, writers, spool, spool_bytes.
        """
        if folder is None:
            if url.startswith("file:") and not log_folder(url).is_dir():  # letters alone are no log
                raise ConfigError(
                    f"there is no folder {log_folder(url)}; "
                    "name the folder that holds a folder for each topic"
                )
            folder = url if url.startswith("kafka:") else log_folder(url) / TOPIC
        return cls(folder, **options)

    @property
    def place(self) -> str | None:
        """Path or URL of the letters for a person to read; None if they are only counted."""
        kafka = isinstance(self.target, str) and self.target.startswith("kafka:")
        if kafka:
            return f"topic {TOPIC} of {self.target}"
        return None if self.target is None else str(self.target)

    def resume(self, positions: Mapping[tuple[str, int], Position]) -> None:
        """Prepare for reading from `positions`.

        Letters there and later, and those about examples, are not written twice.
        """
        with self._lock:
            if self._sink is not None:
                self._sink.resume(positions)

    def write(
        self,
        place: RecordPlace,
        reason: Reason,
        detail: str,
        value: bytes,
        *,
        rows: int = 1,
    ) -> None:
        """Count and keep a bad record.

        Args:
            place: position of the record.
            reason: kind of the mistake.
            detail: sentence about the mistake.
            value: bytes of the record.
            rows: count of rows that the record stands for.
        """
        head = value[:MAX_VALUE_BYTES]
        try:
            text, encoding = head.decode(), "text"
        except UnicodeDecodeError:
            text, encoding = base64.b64encode(head).decode(), "base64"
        topic, partition, offset, index = place
        letter = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "index": index,
            "reason": reason.value,
            "detail": detail[:1000],
            "value": text,
            "encoding": encoding,
            "value_bytes": len(value),
            "rows": rows,
        }
        metrics.dead_letters.labels(reason.value).inc(rows)
        with self._lock:
            self.counts[reason.value] += rows
            if self._places is not None:
                self._places.append((place, reason.value, rows))
            if self._sink is not None:
                with self._disk_errors():
                    self._sink.write(place, letter)

    def track_positions(self) -> None:
        """Start to keep positions for `counts_before`.

        Positions take memory, so `counts_before` must be called regularly.
        """
        self._places = []

    def counts_before(self, positions: Mapping[tuple[str, int], Position]) -> dict[str, int]:
        """Count this process's dead rows that a restart from `positions` will not read again.

        These are examples, and records before the positions. Look-up tables are always read again.

        Returns:
            Reason → rows.
        """
        with self._lock:
            ahead = []
            for place, reason, rows in self._places or ():
                start = positions.get(place[:2])
                if place[2] == EXAMPLE or (start and place[2:] < (start.offset, start.index)):
                    self._counted[reason] += rows
                elif start:
                    ahead.append((place, reason, rows))
            self._places = ahead
            return dict(self._counted)

    def __len__(self) -> int:
        """Rows of this process that cannot be used."""
        return self.counts.total()

    def __bool__(self) -> bool:
        return True  # also without letters

    @property
    def full(self) -> bool:
        """True while the spool is full and sources should pause."""
        sink = self._sink
        return sink is not None and sink.full

    def flush(self) -> None:
        """Sync every letter to disk, before a checkpoint moves past their records.

        Raises:
            UserError: the disk cannot be written.
        """
        with self._lock, self._disk_errors():
            if self._sink is not None:
                self._sink.flush()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"a dead letter cannot be kept: {error}; make room on that disk") from error

    def close(self) -> None:
        """Flush and close; a second call does nothing. Undelivered letters stay in the spool."""
        with self._lock:
            if self._sink is not None:
                sink, self._sink = self._sink, None
                sink.close()
                if self._temporary is not None:
                    with suppress(OSError):  # letters are left in it
                        self._temporary.rmdir()


class _FileSink:
    """Sink that writes JSON lines to FOLDER/<writer>-letters.jsonl, a layout that a file source can read."""

    def __init__(self, folder: Path, writer: int) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{writer:05d}-letters.jsonl").open("a+b")
        except OSError as error:
            raise ConfigError(f"dead letters cannot be written to {folder}: {error.strerror}") from error
        self._known: set[RecordPlace] = set()
        # A crash may have cut the last line; the next letter starts a new line.
        if self._file.tell() > 0:
            self._file.seek(-1, 2)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def resume(self, positions: Mapping[tuple[str, int], Position]) -> None:
        self._file.flush()
        for path in sorted(self._folder.glob("*-letters.jsonl")):
            with path.open("rb") as lines:
                for line in lines:
                    try:
                        letter = json.loads(line)
                        place = (letter["topic"], letter["partition"], letter["offset"], letter["index"])
                    except (ValueError, KeyError, TypeError):
                        continue  # torn by a crash
                    start = positions.get((place[0], place[1]))
                    again = start is not None and (place[2], place[3]) >= (start.offset, start.index)
                    if again or place[2] == EXAMPLE:
                        self._known.add(place)

    def write(self, place: RecordPlace, letter: dict[str, Any]) -> None:
        if place in self._known:
            self._known.discard(place)
        else:
            self._file.write(json.dumps(letter, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    @property
    def full(self) -> bool:
        return False

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
