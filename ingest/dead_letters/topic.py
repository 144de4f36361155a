"""Delivery of dead letters to a topic: a thread drains the spool, however long the broker is away.

A letter's message key is the position of its record, and the topic is compacted. Segments without
acknowledgement are sent again: delivery is at least once, and compaction keeps one letter for each record.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError

from livectr.ingest import metrics
from livectr.ingest.addresses import MOST_IN_FLIGHT, connect_admin, kafka_options
from livectr.ingest.dead_letters.spool import TOPIC, Spool
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.chunks import Position

POLL_S = 0.2
REQUEST_S = 5.0
"""Time limit of a broker's answer; twice that for the letters of a segment."""
CLOSE_TIMEOUT_S = 5.0
"""Longest time that `close` waits for the broker; undelivered letters stay in the spool."""
RETRY_S = (0.5, 10.0)
"""Shortest and longest pause after a failure (exponential back-off)."""

_log = logging.getLogger(__name__)


class TopicSink:
    """Sink that sends letters to a compacted topic through a spool.

    Args:
        url: `kafka://HOST:PORT`.
        spool: holds the letters until the broker has them.

    Raises:
        ConnectError: no broker answers at the start.
        ConfigError: the topic cannot be created.
    """

    def __init__(self, url: str, spool: Spool) -> None:
        _ensure_topic(url)
        self._url, self._spool = url, spool
        self._wake = threading.Event()
        self._deadline = float("inf")
        self._away = False
        self._thread = threading.Thread(target=self._work, name="livectr-dead-letters", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True when the spool has no room."""
        return self._spool.full

    def resume(self, positions: Mapping[tuple[str, int], Position]) -> None:
        """Do nothing: compaction removes letters that are written twice."""

    def write(self, place: tuple[str, int, int, int], letter: dict[str, Any]) -> None:
        """Append a letter to the spool; it is on disk after the next `flush`."""
        self._spool.append(json.dumps(letter, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._show()

    def flush(self) -> None:
        """Sync the spool to disk: letters survive a kill and a power cut. The topic may still lack them."""
        self._spool.flush()

    def close(self) -> None:
        """Deliver letters for up to CLOSE_TIMEOUT_S; the others stay in the spool, with a warning."""
        self._deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._wake.set()
        self._thread.join()
        self._spool.close()
        self._show()
        if left := self._spool.letters:
            _log.warning(
                "%d dead letters wait in %s: %s did not take them", left, self._spool.folder, self._url
            )

    # ── in the thread ──

    def _work(self) -> None:
        producer: KafkaProducer | None = None
        pause_s = RETRY_S[0]
        while True:
            segment = self._spool.next()
            if segment is None:
                if self._closing:
                    break
                self._wake.wait(POLL_S)
                continue
            try:
                producer = producer or KafkaProducer(
                    **kafka_options(self._url),
                    bootstrap_timeout_ms=int(REQUEST_S * 1000),
                    client_id="livectr-dead-letters",
                    acks="all",
                    enable_idempotence=False,  # letters have a key: duplicates are harmless
                    max_in_flight_requests_per_connection=MOST_IN_FLIGHT,
                    request_timeout_ms=int(REQUEST_S * 1000),
                    delivery_timeout_ms=int(2 * REQUEST_S * 1000),
                    max_block_ms=int(REQUEST_S * 1000),
                    reconnect_backoff_max_ms=2000,
                    linger_ms=5,
                )
                self._send(producer, segment)
            except Exception as error:  # also of the disk: the thread continues and logs it
                self._missed(error)
                if time.monotonic() >= self._deadline:
                    break
                self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                self._spool.done(segment)
                self._show()
                pause_s = RETRY_S[0]
                if self._away:
                    self._away = False
                    _log.warning("%s takes dead letters again", self._url)
        if producer is not None:
            with suppress(KafkaError):
                producer.close(timeout=1)

    def _send(self, producer: KafkaProducer, segment: Path) -> None:
        """Send a segment; return when the broker has acknowledged every letter.

        Raises:
            KafkaError: a letter was not delivered.
        """
        futures = []
        with segment.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # torn by a crash: its record was not committed and is read again
                try:
                    letter = json.loads(line)
                    key = "/".join(str(letter[name]) for name in ("topic", "partition", "offset", "index"))
                except (ValueError, TypeError, KeyError):
                    _log.warning("%s holds a line that is no dead letter: %r", segment, line[:100])
                    continue
                futures.append(producer.send(TOPIC, key=key.encode("utf-8", "replace"), value=line[:-1]))
        for future in futures:
            while not future.is_done:
                with suppress(KafkaTimeoutError):
                    producer.flush(timeout=POLL_S)
                if time.monotonic() >= self._deadline:
                    raise KafkaTimeoutError("no answer")
            if future.failed():
                raise future.exception

    @property
    def _closing(self) -> bool:
        return self._deadline < float("inf")

    def _pause(self, seconds: float) -> None:
        if self._closing:
            time.sleep(POLL_S)
        else:
            self._wake.wait(seconds)

    def _missed(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            folder = self._spool.folder
            _log.warning("%s takes no dead letters (%s); they wait in %s", self._url, error, folder)

    def _show(self) -> None:
        metrics.dead_letters_waiting.set(self._spool.letters)
        metrics.dead_letter_spool_bytes.set(self._spool.bytes)


def _ensure_topic(url: str) -> None:
    with connect_admin(url) as admin:
        topic = {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}}
        try:
            if TOPIC not in admin.list_topics():
                admin.create_topics({TOPIC: topic}, wait_for_metadata=True)
        except TopicAlreadyExistsError:
            pass  # another process was first
        except KafkaError as error:
            raise ConfigError(f"topic {TOPIC} cannot be created ({error}); create it beforehand") from error
