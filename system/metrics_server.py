"""HTTP endpoint of a process for Prometheus, plain or with TLS.

prometheus_client's own server shakes hands in the thread that accepts connections: a client that connects and
says nothing would keep all others out. Here every connection has a thread, and seconds to say something.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from livectr.system.errors import ConfigError
from livectr.system.tls import FollowedFiles, TlsFiles

log = logging.getLogger(__name__)

_SILENCE_S = 10.0
"""Longest silence of a client."""


@contextmanager
def metrics_server(port: int, address: str, tls: TlsFiles | None = None) -> Iterator[None]:
    """Answer Prometheus at `port` of `address` while this is open; port 0: no endpoint.

    Args:
        port: TCP port, or 0.
        address: interface to listen on.
        tls: answer by https with these files, and follow them; None: by http.

    Raises:
        ConfigError: the port is taken, the address is none of this machine's, or a file cannot be used.
    """
    if not port:
        yield
        return
    context = FollowedFiles(tls, TlsFiles.context) if tls is not None else None
    try:
        server = _server(port, address, context)
    except OSError as error:
        raise ConfigError(
            f"metrics port {port} of {address} cannot be used ({error}); choose another one"
        ) from None
    server.set_app(make_wsgi_app())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *words: object) -> None:
        """Keep scrapes out of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    context: FollowedFiles[ssl.SSLContext] | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, if that is asked for, and answer; this is the connection's own thread."""
        if self.context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_SILENCE_S)
        with self.context.current().wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note it; a client that speaks no TLS, or has gone, is told by its own log."""
        ours = not isinstance(sys.exception(), OSError)
        log.log(logging.ERROR if ours else logging.DEBUG, "metrics: %s", client_address, exc_info=True)


def _server(port: int, address: str, context: FollowedFiles[ssl.SSLContext] | None) -> _Server:
    """Listen. Raises OSError: the port or the address cannot be used."""
    family, _, _, _, name = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]

    class Listening(_Server):
        address_family = family

    server = Listening(name, _Handler)  # type: ignore[arg-type]  # four parts for IPv6
    server.context = context
    return server
