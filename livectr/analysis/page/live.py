"""Live page of a run: a small HTTP server that follows the run log.

    GET /          the page
    GET /content   what its main element holds; 304 while nothing is new

The server only reads the file. A thread draws the page when somebody asks, at most a fiftieth of the time.
"""

from __future__ import annotations

import errno
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from livectr.analysis.page.page import content, frame
from livectr.analysis.page.reading import lines_of, run_of, thinned_samples, whole_lines
from livectr.system.errors import ConfigError, InUseError

LOG = logging.getLogger(__name__)
PORT = 8350
ADDRESS = "127.0.0.1"
SILENCE_S = 10.0
"""Longest silence of a client."""
PAUSE = 50.0
"""Seconds without drawing for each second that the last drawing took."""


class Follower:
    """Content of the page of a run log that grows; thread-safe.

    Args:
        path: the run log, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, path.name
        self._lock = threading.Lock()
        self._lines: list[dict[str, Any]] = []
        self._read = 0  # bytes whose lines are held
        self._first = b""
        self._drawn = "", "", False
        self._next = 0.0

    def look(self) -> tuple[str, str, bool]:
        """The content as HTML, its tag, and True once the run has ended."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next and (self._follow() or not self._drawn[1]):
                self._drawn = self._draw()
                self._next = now + PAUSE * (time.monotonic() - now)
            return self._drawn

    def _follow(self) -> bool:
        """Read new lines; True: new lines, or the log began again."""
        try:
            with self._path.open("rb") as file:
                first = file.readline()
                restarted = first != self._first or file.seek(0, 2) < self._read
                if restarted:
                    self._first, self._lines, self._read = first, [], 0
                file.seek(self._read)
                data = whole_lines(file.read())
        except FileNotFoundError:
            return False
        self._lines = thinned_samples(self._lines + lines_of(self._path.name, data))
        self._read += len(data)
        return restarted or bool(data)

    def _draw(self) -> tuple[str, str, bool]:
        if not self._lines:
            return "<p>The run has not begun yet.</p>", '"0"', False
        data = run_of(self._path.name, self._lines)
        return content(data), f'"{len(self._lines)}-{self._read}"', data.end is not None


@contextmanager
def live_page(run_log: Path, address: str = ADDRESS, port: int = PORT) -> Iterator[str]:
    """Serve the page of a run log while this is open.

    Args:
        run_log: file that grows meanwhile.
        address: of this machine, to listen on.
        port: 0: any free one.

    Yields:
        URL of the page.

    Raises:
        InUseError: the port is taken.
        ConfigError: the address is none of this machine's.
    """
    follower = Follower(run_log)

    class Handler(_Handler):
        shown = follower

    try:
        server = _Server((address, port), Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InUseError(f"port {port} of {address} is taken; give --live another port") from None
        raise ConfigError(f"--live cannot listen on {address}:{port} ({error}); choose another one") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note it; a browser that has gone needs no trace."""
        ours = not isinstance(sys.exception(), OSError)
        LOG.log(logging.ERROR if ours else logging.DEBUG, "live page: %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    shown: Follower
    timeout = SILENCE_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        if path not in ("/", "/content"):
            self._answer(404, "There is nothing here; the page is at /.", "text/plain")
            return
        try:
            main, tag, ended = self.shown.look()
        except ConfigError as error:
            main, tag, ended = f"<p>{escape(str(error))}</p>", '"error"', False
        more = {"ETag": tag, "X-Run-Ended": str(int(ended))}
        if path == "/":
            self._answer(200, frame(self.shown.name, main, live=True), "text/html", more)
        elif self.headers.get("If-None-Match") == tag:
            self._answer(304, "", "text/html", more)
        else:
            self._answer(200, main, "text/html", more)

    def _answer(self, code: int, text: str, kind: str, more: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, "Cache-Control": "no-cache", **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Keep requests out of the log."""
