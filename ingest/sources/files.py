"""File source: logs in DIR/<topic>/<partition>-<anything>.jsonl, .arrow or .parquet.

The number at the start of a file name is its partition (0 without a number, or with a number beyond
MOST_PARTITION, such as the digits of a date). A partition is the sequence of its files in name order. Its
records are numbered from 0; the number is the position. When logs are followed, a file counts as finished as
soon as a later file of its partition exists.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from livectr.ingest.addresses import log_folder
from livectr.ingest.chunks import Chunk, Files, Position, TopicPartition
from livectr.ingest.dead_letters.letters import TOPIC, DeadLetters, Reason
from livectr.ingest.dead_letters.usable import UNREADABLE
from livectr.ingest.decode.decoders import Decoding
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.sources.background import QUEUE_BYTES, BackgroundSource
from livectr.ingest.sources.part_file import (
    SUFFIXES,
    Part,
    UnreadableError,
    column_names,
    first_record,
    open_part,
    record_bytes,
)
from livectr.system.errors import ConfigError, MismatchError

MOST_PARTITION = (1 << 20) - 1
_POLL_S = 0.05
_GUESSED_RECORD_BYTES = 256

_log = logging.getLogger(__name__)


class FileSource(BackgroundSource):
    """Source that reads a folder of logs, up to its end at the start or following it as it grows.

    Args:
        url: `file:DIR`.
        streams: declarations of the topics.
        until_end: stop at the end that the folder has at the start.
        dead_letters: receives bad records.
        decoding: columns in use and limits.
        max_queue_bytes: decoded bytes that may wait for `poll`.

    Raises:
        ConfigError: the URL is not of this form.
    """

    def __init__(
        self,
        url: str,
        streams: Sequence[Stream | Table],
        *,
        until_end: bool,
        dead_letters: DeadLetters,
        decoding: Decoding | None = None,
        max_queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        super().__init__(max_queue_bytes, dead_letters)
        decoding = decoding or Decoding()
        self._root = log_folder(url)
        self._until_end = until_end
        self._max_record_bytes = decoding.limits.record_bytes
        self._decoders = decoding.decoders(streams, dead_letters)
        self._logs: dict[TopicPartition, _PartitionLog] = {}
        self._listed: dict[str, set[str]] = {}  # topic → names that `_look` has seen
        self._records_read, self._bytes_read = Counter[str](), Counter[str]()  # by topic

    def topics(self) -> dict[str, list[int]]:
        """Topic → its partitions, ascending, by the numbers in the file names.

        Raises:
            ConfigError: a folder is missing, or has no log file.
        """
        if not self._root.is_dir():
            raise ConfigError(
                f"there is no folder {self._root}; name the folder that holds a folder for each topic"
            )
        parts = {}
        for topic in self._decoders:
            if not (self._root / topic).is_dir():
                others = ", ".join(
                    sorted(path.name for path in self._root.iterdir() if path.is_dir() and path.name != TOPIC)
                )
                raise ConfigError(f"{self._root} has no folder {topic!r}; its folders are {others or 'none'}")
            parts[topic] = sorted(_list_parts(self._root / topic))
            if (names := unread(self._root / topic)) and os.environ.get("RANK", "0") == "0":
                self._remark(unread_words(self._root / topic, names))
            if not parts[topic]:
                raise ConfigError(f"{self._root / topic} has no log file ({' '.join(SUFFIXES)})")
        return parts

    def start(self) -> None:
        """Skip to the positions and start to read.

        Raises:
            MismatchError: a position is beyond the end of its partition.
        """
        self._letters.resume({place: at for place, at in self._positions.items() if at > Position(0, 0)})
        for (topic, partition), position in self._positions.items():
            decoder = self._decoders[topic]
            files = _list_parts(self._root / topic).get(partition, [])
            log = _PartitionLog(
                self._root / topic, files, decoder.wire_columns, self._max_record_bytes, self._until_end
            )
            for words in log.go_on(self._files.get((topic, partition), ()), position.offset):
                self._remark(words)
            if log.skip(position.offset) < position.offset:
                raise MismatchError(
                    f"{topic} partition {partition} has only {log.record} records, but the checkpoint goes "
                    f"on at {position.offset}; give the folder that it was made from"
                )
            self._logs[topic, partition] = log
            self._records_read[topic] += log.record
            self._bytes_read[topic] += log.bytes_before
        for place, log in self._logs.items():
            self._mark(place, self._estimate(place[0], log), False)
        super().start()

    def files(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Files]:
        """Files in which positions lie."""
        return {
            place: self._logs[place].files(at.offset)
            for place, at in positions.items()
            if place in self._logs
        }

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Record numbers of the ends; estimated from bytes until the end is read."""
        lag = self.lag()
        return {place: log.record + lag[place] for place, log in self._logs.items()}

    def close(self) -> None:
        """Stop the thread, and close the open files."""
        super().close()
        for log in self._logs.values():
            log.close()

    def _run(self) -> None:
        left = dict(self._logs)
        while left and not self._stopping:
            progress, question = False, self._question
            if question > self._answered:
                self._look()
            for place, log in list(left.items()):
                if place in self._paused or self._stopping:
                    continue
                chunk = self._read(place, log)
                if chunk is not None:
                    progress = True
                    self._put(chunk, self._estimate(place[0], log), log.ended)
                else:
                    self._mark(place, 0, True)
                if log.ended:
                    del left[place]
            if not progress:
                self._answer(question)
            if not progress and left:
                self._rest(_POLL_S)
                self._look()

    def _remark(self, words: str) -> None:
        _log.warning("%s", words)
        self.remarks.append(words)

    def _read(self, place: TopicPartition, log: _PartitionLog) -> Chunk | None:
        topic, partition = place
        first, before, fetched = log.record, log.bytes_left(), log.bytes_read
        decoder = self._decoders[topic]
        try:
            piece = log.read()
        except UnreadableError as error:
            path = str(log.last_path)
            self._letters.rows.add(topic, 1, {UNREADABLE: 1})
            self._letters.write((topic, partition, first, 0), Reason.BAD_FILE, str(error), path.encode())
            piece = []
        self._fetched(topic, log.bytes_read - fetched)
        if piece is None:
            return None
        self._records_read[topic] += len(piece)
        self._bytes_read[topic] += max(0, before - log.bytes_left())
        if isinstance(piece, pa.RecordBatch):
            assert log.last_path is not None
            return decoder.rows(partition, first, piece, seen=partial(column_names, log.last_path))
        offsets, values = list(range(first, first + len(piece))), piece
        if not all(piece) or any(map(bytes.isspace, piece)):
            lines = [(offset, line) for offset, line in zip(offsets, piece, strict=True) if line.strip()]
            offsets, values = [offset for offset, _ in lines], [line for _, line in lines]
        return decoder.messages(partition, MessageList.of(offsets, values), next_offset=log.record)

    def _estimate(self, topic: str, log: _PartitionLog) -> int:
        """Approximate count of records of a partition that are not read yet, by the bytes of the topic's."""
        known = self._bytes_read[topic] and self._records_read[topic]
        size = self._bytes_read[topic] / self._records_read[topic] if known else log.record_bytes()
        return 0 if log.ended else round(log.bytes_left() / size)

    def _look(self) -> None:
        """Find new files."""
        if self._until_end:
            return
        new = {}
        for topic in {topic for topic, _ in self._logs}:
            listed = self._listed.setdefault(topic, set())
            new[topic] = _list_parts(self._root / topic, but=listed)
            listed.update(path.name for paths in new[topic].values() for path in paths)
        for (topic, partition), log in self._logs.items():
            for words in log.extend(new[topic].get(partition, [])):
                self._remark(words)


