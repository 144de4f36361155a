"""Proxy between a client and Redis that answers commands with an error.

For answers that a healthy single server cannot be made to give: CROSSSLOT, MOVED, MASTERDOWN, LOADING.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import hiredis

from tests.waiting import left_s


class FaultyRedis:
    """Proxy on a free port of loopback; it forwards all commands but those with a fault."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.fault = ""
        """Error reply of the chosen commands, "CROSSSLOT Keys in request…"; empty: no fault."""
        self.commands: frozenset[bytes] = frozenset()
        """Commands with the fault; empty: all."""
        self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := client.recv(1 << 16):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    if self.fault and (not self.commands or command[0].upper() in self.commands):
                        self.answered += 1
                        client.sendall(f"-{self.fault}\r\n".encode())
                    else:
                        self._forward(command, server)
        except OSError:
            pass  # one side has gone; the other follows
        finally:
            server.close()
            client.close()

    def _forward(self, command: list[bytes], server: socket.socket) -> None:
        server.sendall(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]  # one-tuple in its stub

    def _pump(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass  # as above
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


class SlowRedis(FaultyRedis):
    """Proxy that holds some reads until they are released; the follower's continue.

    Attributes:
        held: is set while a command waits.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.held, self._released = threading.Event(), threading.Event()
        self._part, self._times = b"", 0

    def hold(self, part: bytes, times: int = 1) -> None:
        """Hold the next commands of which a word has a part, `times` of them."""
        self.held.clear()
        self._released.clear()
        self._part, self._times = part, times

    def release(self) -> None:
        """Let all commands continue."""
        self._times = 0
        self._released.set()

    def _forward(self, command: list[bytes], server: socket.socket) -> None:
        if self._times > 0 and any(self._part in word for word in command):
            self._times -= 1
            self.held.set()
            self._released.wait(left_s())
        super()._forward(command, server)
