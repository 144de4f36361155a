"""Supervisor of a run's parts: starts, restarts, replaces and ends processes until all are as they are to be.

    1  read parts.json; a part that does not run is started. A part that has changed or is gone ends: a server
       only once the one that takes its place is ready, any other before its successor starts
    2  a part that ends by itself is started again, after a pause that doubles; its exit code and the last
       line of its log are the reason. A user's mistake (exit code 2 or 3) is not repeated
    3  write state.json when something has changed
    4  told to end: trainers commit and end, then servers drain, then Redis and the broker end

Processes are children of this one, each in a session of its own: Ctrl-C reaches the supervisor alone. When
the supervisor is killed, the kernel sends its children SIGTERM.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping

from livectr.local.parts import Part as Process
from livectr.local.ports import free_ports, is_free, listens
from livectr.local.ranks import how
from livectr.system.disk import is_full
from livectr.system.errors import ConfigError
from livectr.up.folder import POLL_S, Kind, Part, Phase, RunFolder, Running, State

LOG = logging.getLogger(__name__)
MISTAKES = (2, 3)
"""Exit codes of a user's mistake and of a log that does not fit."""
LONGEST_PAUSE_S = 30.0
STABLE_S = 60.0
"""Life after which an end counts as the first one again."""
LEFT_BEHIND_S = 10.0
"""Longest wait for ports that children of a killed process still have."""
GRACE_S: Mapping[Kind, float] = {Kind.TRAINER: 120.0, Kind.SERVER: 40.0, Kind.REDIS: 10.0, Kind.KAFKA: 30.0}
"""Time to end after SIGTERM."""
_STAMP = re.compile(r"^[-\d]+ [\d:,]+( rank \d+)? [A-Z]+ [\w.]+: ")
"""Time, level and logger, as `livectr.system.logs` writes them before a message."""
_READ_BYTES = 1 << 20
_SAID, _FAILED = "livectr: ", "livectr: training failed: "
"""Beginnings of a command's last words, and of those of the ranks' supervisor, which follow."""


class Supervisor:
    """Supervisor of the parts of a folder, whose lock its process holds (`RunFolder.owned`).

    Args:
        folder: of the run.
        changed: called with each new state.
    """

    def __init__(self, folder: RunFolder, changed: Callable[[State], None] = lambda state: None) -> None:
        self._folder, self._changed = folder, changed
        self._lives: list[_Life] = []
        self._order: list[str] = []
        self._state: State | None = None
        self._complaint = ""

    def run(self, stop: Callable[[], bool]) -> None:
        """See to the parts until told to stop, then end them in order.

        Args:
            stop: polled ten times a second.

        Raises:
            KeyboardInterrupt: a second Ctrl-C; what runs was killed.
        """
        try:
            while not stop():
                self.look()
                time.sleep(POLL_S)
            self._end()
        finally:
            for life in self._lives:
                life.kill()

    def look(self) -> None:
        """Bring processes one step nearer to what is to run; returns at once."""
        wanted = self._wanted()
        for life in self._lives:
            if not life.leaving and wanted.get(life.part.name) != life.part and self._may_leave(life, wanted):
                life.leave()
        for name, part in wanted.items():
            same = [life for life in self._lives if life.part.name == name]
            if any(life.part == part and not life.leaving for life in same):
                continue
            if part.kind is Kind.SERVER or not same:
                self._lives.append(_Life(part, self._folder, taken={p for o in same for p in o.ports}))
        self._turn()

    def _wanted(self) -> dict[str, Part]:
        """Parts that are to run; an unreadable file changes nothing."""
        try:
            wanted = self._folder.parts()
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                LOG.error("%s", error)
            return {life.part.name: life.part for life in self._lives if not life.leaving}
        self._order = list(wanted)
        return wanted

    def _may_leave(self, life: _Life, wanted: Mapping[str, Part]) -> bool:
        """Tell if a part that is no longer wanted as it runs may end at once."""
        part = wanted.get(life.part.name)
        if part is None or part.kind is not Kind.SERVER or life.phase is not Phase.READY:
            return True
        return any(o.part == part and o.phase is Phase.READY and not o.leaving for o in self._lives)

    def _turn(self, *, ending: bool = False) -> None:
        for life in self._lives:
            life.turn()
        self._lives = [life for life in self._lives if not life.gone]
        places = {name: at for at, name in enumerate(self._order)}
        parts = sorted(self._lives, key=lambda o: (places.get(o.part.name, len(places)), -o.number))
        state = State(os.getpid(), tuple(life.running for life in parts), ending)
        if state != self._state:
            self._tell(state)

    def _tell(self, state: State) -> None:
        """Write a new state; one that a full disk does not take is written later, and the parts run on."""
        try:
            self._folder.write_state(state)
            self._changed(state)
        except OSError as error:
            if self._state is None or not is_full(error):
                raise
            return
        self._state = state

    def _end(self) -> None:
        """End all parts, one kind after the other."""
        for kinds in ((Kind.TRAINER,), (Kind.SERVER,), (Kind.REDIS, Kind.KAFKA)):
            ours = [life for life in self._lives if life.part.kind in kinds]
            for life in ours:
                life.leave()
            self._turn(ending=True)
            while any(not life.gone for life in ours):
                time.sleep(POLL_S / 2)
                self._turn(ending=True)


