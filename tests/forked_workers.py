"""Workers of pytest-xdist that are forked from one process which has imported and collected all tests.

A worker that Python starts imports every test module, for 6 CPU seconds, and the process from which it forks
commands (`tests/commands.py`) imports PyTorch again.

    pytest ── fork ─► nursery: imports, collects ── fork ─► worker ── fork ─► server of its commands

The nursery forks while it has one thread. A worker is then as xdist's own: it speaks with pytest over
execnet, runs what it is told, and can crash alone.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

import pytest
import xdist.remote
from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.config import _prepareconfig
from _pytest.tmpdir import TempPathFactory
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

if TYPE_CHECKING:
    import execnet

_BEGIN = "from tests import forked_workers\nforked_workers.begin(channel)\n"
_COMMANDS = "livectr.trainer.run"
"""Most of what a command imports: where no test imports it, the first command of a worker does."""
_born: list[_Nursery] = []
"""The nursery of this process, and of the processes that were forked from it."""


class ForkedWorkers:
    """Plugin of the process that the user starts: it lets xdist fork its workers.

    Args:
        in_worker: called in each worker before its first test.
        in_server: called in each process from which a worker forks commands.
    """

    def __init__(self, in_worker: Callable[[], None], in_server: Callable[[], None]) -> None:
        self._hooks = in_worker, in_server
        self._patched = patch.object(gateway_io, "Popen2IOMaster", self._fork)
        self._nursery = 0
        self._asked: socket.socket | None = None

    @pytest.hookimpl
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Fork the nursery, before xdist starts a thread."""
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        self._nursery = os.fork()
        if not self._nursery:
            self._asked.close()
            _Nursery(theirs, *self._hooks).live(config.invocation_params.args)
        theirs.close()
        self._patched.start()

    @pytest.hookimpl
    def pytest_xdist_getremotemodule(self) -> Any:
        return _BEGIN

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        if self._asked is not None:
            self._patched.stop()
            self._asked.close()
            os.waitpid(self._nursery, 0)
            self._asked = None

    def _fork(self, args: Sequence[str], execmodel: Any) -> _WorkerIO:
        """Fork a worker in place of starting `args`."""
        assert self._asked is not None
        read, theirs_out = os.pipe()
        theirs_in, write = os.pipe()
        socket.send_fds(self._asked, [b"fork"], [theirs_in, theirs_out])
        os.close(theirs_in)
        os.close(theirs_out)
        answer = self._asked.recv(1 << 20)
        if not answer.startswith(b"{"):
            raise pytest.UsageError(f"tests could not be collected: {answer.decode()}")
        return _WorkerIO(json.loads(answer)["pid"], write, read, execmodel)


class _WorkerIO(Popen2IO):
    """Pipes of a forked worker: what execnet uses of a process that it has started.

    The worker's end ends them, even if a process that it has forked still holds them.
    """

    def __init__(self, pid: int, write: int, read: int, execmodel: Any) -> None:
        self._pid, self._ended = pid, os.pidfd_open(pid)
        self._files = read, self._ended
        super().__init__(os.fdopen(write, "wb"), os.fdopen(read, "rb", buffering=0), execmodel=execmodel)

    def read(self, numbytes: int) -> bytes:
        read = b""
        while len(read) < numbytes:
            ready, _, _ = select.select(self._files, [], [])
            more = self.infile.read(numbytes - len(read)) if self._files[0] in ready else b""
            if not more:
                raise EOFError(f"worker {self._pid} has ended")
            read += more
        return read

    def wait(self) -> None:
        select.select([self._ended], [], [])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


