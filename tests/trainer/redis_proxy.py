"""A TCP proxy before a Redis server that loses answers and commands, or delivers commands late."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlsplit

Fault = Literal["answer lost", "command lost", "command late"]


class Proxy:
    """Listens on a port of its own while it is entered.

    `arm(needle, fault)`: the next command that holds `needle` meets the fault, and its connection is dead
    from then on. `away`: connections are broken and refused. `silent`: nothing is passed on or said.
    `release()`: commands that were late arrive. `send_to(address)`: another server takes over.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}?socket_timeout=1"
        self.away = self.silent = False
        self.met = threading.Event()
        self._needle, self._fault = b"", ""
        self._late: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._closed = False

    def arm(self, needle: bytes, fault: Fault) -> None:
        self.met.clear()
        self._fault, self._needle = fault, needle

    def release(self) -> None:
        """Carry out what was late, and wait for the server's answers."""
        for server, data in self._late:
            server.settimeout(5)
            server.sendall(data)
            assert server.recv(65_536)
        self._late.clear()

    def go_away(self) -> None:
        self.away = True
        self._break()

    def send_to(self, server: tuple[str, int]) -> None:
        """Send new connections to another server, and break those that are open."""
        self._server = server
        self._break()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._listener.close()
        self._break()

    def _break(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:  # as a proxy does whose server is away
                client.close()
                continue
            self._sockets += [client, server]
            dead = threading.Event()
            threading.Thread(target=self._commands, args=(client, server, dead), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server, dead), daemon=True).start()

    def _commands(self, client: socket.socket, server: socket.socket, dead: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if dead.is_set() or self.silent:
                    continue
                if self._needle and self._needle in data:
                    self._needle = b""
                    dead.set()
                    if self._fault == "command late":
                        self._late.append((server, data))
                    elif self._fault == "answer lost":
                        server.sendall(data)
                    self.met.set()
                else:
                    server.sendall(data)

    def _answers(self, client: socket.socket, server: socket.socket, dead: threading.Event) -> None:
        with suppress(OSError):
            while not dead.wait(0):
                server.settimeout(0.05)
                try:
                    data = server.recv(1 << 20)
                except TimeoutError:
                    continue
                if not data:
                    return
                if not dead.is_set():
                    client.sendall(data)
