"""Health of a process for an orchestrator: a gRPC health service on a port of its own, without TLS.

| service | SERVING while |
|---|---|
| `live` | the process runs |
| `startup` | nothing is left to load: the published version is served, or there is none to load |
| `ready`, `""` | a version is served that is whole and not stale, and the server has not been told to stop |

The port answers from the start of the process to its end, also while it drains. Workers share the port of
requests, so a probe could not tell them apart: they report to their supervisor through a pipe, and the
supervisor answers for all of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.serving.grpc_health import Health
from livectr.system.errors import ConfigError

_STATUS = health_pb2.HealthCheckResponse


class Probe(StrEnum):
    """Names of the health services."""

    LIVE = "live"
    STARTUP = "startup"
    READY = "ready"


class Probes(Protocol):
    """Receiver of a process's health."""

    def set(self, probe: Probe, ok: bool) -> None:
        """Set the health of a service."""

    def close(self) -> None:
        """Answer no longer."""


class NoProbes:
    """Probes of a process without `health_listen`."""

    def set(self, probe: Probe, ok: bool) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ProbeServer:
    """gRPC health server; `live` is SERVING from the start.

    Args:
        listen: HOST:PORT; port 0 takes a free port.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, listen: str) -> None:
        self._health = Health()
        # Without SO_REUSEPORT a port that another process has is an error.
        self._server = grpc.server(
            ThreadPoolExecutor(2, thread_name_prefix="probe"), options=[("grpc.so_reuseport", 0)]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for probe in Probe:
            self.set(probe, probe is Probe.LIVE)
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise ConfigError(f"cannot answer probes on {listen}: choose another health_listen") from error
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        self._server.start()

    def set(self, probe: Probe, ok: bool) -> None:
        """Set the health of a service."""
        for service in ("", probe) if probe is Probe.READY else (probe,):
            self._health.set(service, _STATUS.SERVING if ok else _STATUS.NOT_SERVING)

    def close(self) -> None:
        """Stop the server."""
        self._server.stop(None).wait()


class PipeProbes:
    """Health of a worker, as lines "SERVICE 0|1" in a pipe to its supervisor.

    Args:
        descriptor: write end of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w", buffering=1)

    def set(self, probe: Probe, ok: bool) -> None:
        """Send a line. A supervisor that has ended needs none: its signal ends this process, too."""
        with suppress(BrokenPipeError):
            self._pipe.write(f"{probe} {int(ok)}\n")

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


class WorkerProbes:
    """Health of all workers: a service is SERVING when it is in every worker.

    Args:
        probes: receiver.
        pipes: read ends, one for each worker.
    """

    def __init__(self, probes: Probes, pipes: Sequence[int]) -> None:
        self._probes = probes
        self._lock = threading.Lock()
        self._ok: dict[Probe, set[int]] = {Probe.STARTUP: set(), Probe.READY: set()}
        self._workers = len(pipes)
        self._draining = False
        for worker, pipe in enumerate(pipes):
            threading.Thread(target=self._read, args=(worker, pipe), name="probe-pipe", daemon=True).start()

    def drain(self) -> None:
        """Set `ready` to NOT_SERVING for good."""
        with self._lock:
            self._draining = True
            self._probes.set(Probe.READY, False)

    def _read(self, worker: int, pipe: int) -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                name, ok = line.split()
                self._note(Probe(name), worker, ok == "1")
        self._note(Probe.READY, worker, False)  # the worker has ended

    def _note(self, probe: Probe, worker: int, ok: bool) -> None:
        with self._lock:
            workers = self._ok[probe]
            if ok:
                workers.add(worker)
            else:
                workers.discard(worker)
            healthy = len(workers) == self._workers
            self._probes.set(probe, healthy and not (self._draining and probe is Probe.READY))
