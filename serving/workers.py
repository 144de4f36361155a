"""Worker processes of a server that share its port and its memory, and signals that stop them.

Workers are forked from a supervisor that has imported everything and loaded the pipeline, and has no other
threads: pages that nobody writes to (PyTorch's libraries and its table of operators) exist once for all of
them, and a worker starts in milliseconds. gRPC's threads do not survive a fork, so a worker makes its gRPC
objects itself, and the supervisor makes its own after the last fork.
They share the port by SO_REUSEPORT: the kernel spreads connections over them.
"""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from types import FrameType

from livectr.serving.options import ServeOptions
from livectr.serving.probes import NoProbes, PipeProbes, Probes, ProbeServer, WorkerProbes
from livectr.system.children import follow_parent
from livectr.system.errors import ConfigError, ConnectError, UserError
from livectr.system.logs import add_log_field, tell
from livectr.system.signals import SignalEvent, end_at_sigterm

MISTAKE, AWAY = 2, 4
"""Exit codes of a worker, which become those of its supervisor."""
_RESERVE_S = 5.0
"""Seconds beyond its own waits that a worker has to end."""
_STOPS = signal.SIGTERM, signal.SIGINT


Work = Callable[[ServeOptions, Probes], None]
"""Server of one worker: serves until the process gets a signal."""


def supervise(work: Work, options: ServeOptions) -> None:
    """Fork the workers and wait for a signal or the end of a worker.

    When a worker ends by itself the others are stopped, so that the failure reaches the caller of this
    process (Kubernetes, a user).

    Raises:
        ConfigError: this process has other threads, the address cannot be listened on, or a worker reported a
            user's mistake.
        ConnectError: a worker could not reach Redis.
        RuntimeError: a worker ended with another status.
    """
    if threading.active_count() > 1:
        names = sorted(
            thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
        )
        raise ConfigError(
            f"several workers need a process without other threads, and this one has {', '.join(names)}: "
            "use `livectr serve --workers`, and start no thread where the pipeline's file is imported"
        )
    stop = StopSignal()
    host, _, port = options.listen.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reserved:
        # Bound, not listening: all workers get the same free port, and no other process takes it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind((host.strip("[]"), int(port)))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot listen on {options.listen}: choose a free HOST:PORT ({error})"
            ) from error
        listen = f"{host}:{reserved.getsockname()[1]}"
        gc.freeze()  # a collection in a worker would write to every object, and so copy its page
        workers: list[ForkProcess] = []
        pipes: list[int] = []
        for index in range(options.workers):
            worker, pipe = _fork(work, _of_worker(options, listen, index), index, [reserved.fileno(), *pipes])
            workers.append(worker)
            pipes.append(pipe)
        failed: list[int] = []
        probes: Probes = NoProbes()
        try:
            if options.health_listen is not None:  # after the workers: gRPC's threads survive no fork
                probes = ProbeServer(options.health_listen)
            health = WorkerProbes(probes, pipes)
            while not stop.stopped.wait(0.2) and not failed:
                failed = [code for worker in workers if (code := worker.exitcode) is not None]
            health.drain()
        finally:
            age_s = 2 * options.max_connection_age_s  # longer than a worker waits for its clients
            _end(workers, options.drain_s + age_s + options.grace_s, stop.hurried)
            probes.close()
    if failed and not stop.stopped.is_set():
        if failed[0] == AWAY:
            raise ConnectError("a worker could not reach Redis; its message is above")
        if failed[0] == MISTAKE:
            raise ConfigError("a worker could not start or continue; its message is above")
        raise RuntimeError(f"a worker of the server ended with status {failed[0]}")


class StopSignal:
    """Events that SIGTERM and SIGINT set; only in the main thread.

    Attributes:
        stopped: a signal has come.
        hurried: do not wait for load balancers: it was Ctrl-C, or the second signal.
    """

    def __init__(self) -> None:
        self.stopped, self.hurried = SignalEvent(), SignalEvent()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or self.stopped.is_set():
            self.hurried.set()
        self.stopped.set()


def _of_worker(options: ServeOptions, listen: str, index: int) -> ServeOptions:
    port = options.metrics_port + index if options.metrics_port else 0
    return dataclasses.replace(options, listen=listen, workers=1, metrics_port=port, health_listen=None)


def _fork(work: Work, options: ServeOptions, index: int, others: list[int]) -> tuple[ForkProcess, int]:
    """Fork a worker; return it with the read end of its pipe of health.

    Args:
        work: of the worker.
        options: settings of the server.
        index: of the worker, from 0.
        others: descriptors of the supervisor, which the worker closes.
    """
    pipe, workers_end = os.pipe()
    parent = os.getpid()

    def run() -> None:
        # Before signals come: the supervisor's handlers would swallow them.
        end_at_sigterm()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        follow_parent()
        if os.getppid() != parent:  # it ended before its end could be followed
            os._exit(0)
        for descriptor in (*others, pipe):
            os.close(descriptor)
        add_log_field("worker", lambda: index)
        try:
            work(options, PipeProbes(workers_end))
        except UserError as error:
            tell(str(error))
            sys.exit(AWAY if isinstance(error, ConnectError) else MISTAKE)

    worker = multiprocessing.get_context("fork").Process(target=run, name=f"worker-{index}")
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        worker.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    os.close(workers_end)
    return worker, pipe


def _end(workers: list[ForkProcess], grace_s: float, hurried: SignalEvent) -> None:
    """Stop the workers; a second signal is passed on, and after `grace_s` and a reserve they are killed."""
    for worker in workers:
        worker.terminate()
    deadline, told = time.monotonic() + grace_s + _RESERVE_S, False
    while any(worker.exitcode is None for worker in workers) and time.monotonic() < deadline:
        if hurried.is_set() and not told:
            told = True
            for worker in workers:
                worker.terminate()
        time.sleep(0.02)
    for worker in workers:
        worker.kill()
        worker.join()
