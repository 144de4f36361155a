"""A watched demo as a process, and what its Prometheus says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import redis

from tests import waiting
from tests.waiting import alive, left_s
from tests.watch.expressions import Expression, answer

DEMO = [sys.executable, "-m", "livectr", "demo", "--watch", "--rate", "300"]


class WatchedDemo:
    """`livectr demo --watch`, entered once Prometheus answers; the exit is Ctrl-C.

    Args:
        folder: to work in.
        words: further words of the command line.
        within: command that runs the demo as its own process.
        environment: variables beside those of this process.

    Attributes:
        url: of Prometheus.
        family: all of its processes.
        redis: a client of its Redis.
        redis_port: where that Redis listens.
        keep: the demo's folder.
        seen: alerts that `fires` has seen.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log, self.keep = folder / "log", folder / "keep"
        self.seen: set[str] = set()
        self._command = [*within, *DEMO, "--keep", str(self.keep), *words]
        self._environment = {**os.environ, **(environment or {})}
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=subprocess.STDOUT, env=self._environment
            )
        self._held.callback(self._end)
        try:
            self.until(lambda: "Ctrl-C ends everything" in self.log.read_text())
            text = self.log.read_text()
            found = re.search(r"^Prometheus +(http://127\.0\.0\.1:\d+)/targets", text, re.MULTILINE)
            assert found, text
            self.url = found[1]
            self.family = psutil.Process(self._process.pid).children(recursive=True)
            (words,) = (part.cmdline() for part in self.family if "redis" in part.cmdline())
            self.redis_port = int(words[words.index("--listen") + 1].rpartition(":")[2])
            self.redis = self._held.enter_context(redis.Redis(port=self.redis_port))
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        if error is None:
            assert self._process.returncode == 0, self.log.read_text()
            assert alive(self.family) == []

    def _end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(left_s())
        finally:
            self._process.kill()

    @property
    def pid(self) -> int:
        """Process id of the demo."""
        return self._process.pid

    def until(self, done: Callable[[], bool], why: Callable[[], object] = str) -> None:
        """Wait for `done` while the demo runs.

        Args:
            why: says what is missing.
        """
        waiting.until(
            done,
            process=self._process,
            why=lambda: f"{why()}\n{self.log.read_text()[-3000:]}",
            turn=lambda: time.sleep(1),
        )

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=left_s()) as reply:
            alerts = json.load(reply)["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def holds(self, query: str) -> bool:
        """Tell if PromQL has an answer."""
        return bool(answer(self.url, Expression("a drill", query)))

    def fires(self, *alerts: str) -> None:
        """Wait until each alert has fired; they need not fire together."""
        wanted = set(alerts)

        def look() -> bool:
            self.seen |= self.firing() & wanted
            return wanted <= self.seen

        self.seen -= wanted
        self.until(look, lambda: f"{wanted - self.seen} do not fire")

    def is_over(self, alert: str) -> None:
        """Wait until an alert does not fire."""
        self.until(lambda: alert not in self.firing(), lambda: f"{alert} still fires")

    def processes(self, *words: str) -> list[psutil.Process]:
        """Processes of the demo with these words in their command lines, their children included."""
        found = [part for part in self.family if set(words) <= set(part.cmdline())]
        assert found, words
        return [*found, *(child for part in found for child in part.children(recursive=True))]
