"""Kubelet in small: probes of a server process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.local.ports import free_ports
from tests.serving.processes import server
from tests.waiting import until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Kubelet:
    """Asks the health port as a kubelet does: a new connection for every probe."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_ports(1)}"

    def ask(self, service: str) -> bool | None:
        """None: nobody answers."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                request = health_pb2.HealthCheckRequest(service=service)
                return bool(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status == SERVING)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                return None

    def all(self) -> dict[str, bool | None]:
        return {service: self.ask(service) for service in ("startup", "ready", "", "live")}

    def until(self, **expected: bool) -> None:
        """Wait until all services answer as expected."""
        until(lambda: {name: self.ask(name) for name in expected} == expected)


@contextmanager
def probed(url: str, *flags: str) -> Iterator[tuple[subprocess.Popen[str], Kubelet]]:
    kubelet = Kubelet()
    with server(
        "rank", url, "--listen", "127.0.0.1:0", "--set", f"health_listen={kubelet.address}", *flags
    ) as process:
        yield process, kubelet
