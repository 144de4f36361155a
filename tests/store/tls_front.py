"""TLS in front of a server without it: a port that decrypts and passes on."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class TlsFront:
    """Listens with a certificate and passes bytes on to a port of this machine.

    Args:
        port: of the server behind.
        cert, key: PEM files.
        client_ca: authority of clients; None: they need no certificate.
    """

    def __init__(self, port: int, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        if client_ca is not None:
            self._context.load_verify_locations(client_ca)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = int(server.sockets[0].getsockname()[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, front = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(_copy(reader, front), _copy(back, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