class _Life:
    """Part as it was wanted at a time, with its processes one after the other.

    Args:
        part: to run.
        taken: ports of metrics that a process of the same name has.
    """

    _numbers = 0

    def __init__(self, part: Part, folder: RunFolder, taken: set[int]) -> None:
        _Life._numbers += 1
        self.number = _Life._numbers
        self.part, self._log = part, folder.log_of(part.name)
        self.phase, self.leaving, self.gone = Phase.WAITING, False, False
        self.ports = tuple(range(part.metrics_port, part.metrics_port + part.metrics))
        # A process that a killed supervisor has left may still answer there, and would pass for this part.
        if part.metrics and (not part.metrics_port or taken & {*self.ports} or not self._are_free()):
            self._draw_ports()
        self._process: Process | None = None
        self._started = self._kill_at = 0.0
        self._started_ms = 0
        self._read_from = 0
        self._failures = self._starts = 0
        self._reason = ""
        self._due = time.monotonic()

    @property
    def running(self) -> Running:
        """State of the part."""
        return Running(
            self.part,
            self.phase,
            self._process.pid if self._process is not None else 0,
            self._started_ms,
            tuple(f"127.0.0.1:{port}" for port in self.ports),
            str(self._log),
            max(self._starts - 1, 0),
            self._reason,
        )

    def turn(self) -> None:
        """Look after the process."""
        now = time.monotonic()
        if self._process is None:
            if self.leaving:
                self.gone = True
            elif self.phase is Phase.WAITING and now >= self._due and self._has_ports(now):
                self._start()
            return
        code = self._process.exit_code
        if code is not None:
            self._ended(code)
        elif self.leaving and now > self._kill_at:
            LOG.warning("%s has not ended in time, and is killed", self.part.name)
            self.kill()
        elif self.phase is Phase.STARTING and self._is_ready():
            self.phase = Phase.READY

    def leave(self) -> None:
        """Let the process end in order, and do not start it again."""
        if self.leaving:
            return
        self.leaving = True
        if self._process is not None:
            self.phase = Phase.ENDING
            self._kill_at = time.monotonic() + GRACE_S[self.part.kind]
            self._process.terminate()

    def kill(self) -> None:
        """End the process and all below it at once."""
        if self._process is not None:
            self._process.stop(0)
            self._process = None
        self.gone = True

    def _start(self) -> None:
        self._read_from = self._log.stat().st_size if self._log.exists() else 0
        words = self.part.words(self.ports[0] if self.ports else 0)
        try:
            self._process = Process(
                self.part.name,
                [sys.executable, "-m", "livectr", *words],
                self._log,
                environment=self.part.environment,
            )
        except OSError as error:
            if not is_full(error):
                raise
            self._reason, self._due = f"cannot start: {error.strerror}", time.monotonic() + LONGEST_PAUSE_S
            return
        self._starts += 1
        self._started, self._started_ms = time.monotonic(), time.time_ns() // 1_000_000
        self.phase = Phase.STARTING

    def _has_ports(self, now: float) -> bool:
        """Tell if the ports are free; after a while others are drawn.

        A killed trainer's ranks commit before they end, and would pass for its successor.
        """
        if self._starts and not self._are_free():
            if now < self._due + LEFT_BEHIND_S:
                return False
            self._draw_ports()
        return True

    def _are_free(self) -> bool:
        """Tell if nothing listens on the ports of the metrics."""
        return all(is_free("127.0.0.1", port) for port in self.ports)

    def _draw_ports(self) -> None:
        """Take other ports for the metrics."""
        first = free_ports(self.part.metrics)
        self.ports = tuple(range(first, first + self.part.metrics))

    def _is_ready(self) -> bool:
        if self.part.ready:
            return self.part.ready in self._output()
        return not self.ports or listens("127.0.0.1", self.ports[0], 0.2)

    def _output(self) -> str:
        """Text of this process."""
        with self._log.open("rb") as file:
            file.seek(self._read_from)
            return file.read(_READ_BYTES).decode(errors="replace")

    def _ended(self, code: int) -> None:
        """Process has ended: by itself, or as it was told."""
        assert self._process is not None
        self._process.stop(GRACE_S[self.part.kind] if self.leaving else 0.5)  # what it has left behind
        lived_s, self._process = time.monotonic() - self._started, None
        if self.leaving:
            self.gone = True
            return
        if code == 0 and self.part.kind is Kind.TRAINER:
            self.phase = Phase.DONE
            return
        self._reason = _reason(code, self._output())
        if code in MISTAKES:
            if self._are_free():
                self.phase = Phase.FAILED
                return
            self._draw_ports()  # somebody took one after it was found free
        self._failures = 1 if lived_s > STABLE_S or self.phase is Phase.READY else self._failures + 1
        pause_s = 0.0 if self._failures == 1 else min(2.0 ** min(self._failures - 2, 20), LONGEST_PAUSE_S)
        self._due = time.monotonic() + pause_s
        self.phase = Phase.WAITING


def last_line(output: str) -> str:
    """Last line of a log with words, without its time and logger; "": there is none."""
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalpha, line))]
    if len(lines) > 1 and lines[-1].startswith(_FAILED) and lines[-2].startswith(_SAID):
        lines.pop()  # a rank has said why
    return _STAMP.sub("", lines[-1]).removeprefix("livectr: ") if lines else ""


def _reason(code: int, output: str) -> str:
    """Exit code and last line of a log, as the rest of a sentence; a process that is killed says nothing."""
    last = "" if -code in (signal.SIGKILL, signal.SIGTERM) else last_line(output)
    return f"{how(code)}: {last}" if last else how(code)
