"""Log of the resizes: a table of users, impressions with many words, and their clicks."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from kafka import KafkaProducer

from livectr.local.kafka import create_topics

ADS, WORDS = 1_000, 20
ROWS_PER_USER = 10
PARTITIONS = 4
RATE = 300
"""Impressions a second of the traffic."""
TICK_S = 0.05
CLICKED = 0.1


class Log:
    """Writer of the log.

    Args:
        url: kafka://HOST:PORT.
        rows: least rows of the tables that have learned what `fill` writes; the traffic has no other words.

    Attributes:
        users: rows of the look-up table.
        impressions: written so far.
    """

    def __init__(self, url: str, rows: int, seed: int = 1) -> None:
        topics = dict.fromkeys(("impressions", "clicks", "users"), PARTITIONS)
        create_topics(url, topics, compacted=["users"])
        self._producer = KafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), linger_ms=20)
        self._rng = np.random.default_rng(seed)
        self._words, self.users = rows, rows // ROWS_PER_USER
        self.impressions = 0

    def fill(self) -> None:
        """Write the users, and every word once, as in the seconds before."""
        for user in range(self.users):
            self._send("users", {"user_id": user, "age": 15 + user % 70})
        number, start_ms = -(-self._words // WORDS), int(time.time() * 1000)
        words = np.arange(number * WORDS).reshape(number, WORDS)
        self._write(words, start_ms - number + np.arange(number))
        self._producer.flush()

    def write(self, number: int) -> None:
        """Write impressions of this moment."""
        words = self._rng.integers(0, self._words, (number, WORDS))
        self._write(words, np.full(number, int(time.time() * 1000)))

    def close(self) -> None:
        self._producer.close()

    def _write(self, words: np.ndarray, times_ms: np.ndarray) -> None:
        users, ads = (self._rng.integers(0, n, len(words)).tolist() for n in (self.users, ADS))
        clicked = (self._rng.random(len(words)) < CLICKED).tolist()
        for user, ad, ts, some, click in zip(
            users, ads, times_ms.tolist(), words.tolist(), clicked, strict=True
        ):
            event = {"request_id": self.impressions, "user_id": user, "ad_id": ad, "ts": ts}
            self._send("impressions", event | {"words": some})
            if click:
                self._send("clicks", event)
            self.impressions += 1

    def _send(self, topic: str, event: dict[str, Any]) -> None:
        user = int(event["user_id"])
        value = json.dumps(event).encode()
        self._producer.send(topic, value, key=str(user).encode(), partition=user % PARTITIONS)


class Traffic:
    """RATE impressions a second from a thread, while this is entered."""

    def __init__(self, log: Log) -> None:
        self._log, self._stop = log, threading.Event()
        self._thread = threading.Thread(target=self._write, name="traffic")

    def _write(self) -> None:
        began, first = time.monotonic(), self._log.impressions
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - began) * RATE)
            self._log.write(due - (self._log.impressions - first))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
