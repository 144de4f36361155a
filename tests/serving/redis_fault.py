"""Proxy between a client and Redis that answers commands with an error.

For answers that a healthy single server cannot be made to give: CROSSSLOT, MOVED, MASTERDOWN, LOADING.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import hiredis


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
                        server.sendall(hiredis.pack_command(tuple(command)))
        except OSError:
            pass  # one side has gone; the other follows
        finally:
            server.close()
            client.close()

    def _pump(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass  # as above
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
