"""A port before servers: connection i goes to server i, and may fall silent as in a dead network."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self


class Forwarder:
    """Listens while it is entered, and passes bytes on.

    Args:
        ports: of servers of this machine; connection i goes to ports[i], later ones to the last.

    Attributes:
        address: where clients connect.
        connections: number of connections so far.
        silent: connections, by number, of which nothing more is passed on or said.
        reset: connections, by number, that end at once, as those that a server has not taken when it ends.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.address = ""
        self.connections = 0
        self.silent: set[int] = set()
        self.reset: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _leave(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        if number in self.reset:
            linger = struct.pack("ii", 1, 0)  # close() sends RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return
        back, front = await asyncio.open_connection(
            "127.0.0.1", self._ports[min(number, len(self._ports) - 1)]
        )
        await asyncio.gather(self._copy(number, reader, front), self._copy(number, back, writer))

    async def _copy(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    if number not in self.silent:
                        writer.write(data)
                        await writer.drain()
        finally:
            writer.close()
