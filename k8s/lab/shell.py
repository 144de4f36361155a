"""Commands of the system: run, check, and say in one sentence what failed."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class LabError(Exception):
    """Failure that a user can do something about; its text says what."""


def need_root() -> None:
    """Raises LabError for a user that may not make namespaces."""
    if os.geteuid() != 0:
        raise LabError("namespaces, mounts and containers need root; run it with sudo.")


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    text: str | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Args:
        command: words.
        env: variables besides the process's own.
        cwd: working folder.
        text: standard input.

    Raises:
        LabError: the program is missing or exits with another code than 0; the message has its last words.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=text,
            stdin=None if text is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise LabError(f"the program {words[0]!r} is missing; `lab.py build` installs it.") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise LabError(f"`{shlex.join(words)[:200]}` ended with {done.returncode}:\n{last}")
    return done.stdout


def wait_until(what: str, ready: Callable[[], bool], *, timeout_s: float, log: Path | None = None) -> None:
    """Poll until `ready`.

    Args:
        what: what is waited for, for the message.
        ready: the condition.
        timeout_s: give up after this long.
        log: file whose end goes into the message.

    Raises:
        LabError: it did not become ready in time.
    """
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            tail = (
                f"; the end of {log}:\n{log.read_text(errors='replace')[-1500:]}"
                if log and log.exists()
                else ""
            )
            raise LabError(f"{what} did not become ready in {timeout_s:.0f} s{tail}")
        time.sleep(0.2)


def succeeds(command: Sequence[str | Path]) -> bool:
    """True if a command ends with 0."""
    try:
        run(command)
    except LabError:
        return False
    return True
