"""Processes of servers, ours and those of peers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from livectr.local.ports import listens
from livectr.system.children import with_parent

ROOT = Path(__file__).resolve().parents[2]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process: ours, with others in their place; bytecode is kept, as it is for a user."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}


@contextmanager
def serving(
    role: str,
    url: str,
    pipeline_file: str = "bench/serving/pipeline.py",
    *flags: str,
    variables: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A server process of ours; its address."""
    with ready(serve_command(role, url, pipeline_file, *flags), variables) as address:
        yield address


def serve_command(role: str, url: str, pipeline_file: str, *flags: str) -> list[str]:
    """Command of a server of ours."""
    command = [sys.executable, "-m", "livectr", "serve", role, "--pipeline", pipeline_file]
    return [*command, "--redis", url, "--listen", "127.0.0.1:0", *flags]


@contextmanager
def ready(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server process; its address, from its line "… ready on ADDRESS"."""
    with started(command, variables) as (_, address):
        yield address


@contextmanager
def started(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address."""
    with running(command, variables) as process:
        address = _address(process)
        _read_on(process)
        yield process, address


@contextmanager
def talking(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, and talks in lines."""
    with running(command) as process:
        _address(process)
        yield process


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with this block. Its group ends with it: some servers start others."""
    process = subprocess.Popen(
        with_parent(list(command)), cwd=ROOT, env=environment(variables or {}),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_port(process: subprocess.Popen[str], port: int) -> str:
    """Wait until a process of the machine answers on a port; HOST:PORT.

    Raises:
        RuntimeError: the process has ended.
    """
    _read_on(process)
    while process.poll() is None:
        if listens("127.0.0.1", port):
            return f"127.0.0.1:{port}"
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")


def _read_on(process: subprocess.Popen[str]) -> None:
    """Read and forget what a process prints: it would stop at a full pipe."""
    assert process.stdout is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "ready on " in line:
            return line.split("ready on ")[1].split()[0]
    raise RuntimeError(f"{process.args!r} ended with status {process.wait()} before it was ready")
