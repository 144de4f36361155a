"""A trainer's process, and its metrics and memory over time."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.process_memory import memory_mib
from livectr.local.parts import Part, PartError, descendants
from livectr.local.scrape import Samples, scrape, total, value

EVERY_S = 0.2


@dataclass(frozen=True)
class Moment:
    """Metrics of a trainer.

    Args:
        at_s: time.monotonic().
        samples: of the endpoint.
        resident_mib: memory of the process.
    """

    at_s: float
    samples: Samples
    resident_mib: float

    def value(self, name: str, **labels: str) -> float:
        """Value of a sample; 0: not exported."""
        return value(self.samples, name, **labels) or 0.0

    @property
    def examples(self) -> float:
        return self.value("livectr_examples_total")

    def rows(self, table: str) -> float:
        return self.value("livectr_table_rows", table=table)

    @property
    def all_rows(self) -> float:
        return total(self.samples, "livectr_table_rows")

    def versions(self, rows: str) -> float:
        """Versions of `changed` rows or of `all`."""
        return self.value("livectr_published_versions_total", rows=rows)

    @property
    def published_rows(self) -> float:
        return self.value("livectr_published_rows_total")


def seconds_of(course: Sequence[Moment], histogram: str) -> list[float]:
    """Seconds of each observation of a histogram between the first and the last moment, in order.

    Observations between two scrapes count as equal.
    """
    found: list[float] = []
    for before, after in itertools.pairwise(course):
        count = round(after.value(f"{histogram}_count") - before.value(f"{histogram}_count"))
        seconds = after.value(f"{histogram}_sum") - before.value(f"{histogram}_sum")
        found += [seconds / count] * count if count else []
    return found


def longest_gap(course: Sequence[Moment]) -> float:
    """Longest time between two moments of learning, as the scrapes show it, in seconds."""
    longest, moved = 0.0, course[0]
    for moment in course:
        if moment.examples > moved.examples:
            longest, moved = max(longest, moment.at_s - moved.at_s), moment
    return longest


def rate(course: Sequence[Moment]) -> float:
    """Examples a second, until the log has no more."""
    last = next((m for m in course if m.examples == course[-1].examples), course[-1])
    return (last.examples - course[0].examples) / max(last.at_s - course[0].at_s, 1e-9)


class Trainer:
    """`livectr train`, watched from a thread.

    Args:
        words: of the command line, after `train`, without metrics_port.
        port: of the metrics.
        log: file of its output.

    Attributes:
        began_s: time.monotonic() of its start.
        course: a moment every EVERY_S, from the first answer on.
    """

    def __init__(self, words: Sequence[str], port: int, log: Path) -> None:
        self.began_s, self.course = time.monotonic(), list[Moment]()
        command = [sys.executable, "-m", "livectr", "train", *words, "--set", f"metrics_port={port}"]
        self.part = Part("trainer", command, log)
        self._port, self._ended = port, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def last(self) -> Moment:
        return self.course[-1] if self.course else Moment(self.began_s, {}, 0.0)

    def until(self, done: Callable[[Moment], bool], timeout_s: float, what: str) -> Moment:
        """First moment from now on that is `done`. Raises PartError: it ended, or took too long."""
        deadline = time.monotonic() + timeout_s
        at = max(0, len(self.course) - 1)
        while True:
            self.part.check()
            for moment in self.course[at:]:
                if done(moment):
                    return moment
            at = max(at, len(self.course) - 1)
            if time.monotonic() > deadline:
                raise PartError(f"no {what} within {timeout_s:.0f} s; the log ends:\n{self.part.tail()}")
            time.sleep(0.02)

    def says(self, text: str, timeout_s: float) -> float:
        """Seconds from the start until its log has a text. Raises PartError: it ended, or took too long."""
        while text not in self.part.output():
            self.part.check()
            if time.monotonic() > self.began_s + timeout_s:
                raise PartError(f"no {text!r} within {timeout_s:.0f} s; the log ends:\n{self.part.tail()}")
            time.sleep(0.02)
        return time.monotonic() - self.began_s

    def between(self, begin_s: float, end_s: float) -> list[Moment]:
        """Moments of a time, with the one before it."""
        course = list(self.course)
        inside = [i for i, moment in enumerate(course) if begin_s <= moment.at_s <= end_s]
        return course[max(0, inside[0] - 1) : inside[-1] + 1] if inside else []

    @property
    def peak_mib(self) -> float:
        """Most memory that was resident; 0 when it has ended."""
        return memory_mib(self.part.pid, "VmHWM:")

    def kill(self) -> None:
        """End it with SIGKILL."""
        for pid in (*descendants(self.part.pid), self.part.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self.part.stop(grace_s=0.0)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            samples = scrape(self._port)
            if samples is not None:
                moment = Moment(time.monotonic(), samples, memory_mib(self.part.pid, "VmRSS:"))
                self.course.append(moment)
