"""Service of Kubernetes in small: new TCP connections go to a server that is ready, old ones stay."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

NO_POLICY = (("grpc.service_config", "{}"),)
"""Channel options without our retries: gRPC still makes calls again that no server has seen (GOAWAY)."""


SERVING = health_pb2.HealthCheckResponse.SERVING
PERIOD_S = 0.2


class Service:
    """Forwards bytes between clients and servers.

    Attributes:
        endpoints: addresses of servers, with the addresses of their probes; may be changed at any time
        address: where clients connect
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, str] = {}
        self._ready: Sequence[str] = []
        self._loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop.run_forever),
            threading.Thread(target=self._probe),
        ]
        self.address = ""

    def __enter__(self) -> Self:
        self._threads[0].start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._threads[1].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join()

    def _probe(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._ready = [address for address, probe in list(self.endpoints.items()) if is_ready(probe)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._ready:
            await asyncio.sleep(PERIOD_S)
        host, _, port = random.choice(self._ready).rpartition(":")
        try:
            back, front = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, front), _copy(back, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def is_ready(probe: str) -> bool:
    """Ask the service `ready` of a health port."""
    with grpc.insecure_channel(probe) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service="ready")
            return bool(health_pb2_grpc.HealthStub(channel).Check(request, timeout=5).status == SERVING)
        except grpc.RpcError:
            return False
