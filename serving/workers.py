"""Worker processes of a server that share its port, and signals that stop them.

Workers are fresh processes that start before any gRPC object exists, because gRPC does not survive a fork.
They share the port by SO_REUSEPORT: the kernel spreads connections over them.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from livectr.kernels.errors import ConfigError
from livectr.kernels.process.children import die_with_parent
from livectr.serving.options import ServeOptions


def supervise(role: str, options: ServeOptions) -> None:
    """Start the workers and wait for a signal or the end of a worker.

    When a worker ends by itself the others are stopped, so that the failure reaches the caller of this
    process (Kubernetes, a user).

    Raises:
        ConfigError: the address cannot be listened on, or a worker reported a user's mistake.
        RuntimeError: a worker ended with another status.
    """
    if options.pipeline_file is None:
        raise ConfigError("several workers need the pipeline's file")
    stopped = stop_signal()
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
        workers = [_spawn(role, options, listen, index) for index in range(options.workers)]
        failed: list[int] = []
        try:
            while not stopped.wait(0.2) and not failed:
                failed = [code for worker in workers if (code := worker.poll()) is not None]
        finally:
            _end(workers, options.grace_s)
    if failed and not stopped.is_set():
        if failed[0] == 2:
            raise ConfigError("a worker could not start or go on; its message is above")
        raise RuntimeError(f"a worker of the {role} server ended with status {failed[0]}")


def stop_signal() -> threading.Event:
    """Event that SIGTERM or SIGINT sets; only in the main thread."""
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        stop: Callable[[int, Any], None] = lambda *_: stopped.set()  # noqa: E731
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
    return stopped


def _spawn(role: str, options: ServeOptions, listen: str, index: int) -> subprocess.Popen[bytes]:
    port = options.metrics_port + index if options.metrics_port else 0
    values = dataclasses.asdict(options) | {"listen": listen, "workers": 1, "metrics_port": port}
    values["pipeline_file"] = str(options.pipeline_file)
    worker = subprocess.Popen(
        [sys.executable, "-m", "livectr.serving.app", role],
        stdin=subprocess.PIPE,  # options hold a password, and every user can read a command line
        preexec_fn=die_with_parent(),
    )
    assert worker.stdin is not None
    with suppress(BrokenPipeError), worker.stdin:  # it has ended: its exit code tells
        worker.stdin.write(json.dumps(values).encode())
    return worker


def _end(workers: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(timeout=grace_s + 5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