class _PartitionLog:
    """Sequence of records in the files of one partition."""

    def __init__(
        self,
        folder: Path,
        files: Sequence[Path],
        columns: Collection[str],
        max_record_bytes: int,
        until_end: bool,
    ) -> None:
        self.record = 0  # number of the next record
        self.last_path: Path | None = None
        self._folder = folder
        self._columns = columns
        self._max_record_bytes = max_record_bytes
        self._until_end = until_end
        self._known = set(files)
        self._waiting = list(files)  # not opened yet
        self._stops = {path: path.stat().st_size for path in files} if until_end else {}
        self._part: Part | None = None
        self._closed_bytes = 0  # read from files that are closed
        self._opened_before = 0  # files that were passed over, opened or gone
        self._passed_bytes = 0  # of these files, and of those that were read since
        self._opened: list[list[Any]] = []  # see `ingest.chunks.Files`

    @property
    def ended(self) -> bool:
        """True when no record will come any more."""
        return self._until_end and self._part is None and not self._waiting

    def extend(self, files: Sequence[Path]) -> list[str]:
        """Add files that appeared; return sentences on those that are left out."""
        remarks = []
        for path in files:
            if path in self._known:
                continue
            self._known.add(path)
            if self.last_path is not None and path.name < self.last_path.name:
                remarks.append(f"{path} is left out: a later file of its partition is already being read")
                continue
            self._waiting.append(path)
            self._waiting.sort(key=lambda waiting: waiting.name)
        return remarks

    def files(self, record: int) -> Files:
        """Files from the one on in which a record is."""
        first = max((n for n, (_, start, *_) in enumerate(self._opened) if start <= record), default=0)
        for entry in self._opened[first:]:
            if entry[1] <= record and not entry[5]:
                entry[5] = first_record(self._folder / entry[0], self._columns)
        return [[*entry] for entry in self._opened[first:]]

    def go_on(self, files: Files, record: int) -> list[str]:
        """Pass over the files before the one in which a record was, though some of them may be gone.

        Args:
            files: of that record.
            record: its number.

        Returns:
            Sentences on rows that are left out.

        Raises:
            MismatchError: the file is gone before it was read to its end, or another has its name.
        """
        if not files:
            return []
        name, start, end, before, *more = next(entry for entry in reversed(files) if entry[1] <= record)
        earlier = [path for path in self._waiting if path.name < name]
        found = sum(path.stat().st_size for path in earlier)
        size, first = more or (found, {})
        remarks = []
        if len(earlier) > before:
            remarks.append(
                f"{len(earlier) - before} files of {self._folder} are left out: they came later than {name}, "
                "in which the checkpoint goes on, and their names come before it"
            )
        elif len(earlier) == before and found > size:
            remarks.append(
                f"{self._folder}: files before {name}, in which the checkpoint goes on, have grown by "
                f"{found - size:,} bytes, which are left out; write new rows into a new file"
            )
        self._waiting = [path for path in self._waiting if path.name >= name]
        if self._waiting and self._waiting[0].name == name:
            self._check_same(self._waiting[0], first)
            self.record = start
        elif end is not None and record >= end:
            self.record = record
        else:
            raise MismatchError(
                f"{self._folder / name} is gone, and the checkpoint goes on in it: bring it back, or begin "
                "another checkpoint from this one's tables with --warm-start"
            )
        self._opened_before, self._passed_bytes = before, size
        return remarks

    def _check_same(self, path: Path, first: Mapping[str, int]) -> None:
        """Raise MismatchError if a file has not the first record of before."""
        present = first_record(path, first)
        if any(value != first.get(name, value) for name, value in present.items()):
            raise MismatchError(
                f"{path} has other rows than when the checkpoint read it: its first one differs. Give each "
                "new file a name of its own that comes after the names of before, or begin another "
                "checkpoint from this one's tables with --warm-start"
            )

    def skip(self, records: int) -> int:
        """Skip records up to number `records`; return the number reached, less when the files hold fewer."""
        while self.record < records:
            part = self._open()
            if part is None:
                break
            self.record += part.skip(records - self.record, self._is_final())
            if self.record < records and not self._advance():
                break
        return self.record

    def read(self) -> list[bytes] | pa.RecordBatch | None:
        """Return the next lines or rows; None: nothing to read at present.

        Raises:
            UnreadableError: at most once for each file.
        """
        while True:
            part = self._open()
            if part is None:
                return None
            try:
                piece = part.read(self._is_final())
            except UnreadableError:
                self._advance()
                raise
            if piece is not None:
                self.record += len(piece)
                return piece
            if not self._advance():
                return None

    def record_bytes(self) -> float:
        """Bytes of a record, about, before any is read."""
        first = min(self._known, key=lambda path: path.name, default=None)
        return (record_bytes(first) if first is not None else None) or _GUESSED_RECORD_BYTES

    @property
    def bytes_before(self) -> int:
        """Approximate bytes of the records that were read or skipped."""
        sizes = sum(self._stops.get(path) or path.stat().st_size for path in self._known)
        return max(0, sizes - self.bytes_left())

    def bytes_left(self) -> int:
        waiting = sum(self._stops.get(path) or path.stat().st_size for path in self._waiting)
        return waiting + (self._part.bytes_left() if self._part is not None else 0)

    @property
    def bytes_read(self) -> int:
        return self._closed_bytes + (self._part.bytes_read if self._part is not None else 0)

    def close(self) -> None:
        if self._part is not None:
            self._closed_bytes += self._part.bytes_read
            self._part.close()
            self._part = None

    def _open(self) -> Part | None:
        if self._part is None and self._waiting:
            path = self.last_path = self._waiting.pop(0)
            before = self._opened_before + len(self._opened)
            self._opened.append([path.name, self.record, None, before, self._passed_bytes, {}])
            self._part = open_part(path, self._columns, self._max_record_bytes, self._stops.get(path))
        return self._part

    def _is_final(self) -> bool:
        return self._until_end or bool(self._waiting)

    def _advance(self) -> bool:
        """Close a finished file; return false when it may still grow."""
        if not self._is_final():
            return False
        if self._opened:
            self._opened[-1][2] = self.record
        if self._part is not None:
            path = self._part.path
            self._passed_bytes += self._stops.get(path) or path.stat().st_size
        self.close()
        return True


