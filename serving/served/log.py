"""Served log: a sample of the answered requests, written beside them.

    request's thread:  sample by request id ─► bounded queue
    writer's thread:                           └─► digests, JSON ─► folder or topic

A request never waits for the log, and never fails for it: a record that does not fit the queue, or that the
sink does not take, is dropped and counted. Equal request ids are sampled alike by all servers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b

from livectr.ingest.pipeline import Pipeline
from livectr.serving import metrics
from livectr.serving.canary import SIDE
from livectr.serving.options import ServeOptions
from livectr.serving.served.record import Answer, encode
from livectr.serving.served.sinks import Outcome, Sink, open_sink
from livectr.system.errors import ConnectError

QUEUE_BYTES = 32 << 20
"""Most bytes of records that wait or are under way."""
CLOSE_S = 5.0
"""Longest time that `close` waits for the records in the queue."""
RETRY_S = (0.5, 10.0)
"""Shortest and longest pause after a sink was away (exponential back-off)."""
_SALT = b"livectr served"

log = logging.getLogger(__name__)


def sampled(request_id: str, share: float) -> bool:
    """Tell if a log of this share has a request: a function of its id alone."""
    word = blake2b(request_id.encode("utf-8", "replace"), digest_size=8, salt=_SALT).digest()
    return int.from_bytes(word, "little") < share * 2.0**64


@dataclass(frozen=True)
class _Entry:
    answer: Answer
    size: int


class ServedLog:
    """Writer of the served log of the side for which it is made. Thread-safe.

    Args:
        url: `kafka://HOST:PORT/TOPIC` or `file:DIR`.
        share: share of the requests that are logged, above 0 and at most 1.
        pipeline: whose requests are answered.
        queue_bytes: most bytes of records that wait or are under way.

    Raises:
        ConfigError: the folder cannot be written, or Kafka's client is not installed.
    """

    def __init__(self, url: str, share: float, pipeline: Pipeline, *, queue_bytes: int = QUEUE_BYTES) -> None:
        for outcome in Outcome:
            if outcome is not Outcome.WRITTEN:
                metrics.SERVED_LOG_DROPPED.labels(outcome.value)
        self._url, self._share, self._most_bytes = url, share, queue_bytes
        self._plan, self._time = pipeline.plan.fingerprint, pipeline.log.impressions.time
        self._side = SIDE.get()
        self._sink: Sink = open_sink(url)
        self._queue: deque[_Entry] = deque()
        self._open: dict[int, _Entry] = {}  # records without an outcome, by identity
        self._bytes = 0
        self._changed = threading.Condition(threading.Lock())
        self._deadline = float("inf")
        self._away = False
        self._told = False
        self._thread = threading.Thread(target=self._work, name="livectr-served-log", daemon=True)
        self._thread.start()

    @staticmethod
    def of(pipeline: Pipeline, options: ServeOptions) -> ServedLog | None:
        """Log that a server's options ask for; None: none is kept."""
        if options.served_log is None:
            return None
        return ServedLog(options.served_log, options.served_share, pipeline)

    def wants(self, request_id: str) -> bool:
        """Return true for a request in the sample; a request without an id is counted as dropped."""
        if not request_id:
            metrics.SERVED_LOG_DROPPED.labels(Outcome.NO_REQUEST_ID.value).inc()
            if not self._told:
                self._told = True
                log.warning("a request without request_id is not in the served log: clients must send one")
            return False
        return sampled(request_id, self._share)

    def offer(self, answer: Answer) -> None:
        """Queue an answer, or drop it; never waits for the sink."""
        size = answer.bytes
        entry = _Entry(answer, size)
        with self._changed:
            closing = self._closing
            fits = not closing and self._bytes + size <= self._most_bytes
            if fits:
                self._bytes += size
                self._open[id(entry)] = entry
                self._queue.append(entry)
                metrics.SERVED_LOG_WAITING.inc()
                self._changed.notify_all()
        if not fits:
            _count(Outcome.CLOSING if closing else Outcome.QUEUE_FULL)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what is queued, for `timeout_s` seconds at most, and drop the rest; works once."""
        with self._changed:
            if self._closing:
                return
            self._deadline = time.monotonic() + timeout_s
            self._changed.notify_all()
        self._thread.join(timeout_s + 1.0)
        with self._changed:
            left = list(self._open.values())
        for entry in left:
            self._tell(entry, Outcome.CLOSING)
        self._sink.close()
        if left:
            log.warning("%d records of what was served are lost: %s did not take them", len(left), self._url)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        pause_s = RETRY_S[0]
        while (entry := self._next()) is not None:
            try:
                self._write(entry)
            except ConnectError as error:
                self._missed(error)
                with self._changed:
                    self._queue.appendleft(entry)
                    if self._closing:
                        self._changed.wait(RETRY_S[0] / 2)
                    else:
                        self._changed.wait_for(lambda: self._closing, pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            except Exception as error:  # a full disk, or a mistake of ours: requests continue
                self._missed(error)
                self._tell(entry, Outcome.SINK)
            else:
                pause_s = RETRY_S[0]
                if self._away:
                    self._away = False
                    log.warning("%s takes what was served again", self._url)
        with self._changed:
            self._changed.wait_for(lambda: not self._open, max(0.0, self._deadline - time.monotonic()))

    def _next(self) -> _Entry | None:
        """Wait for a record; None: the log is closed and empty, or its time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue or time.monotonic() >= self._deadline:
                return None
            return self._queue.popleft()

    def _write(self, entry: _Entry) -> None:
        answer = entry.answer
        facts = {"side": self._side, "share": self._share}
        line = encode(answer, facts, plan=self._plan, time=self._time)
        self._sink.write(answer.request_id, line, lambda outcome: self._tell(entry, outcome))

    def _tell(self, entry: _Entry, outcome: Outcome) -> None:
        """Count a record's outcome; the first counts."""
        with self._changed:
            if self._open.pop(id(entry), None) is None:
                return
            self._bytes -= entry.size
            metrics.SERVED_LOG_WAITING.dec()
            self._changed.notify_all()
        _count(outcome)

    def _missed(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning("%s takes no records of what was served: %s", self._url, error)

    @property
    def _closing(self) -> bool:
        return self._deadline < float("inf")


def _count(outcome: Outcome) -> None:
    if outcome is Outcome.WRITTEN:
        metrics.SERVED_LOG_RECORDS.inc()
    else:
        metrics.SERVED_LOG_DROPPED.labels(outcome.value).inc()
