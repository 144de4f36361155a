"""Child processes of the demo, each stopped by its own pid; no process is left behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from livectr.system.children import with_parent
from livectr.system.errors import InternalError
from livectr.system.signals import SignalEvent

TAIL_BYTES = 3000


class PartError(InternalError):
    """A part of the demo failed; the message has the end of its log."""


class Part:
    """Child process in a session of its own.

    Ctrl-C reaches the demo alone, which then stops its parts in order. When the demo itself is killed, the
    kernel sends its parts SIGTERM.

    Args:
        name: for error messages.
        command: words of the command line.
        log: file of standard output and error; standard input is a pipe.
        environment: variables beside those of this process.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, list(command), log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                with_parent(self.command),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Number of the process, which is also that of its session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None

    def output(self) -> str:
        """Text that the process has written so far; bytes that are no UTF-8 are replaced."""
        return self.log.read_text(errors="replace")

    def failure(self) -> PartError:
        """Error with the exit code and the end of the log."""
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            code = 0
        return PartError(f"the {self.name} ended with exit code {code}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").strip() or "(empty)"

    def check(self) -> None:
        """Raises PartError when it is no longer running."""
        if self.exit_code is not None:
            raise self.failure()

    def wait(self, timeout_s: float) -> int:
        """Wait for the exit code. Raises PartError after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise PartError(
                f"the {self.name} did not end within {timeout_s:g} s; its log ends:\n{self.tail()}"
            ) from None

    def terminate(self) -> None:
        """Send SIGTERM, and return at once."""
        self._process.terminate()

    def stop(self, grace_s: float = 10.0) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`, to the process and all its descendants.

        A trainer's ranks live in sessions of their own, so the session's id does not find them.
        """
        family = [self.pid, *descendants(self.pid)]
        if self._process.stdin:
            self._process.stdin.close()
        if self.exit_code is None:
            self._process.terminate()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and any(map(alive, family)):
            self._process.poll()
            time.sleep(0.02)
        for pid in family:
            if alive(pid):
                _kill(pid)
        self._process.wait()


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    below, front = [], [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        below += front
    return below


def alive(pid: int) -> bool:
    """True for a process that runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_terminated(running: Callable[[], bool], name: str) -> None:
    """Wait for SIGTERM.

    Args:
        running: polled five times a second; False when the server is gone.
        name: of the server, for the error.

    Raises:
        InternalError: the server ended by itself.
    """
    terminated = SignalEvent()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    while not terminated.wait(0.2):
        if not running():
            raise InternalError(f"the {name} ended by itself.")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
