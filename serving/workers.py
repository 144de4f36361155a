"""Worker processes of a server that share its port, and signals that stop them.

Workers are fresh processes that start before any gRPC object exists, because gRPC does not survive a fork.
They share the port by SO_REUSEPORT: the kernel spreads connections over them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from livectr.kernels.errors import ConfigError, ConnectError
from livectr.kernels.process.children import with_parent
from livectr.kernels.process.logs import log_fields
from livectr.kernels.process.signals import SignalEvent
from livectr.serving.options import ServeOptions
from livectr.serving.probes import NoProbes, Probes, ProbeServer, WorkerProbes

MISTAKE, AWAY = 2, 4
"""Exit codes of a worker, which become those of its supervisor."""
_RESERVE_S = 5.0
"""Seconds beyond its own waits that a worker has to end."""


def supervise(role: str, options: ServeOptions) -> None:
    """Start the workers and wait for a signal or the end of a worker.

    When a worker ends by itself the others are stopped, so that the failure reaches the caller of this
    process (Kubernetes, a user).

    Raises:
        ConfigError: the address cannot be listened on, or a worker reported a user's mistake.
        ConnectError: a worker could not reach Redis.
        RuntimeError: a worker ended with another status.
    """
    if options.pipeline_file is None:
        raise ConfigError("several workers need the pipeline's file")
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
        started = [_spawn(role, options, listen, index) for index in range(options.workers)]
        workers, pipes = [worker for worker, _ in started], [pipe for _, pipe in started]
        failed: list[int] = []
        probes: Probes = NoProbes()
        try:
            if options.health_listen is not None:  # after the workers: gRPC's threads survive no fork
                probes = ProbeServer(options.health_listen)
            health = WorkerProbes(probes, pipes)
            while not stop.stopped.wait(0.2) and not failed:
                failed = [code for worker in workers if (code := worker.poll()) is not None]
            health.drain()
        finally:
            age_s = 2 * options.max_connection_age_s  # longer than a worker waits for its clients
            _end(workers, options.drain_s + age_s + options.grace_s, stop.hurried)
            probes.close()
    if failed and not stop.stopped.is_set():
        if failed[0] == AWAY:
            raise ConnectError("a worker could not reach Redis; its message is above")
        if failed[0] == MISTAKE:
            raise ConfigError("a worker could not start or go on; its message is above")
        raise RuntimeError(f"a worker of the {role} server ended with status {failed[0]}")


class StopSignal:
    """Events that SIGTERM and SIGINT set; only in the main thread.

    Attributes:
        stopped: a signal has come.
        hurried: nobody wants to wait for load balancers: it was Ctrl-C, or the second signal.
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


def _spawn(role: str, options: ServeOptions, listen: str, index: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a worker; return it with the read end of its pipe of health."""
    port = options.metrics_port + index if options.metrics_port else 0
    values = dataclasses.asdict(options) | {"listen": listen, "workers": 1, "metrics_port": port}
    values["pipeline_file"] = str(options.pipeline_file)
    values["health_listen"] = None
    pipe, workers_end = os.pipe()
    worker = subprocess.Popen(
        with_parent([sys.executable, "-m", "livectr.serving.app", role, str(index), str(workers_end)]),
        stdin=subprocess.PIPE,  # options hold a password, and every user can read a command line
        pass_fds=[workers_end],
    )
    os.close(workers_end)
    assert worker.stdin is not None
    with suppress(BrokenPipeError), worker.stdin:  # it has ended: its exit code tells
        worker.stdin.write(json.dumps({"options": values, "log_fields": log_fields()}).encode())
    return worker, pipe


def _end(workers: list[subprocess.Popen[bytes]], grace_s: float, hurried: SignalEvent) -> None:
    """Stop the workers; a second signal is passed on, and after `grace_s` and a reserve they are killed."""
    for worker in workers:
        worker.terminate()
    deadline, told = time.monotonic() + grace_s + _RESERVE_S, False
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        if hurried.is_set() and not told:
            told = True
            for worker in workers:
                worker.terminate()
        time.sleep(0.02)
    for worker in workers:
        worker.kill()
        worker.wait()