@dataclass(eq=False)
class _Nursery:
    """Process that has collected all tests, and its plugin there.

    Attributes:
        asked: sends the files of a worker to fork.
        in_worker, in_server: as of ForkedWorkers.
        reports, warnings: of the collection, for each worker to report.
        session: of pytest, which the workers go on with.
    """

    asked: socket.socket
    in_worker: Callable[[], None]
    in_server: Callable[[], None]
    reports: list[pytest.CollectReport] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    session: pytest.Session | None = None
    error: str = ""

    def live(self, args: Sequence[str]) -> NoReturn:
        """Be the process."""
        code = 1
        try:
            atexit._clear()  # the parent's own
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the workers
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1):
                os.dup2(nothing, number)
            os.close(nothing)
            sys.stdin, sys.stdout = _standard_files()
            _born[:] = [self]
            config = _prepareconfig([*args], [self])
            xdist.remote.setup_config(config, None)
            config.workerinput, config.workeroutput = {}, {}  # type: ignore[attr-defined]
            code = int(config.hook.pytest_cmdline_main(config=config))
            if self.session is None:
                raise RuntimeError(self.error or f"pytest has ended with {code}")
        except BaseException as error:
            with suppress(OSError):
                self.asked.recv(64)
                self.asked.send(f"{type(error).__name__}: {error}".encode())
            if not isinstance(error, pytest.UsageError):
                traceback.print_exc()
        finally:
            os._exit(code)

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr: object) -> None:
        if not self.session:  # else a worker, whose interactor tells
            self.error = str(excrepr)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, **given: Any) -> None:
        self.warnings.append(given)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork workers until nobody asks any more; return once they have ended."""
        self.session = session
        if _COMMANDS in sys.modules:
            importlib.import_module("tests.forkserver")
        workers: dict[int, int] = {}
        asking = True
        while asking or workers:
            ready, _, _ = select.select([*workers] + ([self.asked] if asking else []), [], [])
            for ended in workers.keys() & set(ready):
                _, status = os.waitpid(workers.pop(ended), 0)
                os.close(ended)
                if os.WIFSIGNALED(status):
                    name = signal.Signals(os.WTERMSIG(status)).name
                    print(f"a worker of the tests was ended by {name}", file=sys.stderr, flush=True)
            if self.asked in ready:
                text, files, _, _ = socket.recv_fds(self.asked, 64, 2)
                asking = bool(text)
                if asking:
                    pid = os.fork()
                    if not pid:
                        self._be_worker(*files)
                    for file in files:
                        os.close(file)
                    workers[os.pidfd_open(pid)] = pid
                    self.asked.send(json.dumps({"pid": pid}).encode())
        return True

    def _be_worker(self, read: int, write: int) -> NoReturn:
        """Be a worker, with these files to speak with execnet."""
        code = 1
        try:
            self.asked.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.modules["__main__"] = types.ModuleType("__main__")
            if _COMMANDS in sys.modules:
                _start_command_server(self.in_server, read, write)
            for number, file in enumerate((read, write)):
                os.dup2(file, number)
                os.close(file)
            sys.stdin, sys.stdout = _standard_files()
            exec(gateway_io.popen_bootstrapline)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(code)


def forking(config: pytest.Config) -> bool:
    """True in the nursery: its workers run the tests that it collects."""
    return any(nursery.session is None for nursery in _born) and hasattr(config, "workerinput")


def begin(channel: execnet.Channel) -> None:
    """Be what xdist's `remote.py` is in a worker, from the collection's end on."""
    (nursery,) = _born
    session = nursery.session
    assert session is not None
    config = session.config
    workerinput, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
    config.workerinput.update(workerinput)  # type: ignore[attr-defined]
    config.option.basetemp = options.get("basetemp")
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
    interactor = xdist.remote.WorkerInteractor(config, channel)
    xdist.remote.interactor = interactor
    interactor.pytest_sessionstart(session)
    for report in nursery.reports:
        interactor.pytest_collectreport(report)
    for warning in nursery.warnings:
        interactor.pytest_warning_recorded(**warning)
    interactor.pytest_collection_finish(session)
    nursery.in_worker()
    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    try:
        interactor.pytest_runtestloop(session)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
    except (KeyboardInterrupt, pytest.exit.Exception):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    except BaseException:
        config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        config._ensure_unconfigure()


def _standard_files() -> tuple[Any, Any]:
    """New sys.stdin and sys.stdout, without what was read or written before."""
    return os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)


def _start_command_server(prepare: Callable[[], None], *files: int) -> None:
    """Fork the server of `multiprocessing` from which this process forks commands.

    It is what `ForkServer.ensure_running` starts, with all imports.

    Args:
        prepare: called in the server.
        files: of this process alone.
    """
    own: Any = forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        listener.bind(address)
        Path(address).chmod(0o600)
        listener.listen()
        alive, ours = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                for file in (*files, ours):
                    os.close(file)
                _without_pytest()
                prepare()
                forkserver.main(listener.fileno(), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    own._forkserver_address, own._forkserver_alive_fd, own._forkserver_pid = address, ours, pid


def _without_pytest() -> None:
    """Take back what pytest has set in this process."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    logging.getLogger().handlers.clear()
    sys.unraisablehook = sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    faulthandler.disable()  # it would write to a file of pytest's
