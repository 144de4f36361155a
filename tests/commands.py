"""Commands of a test, forked from a process that has imported what a command imports.

`python -m livectr train` imports PyTorch and the trainer, for three seconds of a core; a fork has them. A
forked command is as real as one that Python starts: process id, files, folder, environment, signals and exit
code of its own, and it is a child of the test's process, as `subprocess` has it. Ranks of `livectr train` are
forks of their supervisor. Parts of a run, a demo and a rollout are forks of a process that was forked from
their command before that began. What else a command starts is started by Python.

Three things differ, and a test of one of them starts Python itself: the command line that the system shows
(`psutil`), the time in which a command imports, and the modules that it has not imported.

With sanitizers a command is started by Python: ThreadSanitizer ends a fork whose new thread gets the address
of a thread that its parent had ("dup thread with used id").
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

from prometheus_client import REGISTRY

from livectr.local.ranks import Ranks
from livectr.system.children import follow_parent, with_parent
from livectr.trainer.process import share_cores
from tests.ranks import ForkedRank
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from livectr.local.gang import Round

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_ROOT = Path(__file__).parents[1]
_PROGRAM = str(Path(sys.executable).with_name("livectr"))
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.forkserver"])
_BEGINNING = threading.Lock()
_STARTERS = ("up", "rollout", "demo")
"""Commands of `livectr` that start others."""
_Job: TypeAlias = "tuple[tuple[str, str], Sequence[str], Mapping[str, str], str, bool, bool]"
"""Arguments of `_run`."""
_FOLLOW = with_parent([])[:-2]
"""Words before a parent, a signal and a command that ends with its parent."""
_TRAINERS = ("livectr.ingest.metrics", "livectr.trainer.")
"""Modules whose metrics a server has not."""
_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]


class Command(subprocess.Popen[Any]):
    """`subprocess.Popen` of a forked command in place of a started one.

    It is `[sys.executable, "-m", MODULE, *words]`, the same with `"-c", CODE`, or the `livectr` beside
    that Python. A block that fails kills it, and does not wait for its end.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)

    def _execute_child(self, *given: Any) -> None:
        if "LIVECTR_SANITIZE" in os.environ:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        asked = inspect.signature(_execute_child).bind(self, *given).arguments
        program, *words = map(os.fspath, asked["args"])
        what = ("-m", "livectr")
        if program != _PROGRAM:
            flag, named, *words = words
            assert program == sys.executable and flag in ("-m", "-c"), asked["args"]
            what = (flag, named)
        _execute_forked(self, asked, (what, words, program != _PROGRAM), _fork)


