"""Background thread of a source: it reads and decodes ahead, limited by a bounded queue."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Mapping

from livectr.ingest import metrics
from livectr.ingest.chunks import NO_FILES, Chunk, Files, Position, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.system.speed import Speed

_log = logging.getLogger(__name__)
_TELL_EVERY_S = 1.0
_FULL_FOR_S, _WARN_EVERY_S = 2.0, 30.0
CHUNK_ROWS = 8192
"""Most rows of a chunk in the queue: `poll` returns whole ones."""
QUEUE_BYTES = 8 << 20
"""Default for the decoded bytes that may wait.

All of them can move into the ready queue at once, where a row takes several times as much memory, and every
checkpoint writes ready examples. A longer queue costs memory and saves no time.
"""


class BackgroundSource(ABC):
    """Base of Kafka and file sources: queue, back-pressure, ends, errors of the thread.

    A subclass reads in `_run`, passes chunks to `_put` and reports the distance to a partition's end with
    `_mark`. The thread waits while the queue or the spool of the dead letters is full.

    Args:
        max_queue_bytes: decoded bytes that may wait for `poll`.
        dead_letters: receives bad records.
    """

    def __init__(self, max_queue_bytes: int, dead_letters: DeadLetters) -> None:
        self._max_queue_bytes = max_queue_bytes
        self._letters = dead_letters
        self.remarks: list[str] = []
        self._positions: dict[TopicPartition, Position] = {}
        self._files: dict[TopicPartition, Files] = {}
        self._bytes: Counter[str] = Counter()  # topic → bytes read; only the reading thread adds
        self._delivered: Counter[str] = Counter()  # topic → records that `poll` has returned
        self._speeds: dict[str, Speed] = {}
        self._changed = threading.Condition()
        # The fields below are guarded by _changed.
        self._queue: deque[tuple[Chunk, int]] = deque()
        self._queue_bytes = 0
        self._queued: Counter[TopicPartition] = Counter()
        self._ended: dict[TopicPartition, bool] = {}
        self._behind: dict[TopicPartition, int] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._error: BaseException | None = None
        self._finished = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._told_s = 0.0
        self._question = self._answered = 0

    @abstractmethod
    def _run(self) -> None:
        """Read until `_stopping`, or until every end is reached; runs in the thread."""

    def assign(
        self, positions: Mapping[TopicPartition, Position], files: Mapping[TopicPartition, Files] = NO_FILES
    ) -> None:
        """Set the partitions to read and their start positions; see `ingest.sources.source.Source`."""
        self._positions, self._files = dict(positions), dict(files)
        self._ended = dict.fromkeys(positions, False)
        self._behind = dict.fromkeys(positions, 0)

    def files(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Files]:
        """No files, unless a subclass has some; see `ingest.sources.source.Source`."""
        return {}

    def start(self) -> None:
        """Start the background thread."""
        self._speeds = {topic: Speed() for topic, _ in self._positions}
        for speed in self._speeds.values():
            speed.observe(time.monotonic(), 0)
        self._thread = threading.Thread(target=self._work, name="livectr-source", daemon=True)
        self._thread.start()

    def poll(self, max_wait_s: float, rows: int | None = None) -> list[Chunk]:
        """Return queued chunks, and wait up to `max_wait_s` seconds if there are none yet.

        Args:
            max_wait_s: bound in seconds.
            rows: return no more chunks once they have so many rows; None: all.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._error or self._finished, timeout=max_wait_s)
            if self._error is not None and not self._queue:
                raise self._error
            chunks: list[Chunk] = []
            taken = 0
            while self._queue and (rows is None or taken < rows):
                chunk, size = self._queue.popleft()
                self._queue_bytes -= size
                self._queued[chunk.topic, chunk.partition] -= max(1, len(chunk))
                taken += len(chunk)
                chunks.append(chunk)
            self._changed.notify_all()
        for chunk in chunks:
            metrics.events.labels(chunk.topic).inc(len(chunk))
            self._delivered[chunk.topic] += len(chunk)
        return chunks

    def tell(self, held: Mapping[TopicPartition, int] | None = None) -> None:
        """Bring the gauges of lag and speed up to date, once a second.

        Args:
            held: records that `poll` has returned and that are not used yet; None: of no partition.
        """
        now_s = time.monotonic()
        if now_s - self._told_s > _TELL_EVERY_S:
            self._told_s = now_s
            for topic, speed in self._speeds.items():
                metrics.events_per_second.labels(topic).set(speed.observe(now_s, self._delivered[topic]))
            for place, behind in self.lag().items():
                metrics.consumer_lag_records.labels(place[0], str(place[1])).set(
                    behind + (held or {}).get(place, 0)
                )

    def at_end(self, topic: str, partition: int) -> bool:
        """Return true when `poll` has returned everything up to the partition's end."""
        with self._changed:
            return self._ended[topic, partition] and not self._queued[topic, partition]

    def ask_ends(self) -> int:
        """Ask for the present ends of all partitions; returns the number of the question, from 1."""
        with self._changed:
            self._question += 1
            self._changed.notify_all()
            return self._question

    @property
    def answered(self) -> int:
        """Number of the last question that is answered; 0 before the first."""
        with self._changed:
            return self._answered

    def lag(self) -> dict[TopicPartition, int]:
        """Records between the last that `poll` returned and the end of each partition."""
        with self._changed:
            return {place: behind + self._queued[place] for place, behind in self._behind.items()}

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read since `start`."""
        return dict(self._bytes)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop to read these partitions and resume all others; records in the queue still arrive."""
        with self._changed:
            self._paused = frozenset(partitions)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread and wait for it; a second call does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _put(self, chunk: Chunk, behind: int, ended: bool) -> None:
        """Queue a chunk with its partition's distance to the end; blocks while the queue is full."""
        left = len(chunk)
        for part in chunk.split(CHUNK_ROWS):
            left -= len(part)
            self._put_part(part, behind + left, ended and not left)

    def _put_part(self, chunk: Chunk, behind: int, ended: bool) -> None:
        place = (chunk.topic, chunk.partition)
        self._wait_for_letters()
        size = chunk.batch.nbytes + chunk.offset.nbytes + chunk.index.nbytes
        with self._changed:
            self._changed.wait_for(lambda: self._queue_bytes < self._max_queue_bytes or self._stopping)
            self._queue.append((chunk, size))
            self._queue_bytes += size
            self._queued[place] += max(1, len(chunk))
            self._behind[place] = behind
            self._ended[place] = ended
            self._changed.notify_all()

    def _wait_for_letters(self) -> None:
        """Back-pressure: block while the spool of dead letters is full."""
        warn_at = time.monotonic() + _FULL_FOR_S
        while self._letters.full and not self._stopping:
            if time.monotonic() >= warn_at:
                warn_at = time.monotonic() + _WARN_EVERY_S
                _log.warning(
                    "reading waits: the spool of dead letters is full until %s takes them",
                    self._letters.target,
                )
            self._rest(0.1)

    def _mark(self, place: TopicPartition, behind: int, ended: bool) -> None:
        """Report the distance to the end when nothing was read."""
        with self._changed:
            self._behind[place] = behind
            self._ended[place] = ended

    def _answer(self, question: int) -> None:
        """Note that `_mark` has told the ends of all partitions since a question."""
        with self._changed:
            self._answered = max(self._answered, question)

    def _fetched(self, topic: str, size: int) -> None:
        """Count bytes that were read."""
        self._bytes[topic] += size
        metrics.read_bytes.labels(topic).inc(size)

    def _rest(self, seconds: float) -> None:
        """Sleep; a call of `close` or `pause` ends it early."""
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)
