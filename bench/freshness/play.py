"""A run at a rate: the processes, and what their metrics say meanwhile."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.freshness.pipeline import log
from livectr.demo.report import last_json_line
from livectr.local.parts import Part, PartError
from livectr.local.ports import free_ports
from livectr.local.scrape import Samples, quantile, scrape, total, value

PIPELINE = Path(__file__).with_name("pipeline.py")
WINDOW_S = log.window_ms / 1000
GOAL_S = WINDOW_S + 3.0
EVENTS_PER_IMPRESSION = 1.19
"""Impressions, their clicks, and those that come twice."""
PARTITIONS, USERS, ADS = 4, 100_000, 2000
START_S, FETCH_S, UNTIL_IDLE_S = 180.0, 600.0, 5.0
SETTLED = 0.2
"""Share of the run after which figures count: before, processes warm up."""
HISTOGRAM = "livectr_freshness_seconds"


@dataclass(frozen=True)
class Moment:
    """Figures of a second.

    Args:
        at_s: since the traffic began.
        events: written until then.
        learned: examples until then.
        lag: records that the trainer has not read, and examples that it has not learned though their label
            is final.
        delays: histogram of the seconds from event to servable, of the whole run until then.
    """

    at_s: float
    events: int
    learned: int
    lag: int
    delays: Samples


@dataclass(frozen=True)
class Run:
    """Figures of a run.

    Args:
        rate: events a second that were wanted.
        seconds: of traffic.
        course: a moment a second.
        simulated: counts of the simulator.
        trained: the trainer's report; None: it was too far behind to be waited for.
    """

    rate: float
    seconds: float
    course: list[Moment]
    simulated: dict[str, Any]
    trained: dict[str, Any] | None

    def fresh_s(self, q: float, *, ends: bool = True) -> float | None:
        """Quantile of the seconds from event to servable, without the first part of the run.

        Args:
            ends: with the last events, whose labels wait longer, as no event brings time forward after them.
        """
        last = self.course[-1] if ends else self._settled[-1]
        return quantile(since(self._settled[0].delays, last.delays), HISTOGRAM, q)

    @property
    def _settled(self) -> list[Moment]:
        """Moments of the traffic after its first part."""
        return [m for m in self.course if SETTLED * self.seconds <= m.at_s <= self.seconds] or self.course

    @property
    def lags(self) -> tuple[int, int]:
        """Most records behind in the first and the last third of the settled run."""
        lags = [moment.lag for moment in self._settled]
        third = math.ceil(len(lags) / 3)
        return max(lags[:third]), max(lags[-third:])

    @property
    def lost(self) -> int | None:
        """Impressions that were written and not learned; fewer than 0: learned twice. None: not known."""
        return (
            None if self.trained is None else self.simulated["impressions"] - self.trained["examples_trained"]
        )

    @property
    def reached(self) -> float:
        """Events a second that the simulator wrote in the settled run."""
        first, last = self._settled[0], self._settled[-1]
        return (last.events - first.events) / max(last.at_s - first.at_s, 1e-9)

    @property
    def bounded(self) -> bool:
        """True when the lag did not grow, but for two seconds of events."""
        first, last = self.lags
        return last <= max(1.5 * first, 2.0 * self.rate)

    @property
    def holds(self) -> bool:
        p99 = self.fresh_s(0.99, ends=False)  # in a short run the end is much of it
        return self.lost == 0 and self.bounded and p99 is not None and p99 <= GOAL_S


def since(before: Samples, after: Samples) -> Samples:
    """Histogram of what came between two scrapes."""
    return {key: count - before.get(key, 0.0) for key, count in after.items()}


def play(rate: float, seconds: float) -> Run:
    """Write `rate` events a second for `seconds`. Raises PartError: a process ended that should not."""
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder, ExitStack() as stack:
        return _Play(rate, seconds, Path(folder), stack).run()


class _Play:
    def __init__(self, rate: float, seconds: float, folder: Path, stack: ExitStack) -> None:
        self._rate, self._seconds, self._folder, self._stack = rate, seconds, folder, stack
        port = free_ports(5)
        self._redis, self._broker, self._server = (f"127.0.0.1:{port + i}" for i in range(3))
        self._trainer_metrics, self._server_metrics = port + 3, port + 4
        self._parts: list[Part] = []

    def run(self) -> Run:
        redis_url, source = f"redis://{self._redis}", f"kafka://{self._broker}"
        self._part("redis", "local", "redis", "--listen", self._redis)
        broker = self._part(
            "broker", "local", "kafka", "--listen", self._broker, "--data", str(self._folder / "kafka")
        )
        self._until(FETCH_S, lambda: "answers at" in broker.output())
        simulator = self._part(
            "simulator",
            *("logs", "simulate", "--to", source, "--wait-for-start", "--no-images"),
            *("--partitions", str(PARTITIONS)),
            *("--rate", str(self._rate / EVENTS_PER_IMPRESSION), "--seconds", str(self._seconds)),
            *("--label-window", f"{WINDOW_S}s", "--users", str(USERS), "--ads", str(ADS)),
        )
        self._until(START_S, lambda: "ready" in last_json_line(simulator.tail()))
        report = self._folder / "train.json"
        trainer = self._part(
            "trainer",
            *("train", "--pipeline", str(PIPELINE), "--source", source, "--publish", redis_url),
            *("--checkpoint", str(self._folder / "checkpoint"), "--set", f"until_idle_s={UNTIL_IDLE_S}"),
            *("--set", "start_wait_s=60", "min_examples=0", "threads=1", "--report", str(report)),
            *("--set", "batch_wait_s=0.5"),
            *("--set", f"metrics_port={self._trainer_metrics}"),
        )
        server = self._part(
            "server",
            *("serve", "rank", "--pipeline", str(PIPELINE), "--redis", redis_url, "--listen", self._server),
            *("--set", f"metrics_port={self._server_metrics}", "start_wait_s=60"),
        )
        self._until(START_S, lambda: "ready on" in server.output())
        simulator.say("go")
        began, course = time.monotonic(), list[Moment]()
        self._watch(course, simulator, began, lambda: simulator.exit_code is None)
        simulated = last_json_line(simulator.tail())
        drain_s = 60.0 + self._seconds  # behind by more, the run is judged by its lag
        limit = time.monotonic() + drain_s
        self._watch(course, simulator, began, lambda: trainer.exit_code is None and time.monotonic() < limit)
        time.sleep(3.0)  # the server takes the last version
        course.append(self._moment(simulator, began))
        ended = trainer.exit_code is not None
        return Run(
            self._rate, self._seconds, course, simulated, json.loads(report.read_text()) if ended else None
        )

    def _part(self, name: str, *words: str) -> Part:
        part = Part(name, [sys.executable, "-m", "livectr", *words], self._folder / f"{name}.log")
        self._stack.callback(part.stop)
        self._parts.append(part)
        return part

    def _until(self, timeout_s: float, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + timeout_s
        while not done():
            self._check()
            if time.monotonic() > limit:
                raise PartError(f"the {self._parts[-1].name} is not ready: {self._parts[-1].tail()}")
            time.sleep(0.1)

    def _check(self) -> None:
        """Raises PartError when a process has failed; simulator and trainer may end well."""
        for part in self._parts:
            if part.exit_code or (part.exit_code == 0 and part.name not in ("simulator", "trainer")):
                raise part.failure()

    def _watch(self, course: list[Moment], simulator: Part, began: float, on: Callable[[], bool]) -> None:
        due = time.monotonic()
        while on():
            self._check()
            if time.monotonic() >= due:
                course.append(self._moment(simulator, began))
                due = time.monotonic() + 1.0
            time.sleep(0.05)

    def _moment(self, simulator: Part, began: float) -> Moment:
        trainer, server = scrape(self._trainer_metrics), scrape(self._server_metrics)
        delays = {key: v for key, v in (server or {}).items() if key[0] == f"{HISTOGRAM}_bucket"}
        return Moment(
            time.monotonic() - began,
            int(last_json_line(simulator.tail()).get("records", 0)),
            int(value(trainer, "livectr_examples_total") or 0),
            int(total(trainer, "livectr_consumer_lag_records")),
            delays,
        )