def unread(folder: Path) -> list[str]:
    """Names in a topic's folder that a source does not read: folders, and files of other suffixes.

    Names that begin with "." or "_" are temporary, and so are those that end with ".tmp".
    """
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name[0] not in "._"
            and (entry.is_dir() or Path(entry.name).suffix.lower() not in (*SUFFIXES, ".tmp"))
        )


def unread_words(folder: Path, names: Sequence[str]) -> str:
    """Sentence about what a source does not read of a topic's folder."""
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{folder} holds what is not read: {some}; a topic's files are {', '.join(SUFFIXES)}, unpacked, and "
        "in its folder itself"
    )


def _list_parts(folder: Path, but: Collection[str] = frozenset()) -> dict[int, list[Path]]:
    """Partition → its log files in name order. Names that begin with "." or "_" are temporary files.

    Args:
        folder: of a topic.
        but: names that are left out: thousands of files that are known cost a look next to nothing.
    """
    parts: dict[int, list[Path]] = {}
    with os.scandir(folder) as entries:
        names = sorted({entry.name for entry in entries}.difference(but))
    for name in names:
        path = folder / name
        if path.suffix.lower() in SUFFIXES and name[0] not in "._":
            number = re.match(r"\d+", name)
            partition = int(number[0]) if number else 0
            parts.setdefault(partition if partition <= MOST_PARTITION else 0, []).append(path)
    return parts
