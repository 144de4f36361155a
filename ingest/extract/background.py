"""Compilation in the background: one at a time on a machine, at low priority, ended with the process."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from livectr.kernels.runtime.compiler import build_host, made_cache_folder
from livectr.system.errors import KernelError

_NICE = "10"
_LONGEST_END_S = 5.0
"""Time that a thread has to remove what its compiler has written."""
_turn = threading.Lock()
_compiler: subprocess.Popen[str] | None = None
_ended = False


def build_in_turn(source: str, *, name: str) -> bool:
    """Compile into the cache, after all that other threads and processes of the machine compile in this way.

    So the ranks of a run compile their plan once, and the compiler takes one core.

    Returns:
        False if the process ends meanwhile, and its compiler with it.

    Raises:
        KernelError, ConfigError: as `compile_host`.
    """
    with _turn, (made_cache_folder() / "background.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            build_host(source, name=name, run=_run)
        except KernelError:
            if not _ended:
                raise
    return not _ended


def _run(command: Sequence[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as subprocess.run does, at low priority; `_end` ends it."""
    global _compiler
    polite = ["nice", "-n", _NICE] if shutil.which("nice") else []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*polite, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0
    ) as process:
        _compiler = process
        if _ended:
            _end()
        out, err = process.communicate(input)
        _compiler = None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end() -> None:
    """End the compiler with the process; its thread then removes what it has written."""
    global _ended
    _ended = True
    process = _compiler
    if process is None or process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and _turn.acquire(timeout=_LONGEST_END_S):
        _turn.release()


def _forget() -> None:
    """Let a forked child compile: the thread that had the turn is not in it."""
    global _turn, _compiler
    _turn, _compiler = threading.Lock(), None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
