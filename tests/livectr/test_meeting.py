"""The meeting point of a gang ends at once, whatever its visitors send meanwhile."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from livectr.local.gang import Gang
from livectr.local.meeting import Meeting
from livectr.local.ports import free_ports
from tests.waiting import left_s

CLOSES = 40


def test_it_closes_while_visitors_speak() -> None:
    """A line that came in the moment of the close kept the meeting, and node 0, for as long as its sender
    spoke."""
    for _ in range(CLOSES):
        gang = Gang(2, 0, 1, "", f"127.0.0.1:{free_ports(1)}")
        meeting = Meeting(gang)
        over = threading.Event()

        def speak(visitor: socket.socket, over: threading.Event = over) -> None:
            with visitor, suppress(OSError):
                while not over.is_set():
                    visitor.sendall(b"{}\n")

        visitors = [
            threading.Thread(target=speak, args=[socket.create_connection(gang.address)]) for _ in range(3)
        ]
        for visitor in visitors:
            visitor.start()
        closing = threading.Thread(target=meeting.close, daemon=True)
        closing.start()
        closing.join(left_s())
        hung = closing.is_alive()
        over.set()
        for visitor in visitors:
            visitor.join()
        assert not hung
