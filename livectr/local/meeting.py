"""Meeting point of a gang's nodes, at node 0 (steps: `livectr.local.gang`)."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from livectr.local.gang import BEAT_S, SILENT_S, End, Gang
from livectr.local.ports import free_ports
from livectr.system.errors import ConfigError

LOG = logging.getLogger(__name__)
STRANGE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of a broken connection, and of one that is no supervisor's."""
LINE_BYTES = 1 << 16
SAID = {
    End.DONE: "has ended",
    End.STOPPED: "was told to stop",
    End.UNFINISHED: "has ended before the log's end",
    End.FAILED: "has a rank that failed",
    End.AWAY: "finds no broker, topic or Redis",
    End.GONE: "is gone",
}


@dataclass
class _Node:
    """Connection of a node's supervisor."""

    writer: asyncio.StreamWriter
    number: int = -1
    identity: str = ""
    ready: bool = False


class Meeting:
    """Meeting point at node 0, in a thread of its own.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._nodes: dict[int, _Node] = {}
        self._others: list[_Node] = []
        self._round, self._running = int(time.time()), False
        self._ended: set[int] = set()
        self._ports: set[int] = set()
        self._loop = asyncio.new_event_loop()
        host, port = gang.address
        local = host in ("localhost", "::1") or host.startswith("127.")
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1" if local else None, port, limit=LINE_BYTES)
            )
        except OSError as error:
            self._loop.close()
            raise ConfigError(f"port {port} of rendezvous cannot be used ({error}); choose another") from None
        self._loop.create_task(self._watch())
        self._thread = threading.Thread(target=self._loop.run_forever, name="meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and all connections."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _leave(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = _Node(writer)
        try:
            while True:
                # Python 3.11's wait_for loses a cancellation that comes with a line.
                async with asyncio.timeout(SILENT_S):
                    line = await reader.readline()
                if not line:
                    break
                self._handle(node, json.loads(line))
        except TimeoutError:
            self._drop(node, f"has said nothing for {SILENT_S:g} s")
        except STRANGE as error:
            LOG.debug("a connection to the rendezvous ended: %r", error)
        finally:
            self._drop(node, "is gone")
            writer.close()

    async def _watch(self) -> None:
        """Send signs of life."""
        while True:
            await asyncio.sleep(BEAT_S)
            for node in [*self._nodes.values(), *self._others]:
                self._send(node, {})

    def _handle(self, node: _Node, message: dict[str, Any]) -> None:
        if "hello" in message:
            node.number, node.identity = int(message["hello"]["node"]), str(message["identity"])
            if node.identity == self._gang.identity and 0 <= node.number < self._gang.nodes:
                before = self._nodes.get(node.number)
                if before is not None:
                    before.writer.close()
                    self._drop(before, "was started again")
                self._nodes[node.number] = node
            else:
                self._others.append(node)
        elif "ready" in message:
            node.ready = True
        elif message.get("ended") == self._round and self._nodes.get(node.number) is node:
            end = End(message["end"])
            self._ended.add(node.number)
            if self._running:
                self._end_round(node.number, end, f"node {node.number} {SAID[end]}")
            if len(self._ended) == self._gang.nodes:
                self._judge(End.DONE, "all ranks have ended")
        self._start_if_whole()

    def _start_if_whole(self) -> None:
        missing = [n for n in range(self._gang.nodes) if n not in self._nodes or not self._nodes[n].ready]
        if self._running or missing:
            self._tell(missing)
            return
        self._round, self._running = self._round + 1, True
        self._ended.clear()
        port = self._new_port()
        for node in self._nodes.values():
            node.ready = False
            self._send(node, {"start": self._round, "port": port})

    def _new_port(self) -> int:
        """Free port that no earlier round had: ranks that outlive theirs must not meet the next."""
        while (port := free_ports(1)) in self._ports:
            pass
        self._ports.add(port)
        return port

    def _tell(self, missing: list[int]) -> None:
        """Tell those that wait what they wait for."""
        if self._running:
            said = f"node 0 trains with {self._gang.identity}"
        else:
            numbers = ", ".join(map(str, missing))
            said = f"of {self._gang.identity}, node {numbers} is missing"
        for other in self._others:
            said += f"; node {other.number} is of {other.identity}"
        for node in [*self._nodes.values(), *self._others]:
            if node.ready:
                self._send(node, {"waiting": said})

    def _drop(self, node: _Node, how: str) -> None:
        if node in self._others:
            self._others.remove(node)
        if self._nodes.get(node.number) is node:
            del self._nodes[node.number]
            if self._running:
                self._end_round(node.number, End.GONE, f"node {node.number} {how}")
            if node.number not in self._ended:
                self._judge(End.GONE, f"node {node.number} {how}")
            self._start_if_whole()

    def _end_round(self, number: int, end: End, why: str) -> None:
        self._running = False
        for node in self._nodes.values():
            if node.number != number:
                self._send(node, {"over": self._round, "end": end, "why": why})

    def _judge(self, end: End, why: str) -> None:
        for node in self._nodes.values():
            self._send(node, {"verdict": self._round, "end": end, "why": why})

    def _send(self, node: _Node, message: dict[str, Any]) -> None:
        if not node.writer.is_closing():
            node.writer.write(json.dumps(message).encode() + b"\n")
