"""Meeting point of a gang's nodes: it ends when it is told to, whoever speaks."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from livectr.local.gang import Gang
from livectr.local.gathering import Member
from livectr.local.meeting import Meeting
from livectr.local.ports import free_ports
from tests.waiting import left_s, until


def test_a_node_never_meets_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before node 0 listens, a connection to its port may get that very port as its own, and would answer
    itself for ever, on the port of node 0."""

    def itself(address: tuple[str, int], timeout: float) -> socket.socket:
        link = socket.socket()
        link.settimeout(timeout)
        link.bind(address)
        link.connect(address)
        return link

    member = Member(Gang(2, 1, 1, "", f"127.0.0.1:{free_ports(1)}"))
    with monkeypatch.context() as patch:
        patch.setattr(socket, "create_connection", itself)
        assert member.wait(lambda: False, 0.1) is None
    meeting = Meeting(Gang(2, 0, 1, "", member._gang.rendezvous))
    member.close()
    meeting.close()


@pytest.mark.parametrize("turns", range(8))
def test_it_closes_though_a_line_comes(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that came in the moment of the close kept the meeting, and node 0, for as long as its sender
    spoke. Here it comes some turns of the loop before."""
    gang = Gang(2, 0, 1, "", f"127.0.0.1:{free_ports(1)}")
    meeting = Meeting(gang)
    leave = meeting._leave
    with socket.create_connection(gang.address) as visitor:
        visitor.sendall(json.dumps({"hello": {"node": 1}, "identity": "of another gang"}).encode() + b"\n")
        until(lambda: meeting._others)

        async def leave_after_a_line() -> None:
            visitor.sendall(b"{}\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            await leave()

        monkeypatch.setattr(meeting, "_leave", leave_after_a_line)
        monkeypatch.setattr("livectr.local.meeting.SILENT_S", left_s())
        closing = threading.Thread(target=meeting.close, daemon=True)
        closing.start()
        closing.join(left_s())
        assert not closing.is_alive()


def test_a_round_has_a_port_that_no_earlier_round_had(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([7001, 7001, 7001, 7002])
    meeting = Meeting(Gang(1, 0, 1, "", f"127.0.0.1:{free_ports(1)}"))
    monkeypatch.setattr("livectr.local.meeting.free_ports", lambda n: next(free))
    with socket.create_connection(meeting._gang.address) as supervisor, supervisor.makefile() as told:
        hello = {"hello": {"node": 0}, "identity": meeting._gang.identity}
        started: list[int] = []
        for line in (hello, {"ready": True}):
            supervisor.sendall(json.dumps(line).encode() + b"\n")
        while len(started) < 2:
            message = json.loads(told.readline())
            if "start" in message:
                started.append(message["port"])
                for line in ({"ended": message["start"], "end": "failed"}, {"ready": True}):
                    supervisor.sendall(json.dumps(line).encode() + b"\n")
    meeting.close()
    assert started == [7001, 7002]
