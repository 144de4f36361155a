"""Child processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)

# Runs before the command, in its process. What Python does to signals, the command would inherit.
_FOLLOW = f"""\
import ctypes, os, signal, sys
parent, number, *command = sys.argv[1:]
for each in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
    if each != signal.SIGINT or signal.getsignal(each) is signal.default_int_handler:
        signal.signal(each, signal.SIG_DFL)
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(number))
if os.getppid() != int(parent):
    os.kill(os.getpid(), int(number))
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{{command[0]}} cannot be started: {{error.strerror}}")
"""


def with_parent(
    command: Sequence[str | os.PathLike[str]], number: signal.Signals = signal.SIGTERM
) -> list[str]:
    """Command for subprocess.Popen whose process gets a parent-death signal (prctl) when this process ends.

    A short Python program binds the process and becomes the command. A `preexec_fn` would not do: Python then
    forks, which is not safe beside the threads of gRPC, and the child may hang or crash before its exec. The
    kernel's parent is the *thread* that starts a process. A command that is started from another thread
    than the main thread is therefore not bound: it would end with that thread.

    Args:
        command: program and its arguments.
        number: signal that the process gets.
    """
    words = [os.fspath(word) for word in command]
    if _PRCTL is None or threading.current_thread() is not threading.main_thread():
        return words
    return [sys.executable, "-I", "-S", "-c", _FOLLOW, str(os.getpid()), str(int(number)), *words]


def follow_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Sends this process a signal when its parent ends."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)
