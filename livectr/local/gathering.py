"""Gathering of the nodes of a gang, as one of them sees it (steps: `livectr.local.gang`)."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from livectr.local.gang import BEAT_S, SILENT_S, End, Gang, Over, Round
from livectr.local.meeting import Meeting
from livectr.local.ports import free_ports
from livectr.system.connections import connected

LOG = logging.getLogger(__name__)
POLL_S = 0.05
RETRY_S = 0.5


class Gathering(Protocol):
    """Meeting of the nodes, as one of them sees it."""

    def wait(self, stop: Callable[[], bool], limit_s: float | None) -> Round | None:
        """Wait until the ranks may start; None: told to stop, or after `limit_s`."""

    def over(self) -> Over | None:
        """End of the round, if another node has ended it. Call it often."""

    def verdict(self, limit_s: float) -> Over | None:
        """Wait until all nodes have told how their ranks ended; None: well, or no answer in time."""

    def poll(self) -> None:
        """Keep the connection alive while nothing is waited for."""

    def end(self, end: End) -> None:
        """Tell the other nodes how the own ranks have ended."""

    def close(self) -> None:
        """Leave."""


class Alone:
    """Gathering of a single node."""

    def wait(self, stop: Callable[[], bool], limit_s: float | None) -> Round | None:
        """Start at once."""
        return None if stop() else Round("127.0.0.1", free_ports(1))

    def over(self) -> Over | None:
        """None: there is no other node."""
        return None

    def verdict(self, limit_s: float) -> Over | None:
        """None: there is no other node."""
        return None

    def poll(self) -> None:
        """Nothing is open."""

    def end(self, end: End) -> None:
        """Nobody has to know."""

    def close(self) -> None:
        """Nothing is open."""


class Member:
    """Gathering of several nodes.

    Raises:
        ConfigError: this is node 0, and the port of the rendezvous is taken.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._meeting = Meeting(gang) if gang.node == 0 else None
        self._socket: socket.socket | None = None
        self._received = b""
        self._heard_s = self._sent_s = 0.0
        self._round = 0
        self._over: Over | None = None
        self._verdict: Over | None = None
        self._start: Round | None = None
        self._said = ""

    def wait(self, stop: Callable[[], bool], limit_s: float | None) -> Round | None:
        """Wait until every node is there. Says in the log for whom it waits."""
        self._start = self._over = None
        self._say_ready()
        limit = time.monotonic() + limit_s if limit_s is not None else None
        while not stop() and (limit is None or time.monotonic() < limit):
            if self._socket is None:
                self._connect()
            self._poll(RETRY_S if self._socket is None else POLL_S)
            if self._start is not None:
                self._said = ""
                return self._start
        return None

    def over(self) -> Over | None:
        """End of the round, if another node has ended it."""
        if self._over is None:
            self._poll(0)
            if self._socket is None:
                self._over = Over(End.GONE, "node 0 is gone")
        return self._over

    def verdict(self, limit_s: float) -> Over | None:
        """Wait until node 0 has heard of all nodes: one may be gone while its ranks have ended well."""
        limit = time.monotonic() + limit_s
        while self._verdict is None and self._socket is not None and time.monotonic() < limit:
            self._poll(POLL_S)
        if self._verdict is None and self._socket is None and self._over is None:
            return Over(End.GONE, "node 0 is gone")
        return self._verdict if self._verdict is not None and self._verdict.end is not End.DONE else None

    def poll(self) -> None:
        """Handle what has come, and give a sign of life."""
        self._poll(0)

    def end(self, end: End) -> None:
        """Tell the other nodes."""
        self._send({"ended": self._round, "end": end})

    def close(self) -> None:
        """Leave, and close the meeting of node 0."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._meeting is not None:
            self._meeting.close()

    def _connect(self) -> None:
        host, port = ("127.0.0.1", self._gang.address[1]) if self._gang.node == 0 else self._gang.address
        try:
            self._socket = connected(host, port, SILENT_S / 4)
        except OSError as error:
            self._say(f"node {self._gang.node} waits for node 0 at {self._gang.rendezvous}: {error}")
            return
        self._socket.setblocking(False)
        self._received, self._heard_s = b"", time.monotonic()
        self._send({"hello": asdict(self._gang), "identity": self._gang.identity})
        self._say_ready()

    def _say_ready(self) -> None:
        self._send({"ready": True})

    def _poll(self, wait_s: float) -> None:
        """Handle what has come; keep the connection alive."""
        if wait_s:
            time.sleep(wait_s)
        if self._socket is None:
            return
        lost = self._receive()
        *lines, self._received = self._received.split(b"\n")
        try:
            for line in lines:
                self._handle(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._say(f"what answers at {self._gang.rendezvous} is no supervisor of livectr train")
            lost = True
        if lost or time.monotonic() - self._heard_s > SILENT_S:
            self._lose()
        elif time.monotonic() - self._sent_s > BEAT_S:
            self._send({})

    def _receive(self) -> bool:
        """Receive what has come; True: the connection is closed."""
        assert self._socket is not None
        try:
            while data := self._socket.recv(1 << 16):
                self._received += data
                self._heard_s = time.monotonic()
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _handle(self, message: dict[str, Any]) -> None:
        if "start" in message:
            self._round, self._over, self._verdict = message["start"], None, None
            self._start = Round(self._gang.address[0], message["port"])
        elif message.get("verdict") == self._round:
            self._verdict = Over(End(message["end"]), message["why"])
        elif message.get("over") == self._round:
            self._over = Over(End(message["end"]), message["why"])
        elif "waiting" in message:
            self._say(f"node {self._gang.node} waits: {message['waiting']}")

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is not None:
            self._sent_s = time.monotonic()
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._lose()

    def _lose(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            LOG.info("%s", sentence)
