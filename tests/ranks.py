"""Ranks of a test: processes with torchrun's variables, forked from one that has imported the trainer.

The import takes four seconds of a core, which is more than most small runs compute. A forked rank is as real
as one that Python starts: memory, sockets, signals and exit code of its own. The ranks of several are started
and ended by the launcher of `livectr train --ranks`. Tests of command lines, and of torchrun's own agent,
start those themselves.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any
from unittest.mock import patch

from livectr.local.gang import Round
from livectr.local.ports import free_ports
from livectr.local.ranks import Ranks
from livectr.system.children import follow_parent
from livectr.trainer.process import share_cores, stop_signals
from tests.waiting import left_s

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"LIVECTR_THREADS": "1", "OMP_NUM_THREADS": "1"}
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.forkserver"])


class Processes:
    """One rank, or the launcher of several, in a session of its own: what tests use of `subprocess.Popen`.

    Args:
        world: ranks.
        module: module whose `main(*words)` each rank calls; a number that it returns is the exit code.
        variables: of the environment, beside those of this process.
    """

    def __init__(
        self, world: int, module: str, words: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> None:
        log, self._log = tempfile.mkstemp(prefix="livectr-ranks-")
        os.close(log)
        environment = {**os.environ, **(variables or {})}
        with patch.dict(os.environ, ONE_THREAD | {"PYTHONPATH": str(ROOT)}):
            share_cores()
            ensure_running()
        job = (world, module, tuple(words), environment, self._log)
        self._process = _SERVER.Process(target=_work, args=job, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code. Raises TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("ranks", timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, bytes]:
        """Wait for the end; returns what the ranks wrote, on both outputs, in place of their errors."""
        self.wait(timeout)
        written = Path(self._log).read_bytes()
        Path(self._log).unlink()
        return None, written

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run_ranks(world: int, module: str, *words: str) -> None:
    """Call `main(*words)` of a module in ranks of one thread each. Fails with what they wrote last."""
    ranks = Processes(world, module, words, ONE_THREAD)
    try:
        _, written = ranks.communicate(timeout=left_s())
    finally:
        ranks.kill()
    assert ranks.returncode == 0, written.decode()[-4000:]


def _work(world: int, module: str, words: tuple[str, ...], environment: dict[str, str], log: str) -> None:
    """Body of the process."""
    assert "livectr.trainer.run" in sys.modules, "tests/forkserver.py was not imported"
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    to = os.open(log, os.O_WRONLY | os.O_APPEND)
    for output in (1, 2):
        os.dup2(to, output)
    if world == 1:
        sys.exit(_call(module, words))
    with stop_signals() as stop:
        codes = _Forked((module, *words), world).run(Round("127.0.0.1", free_ports(1)), stop, lambda: None)
    sys.exit(int(any(codes)))


class _Forked(Ranks):
    """Ranks that are forked in place of being started; `command` is a module and its words."""

    def start(self, round_: Round) -> list[Any]:
        module, *words = self.command
        return [
            ForkedRank(partial(_rank, module, words, self.variables(round_, rank)))
            for rank in range(self.ranks)
        ]


class ForkedRank:
    """A rank that the launcher forks: what it uses of `subprocess.Popen`.

    Args:
        body: what the rank does, in a session of its own that ends with the launcher; returns the exit code.
    """

    def __init__(self, body: Callable[[], int]) -> None:
        self._code: int | None = None
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(-1)
            follow_parent()
            os.setsid()
            code = body() if os.getppid() == launcher else 1
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _wait(self, flags: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, flags)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _rank(module: str, words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Body of a rank of `Processes`."""
    os.environ.update(variables)
    return _call(module, words)


def _call(module: str, words: Sequence[str]) -> int:
    """Call `main(*words)` of a module; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    return int(importlib.import_module(module).main(*words) or 0)