def _execute_forked(
    popen: subprocess.Popen[Any],
    asked: Mapping[str, Any],
    command: tuple[tuple[str, str], Sequence[str], bool],
    fork: Callable[[Sequence[int], _Job], int],
) -> None:
    """Do what `Popen._execute_child` does, by a fork.

    Args:
        asked: arguments of `Popen._execute_child`.
        command: `what`, `words` and `from_here` of `_run`.
        fork: forks a job with its standard files, and returns the process id.
    """
    assert not asked["shell"] and asked["preexec_fn"] is None and not asked["pass_fds"]
    theirs = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    environment = dict(os.environ if asked["env"] is None else asked["env"])
    folder = os.fspath(asked["cwd"] or Path.cwd())
    what, words, from_here = command
    try:
        popen.pid = fork(
            [fd if fd != -1 else number for number, fd in enumerate(theirs)],
            (what, words, environment, folder, asked["start_new_session"], from_here),
        )
        popen._child_created = True  # type: ignore[attr-defined]
    finally:
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def run(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **given: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of a `Command`."""
    if capture_output:
        given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Command(command, **given) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _fork(files: Sequence[int], job: _Job) -> int:
    """Fork a command; returns its process id.

    The server forks a process, which forks the command and ends; the command's parent is then the next
    process that asked for orphans: this one.
    """
    shared = [Connection(os.dup(file)) for file in files]
    ours, theirs = _SERVER.Pipe(duplex=False)
    variables = {"LIVECTR_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
    with _BEGINNING, patch.dict(os.environ, variables):
        share_cores()
        process = _SERVER.Process(target=_begin_of_server, args=(shared, theirs, job))
        with _adopting():
            process.start()
            theirs.close()
            pid = int(ours.recv())
            process.join()
    for one in (*shared, ours):
        one.close()
    process.close()
    return pid


@contextmanager
def _adopting() -> Iterator[None]:
    """Let orphans below this process become its children meanwhile."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _begin_of_server(files: Sequence[Connection], answer: Connection, job: _Job) -> None:
    """Body of the process between the server and the command."""
    assert "livectr.trainer.run" in sys.modules, "tests/forkserver.py was not imported"
    _begin([file.fileno() for file in files], answer.send, job)


def _begin(
    files: Sequence[int], answer: Callable[[int], object], job: _Job, follow: str | None = None
) -> None:
    """Be the process between a server and the command: fork it, answer its process id, and end.

    Args:
        files: standard files of the command.
        follow: number of the signal that it gets when its parent ends.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        answer(pid)
        os._exit(0)
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        until(lambda: os.getppid() != parent, turn=lambda: time.sleep(0.0005))
        if follow is not None:
            follow_parent(signal.Signals(int(follow)))
        code = _run(*job)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


class _OwnServer:
    """Process from which a forked command forks the commands that it starts itself.

    It is forked while the command has one thread and has imported nothing of its own, and ends with it.
    """

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                self._ours.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    @staticmethod
    def _serve(asked: socket.socket) -> None:
        while True:
            text, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
            if not text:
                return
            follow, *job = json.loads(text)
            between = os.fork()
            if between == 0:
                _begin(files, lambda pid: asked.send(str(pid).encode()), tuple(job), follow)
            os.waitpid(between, 0)
            asked.send(b"adopted")
            for file in files:
                os.close(file)

    def execute_child(self, popen: subprocess.Popen[Any], *given: Any) -> None:
        """`Popen._execute_child`: LiveCTR's commands are forked, others started."""
        asked = inspect.signature(_execute_child).bind(popen, *given).arguments
        words = [*map(os.fspath, asked["args"])] if isinstance(asked["args"], (list, tuple)) else []
        follow = None
        if words[: len(_FOLLOW)] == _FOLLOW:
            _, follow, *words = words[len(_FOLLOW) :]
        if words[:2] != [sys.executable, "-m"] or words[2].split(".")[0] != "livectr":
            _execute_child(popen, *given)
            return

        def fork(files: Sequence[int], job: _Job) -> int:
            with _BEGINNING, _adopting():
                socket.send_fds(self._ours, [json.dumps((follow, *job)).encode()], files)
                pid = int(self._ours.recv(32))
                assert self._ours.recv(32) == b"adopted"
            return pid

        _execute_forked(popen, asked, (("-m", words[2]), words[3:], True), fork)


def _run(
    what: tuple[str, str],
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    new_session: bool,
    from_here: bool,
) -> int:
    """Be the command; returns the exit code.

    Args:
        what: "-m" and a module, or "-c" and code.
        from_here: modules of the folder can be imported, as with `python -m` and `-c`.
    """
    for file in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if file > 2:
            with suppress(OSError):
                os.close(file)
    if new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    multiprocessing.set_start_method(None, force=True)  # the server's is its own
    _as_after_a_start(from_here)
    Ranks.start = _start_ranks  # type: ignore[assignment, method-assign]
    flag, named = what
    if named == "livectr" and words[:1] and words[0] in _STARTERS:
        own = _OwnServer()
        subprocess.Popen._execute_child = (  # type: ignore[attr-defined]
            lambda popen, *given: own.execute_child(popen, *given)
        )
    else:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    if named == "livectr" and words[:1] == ["serve"]:
        leave_metrics_to_trainers()
    sys.argv = [flag, *words]
    try:
        if flag == "-m":
            runpy.run_module(named, run_name="__main__", alter_sys=True)
        else:
            exec(compile(named, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(ValueError):  # closed: nobody reads it
        sys.stdout.flush()
    return code


def leave_metrics_to_trainers() -> None:
    """Withdraw metrics that a server does not import: `livectr status` knows a trainer by them."""
    modules = [
        (name, [*vars(module).values()])
        for name, module in sys.modules.items()
        if name.startswith("livectr.")
    ]
    shared = {id(value) for name, values in modules if not name.startswith(_TRAINERS) for value in values}
    for name, values in modules:
        for value in values if name.startswith(_TRAINERS) else ():
            if id(value) not in shared:
                with suppress(KeyError, TypeError):  # it is no metric
                    REGISTRY.unregister(value)


_started = Ranks.start
"""Starts ranks by Python."""


def _start_ranks(ranks: Ranks, round_: Round) -> list[Any]:
    """`Ranks.start` of a forked command: ranks of `livectr train` are forked.

    A process with more than one thread starts them: a fork would have this thread alone.
    """
    program, flag, module, *words = ranks.command
    ours = (program, flag, module) == (sys.executable, "-m", "livectr")
    if not ours or len(list(Path("/proc/self/task").iterdir())) > 1:
        return _started(ranks, round_)
    folder = os.fspath(Path.cwd())

    def run_rank(number: int) -> int:
        environment = {**os.environ, **ranks.environment, **ranks.variables(round_, number)}
        return _run((flag, module), words, environment, folder, new_session=False, from_here=True)

    for stream in (sys.stdout, sys.stderr):  # else ranks would write what is not written yet
        stream.flush()
    return [ForkedRank(partial(run_rank, number)) for number in range(ranks.ranks)]


def _as_after_a_start(from_here: bool) -> None:
    """Signals, streams and search path as Python sets them."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    through = bool(os.environ.get("PYTHONUNBUFFERED"))
    stdin, stdout, stderr = (os.fdopen(file, "r" if file == 0 else "w", closefd=False) for file in range(3))
    stdout.reconfigure(write_through=through)
    stderr.reconfigure(line_buffering=True, write_through=through, errors="backslashreplace")
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc]
    places = (sys.prefix, f"{sys.base_prefix}/lib", "__editable__")
    installed = [path for path in sys.path if path.startswith(places)]
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*([str(Path.cwd())] if from_here else []), *named, *installed]
    sys.path_importer_cache.clear()
