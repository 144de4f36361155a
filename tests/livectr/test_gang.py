"""Supervisors of several nodes, each as in a pod: ranks start and end together, whatever happens."""

from __future__ import annotations

import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from livectr.local.ranks import UNFINISHED
from livectr.local.supervise import LONGEST_PAUSE_OF_A_POD_S, MISTAKE
from tests.livectr.nodes import WAIT_S, Nodes, kill, pids, said, step
from tests.tiers import few
from tests.waiting import left_s, until

Start = Callable[..., Nodes]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Start]:
    made: list[Nodes] = []

    def make(*arguments: object, **flags: object) -> Nodes:
        made.append(Nodes(tmp_path, *arguments, **flags))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for nodes in made:
        nodes.kill()


def test_nodes_start_in_any_order(gang: Start) -> None:
    nodes = gang()
    last = nodes.start(1, ranks=2)
    until(lambda: "waits for node 0" in said(last))
    first = nodes.start(0, ranks=2)
    assert sorted(pids(nodes.train(4))) == [0, 1, 2, 3]
    for process in (first, last):
        assert said(process).count("waits") <= 2, "a wait is said once, not at every try"


def test_any_rank_that_dies_restarts_all_ranks_ten_times_in_a_row(gang: Start) -> None:
    nodes = gang()
    supervisors = [nodes.start(node, ranks=2) for node in range(2)]
    random.seed(1)
    took_s = []
    for kills in range(10):
        life = nodes.train(4, after=kills)
        kill(pids(life)[random.randrange(4)])
        began = time.monotonic()
        nodes.train(4, after=kills + 1)
        took_s.append(time.monotonic() - began)
    assert all(process.poll() is None for process in supervisors)
    print("trained again after", ", ".join(f"{s:.1f} s" for s in took_s))
    assert step(nodes.folder) == 11


def test_ranks_that_fail_at_once_are_started_every_few_seconds_for_ever(gang: Start, tmp_path: Path) -> None:
    """Nobody counts the starts, and the pause between them stays short."""
    before = (
        "starts = len(list(here.glob('try.*'))); (here / f'try.{starts}').touch(); starts < 7 and sys.exit(1)"
    )
    nodes = gang(before)
    short = "import livectr.local.supervise as module; module.LONGEST_PAUSE_OF_A_POD_S = 0.1"
    process = nodes.start(0, 1, patch=short)
    nodes.train(1)
    assert len(list(tmp_path.glob("try.*"))) == 8 and process.poll() is None
    assert LONGEST_PAUSE_OF_A_POD_S < 30


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_told_to_stop_ends_and_the_other_waits_for_it(gang: Start, node: int) -> None:
    nodes = gang()
    supervisors = [nodes.start(number) for number in range(2)]
    for evictions in range(3):
        nodes.train(2, after=evictions)
        supervisors[node].terminate()
        assert supervisors[node].wait(left_s()) == 0
        other = supervisors[1 - node]
        until(lambda other=other: "missing" in said(other) or "waits for node 0" in said(other))  # type: ignore[misc]
        assert other.poll() is None
        supervisors[node] = nodes.start(node)
    nodes.train(2, after=3)
    assert "start again" not in said(supervisors[1 - node]), "an eviction is no failure"


@pytest.mark.parametrize("node", few([0, 1, 2], 0, 2))
def test_evictions_use_no_restarts_up(gang: Start, node: int) -> None:
    """Without `until_stopped`, too, a supervisor that is killed again and again is waited for.

    Its ranks commit at its death, and so do those of the other nodes: a good end is no end of the run.
    """
    nodes = gang(until_stopped=False, restarts=1)
    supervisors = [nodes.start(number, 3) for number in range(3)]
    for evictions in range(3):
        nodes.train(3, after=evictions)
        supervisors[node].kill()
        supervisors[node].wait()
        supervisors[node] = nodes.start(node, 3)
    nodes.train(3, after=3)
    assert "start 1 of 1" not in said(supervisors[(node + 1) % 3])
    supervisors[node].terminate()
    assert [process.wait(left_s()) for process in supervisors] == [0, 0, 0]


@pytest.mark.parametrize("node", [0, 1])
def test_all_nodes_say_that_one_was_stopped_before_the_logs_end(gang: Start, node: int) -> None:
    nodes = gang(until_stopped=False, until_end=True)
    supervisors = [nodes.start(number) for number in range(2)]
    nodes.train(2)
    supervisors[node].terminate()
    assert [process.wait(left_s()) for process in supervisors] == [UNFINISHED, UNFINISHED]


def test_a_killed_supervisor_is_waited_for_before_the_logs_end(gang: Start) -> None:
    """Its ranks commit at its death, as if they had been told to stop; the other node continues waiting."""
    nodes = gang(until_stopped=False, until_end=True)
    supervisors = [nodes.start(number) for number in range(2)]
    nodes.train(2)
    supervisors[1].kill()
    supervisors[1].wait()
    until(lambda: "waiting for it" in said(supervisors[0]))
    supervisors[0].terminate()  # between two rounds, it has not come to the end either
    assert supervisors[0].wait(left_s()) == UNFINISHED


@pytest.mark.parametrize("node", [0, 1])
def test_a_supervisor_that_is_killed(gang: Start, node: int) -> None:
    nodes = gang()
    supervisors = [nodes.start(number) for number in range(2)]
    life = nodes.train(2)
    before = set(pids(life).values())
    supervisors[node].kill()
    # The other supervisor may first notice that its own rank has failed, or has ended with the killed node's.
    over = re.compile(f"node {node} is gone|rank . (ended with|was killed)|all ranks have committed")
    until(lambda: over.search(said(supervisors[1 - node])) is not None)
    nodes.start(node)
    assert not before & set(pids(nodes.train(2, after=1)).values())


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_says_nothing_is_gone(gang: Start, node: int) -> None:
    """As after the loss of a machine or of its network, when no connection is closed."""
    quick = "for module in (gathering, meeting): module.SILENT_S = 2.0"
    nodes = gang()
    supervisors = [nodes.start(number, patch=quick) for number in range(2)]
    nodes.train(2)
    kill(supervisors[node].pid, signal.SIGSTOP)
    until(lambda: "gone" in said(supervisors[1 - node]) or "nothing for" in said(supervisors[1 - node]))
    kill(supervisors[node].pid, signal.SIGCONT)
    nodes.train(2, after=1)


def test_nodes_of_two_generations_never_train_together(gang: Start) -> None:
    """A rolling update replaces one pod after the other, the last first."""
    nodes = gang()
    old = [nodes.start(node, generation="a") for node in range(2)]
    nodes.train(2)
    new_1 = nodes.start(1, generation="b")
    until(lambda: "node 0 trains with" in said(new_1))
    old[1].terminate()
    assert old[1].wait(left_s()) == 0
    until(lambda: "node 1 is of" in said(old[0]) and "generation 'b'" in said(old[0]))
    assert len(nodes.lives()) == 1
    old[0].terminate()
    assert old[0].wait(left_s()) == 0
    nodes.start(0, generation="b")
    nodes.train(2, after=1)
    assert len(nodes.lives()) == 2 and new_1.poll() is None


def test_a_resize_is_commit_stop_and_resume(gang: Start) -> None:
    nodes = gang()
    running = [nodes.start(node, 2) for node in range(2)]
    lives = 1
    nodes.train(2)
    for size in (3, 1, 2):
        newcomers = [nodes.start(node, size) for node in range(len(running), size)]
        for process in reversed(running):
            process.terminate()
            assert process.wait(left_s()) == 0
        running = [nodes.start(node, size) for node in range(min(len(running), size))] + newcomers
        nodes.train(size, after=lives)
        lives += 1
    assert len(nodes.lives()) == lives and step(nodes.folder) == lives


def test_strangers_at_the_rendezvous_change_nothing(gang: Start) -> None:
    nodes = gang()
    supervisors = [nodes.start(node) for node in range(2)]
    nodes.train(2)
    host, _, port = nodes.rendezvous.rpartition(":")
    sent = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"7\n",
        b"[]\n",
        b'{"hello": 1}\n',
        b'{"ended": 1}\n',
        b"\xff" * (1 << 20),
    ]
    for data in sent:
        with socket.create_connection((host, int(port))) as stranger, suppress(OSError):
            stranger.settimeout(WAIT_S)
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass
    nodes.start(5, 2)  # no node of the gang
    time.sleep(1)
    assert len(nodes.lives()) == 1 and all(process.poll() is None for process in supervisors)


def test_a_rendezvous_without_a_name_yet_is_waited_for(gang: Start) -> None:
    nodes = gang()
    nodes.rendezvous = "trainer-0.trainer.invalid:29400"
    process = nodes.start(1)
    until(lambda: "waits for node 0 at trainer-0.trainer.invalid:29400" in said(process))
    process.terminate()
    assert process.wait(left_s()) == 0


def test_a_port_that_is_taken_is_a_sentence(gang: Start) -> None:
    nodes = gang()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(nodes.rendezvous.rpartition(":")[2])))
        taken.listen()
        process = nodes.start(0)
        assert process.wait(left_s()) == 1
    assert "of rendezvous cannot be used" in said(process) and "Traceback" not in said(process)


def test_services_that_are_away_are_waited_for(gang: Start, tmp_path: Path) -> None:
    """Before the first checkpoint, too: pods start in any order."""
    before = "(here / 'kafka').exists() or sys.exit(4)"
    nodes = gang(before)
    supervisors = [nodes.start(node) for node in range(2)]
    until(lambda: all("is not there; trying again" in said(process) for process in supervisors))
    (tmp_path / "kafka").touch()
    nodes.train(2)


def test_a_users_mistake_ends_the_node_that_has_it(gang: Start) -> None:
    nodes = gang("sys.exit(2) if rank == 1 else None")
    supervisors = [nodes.start(node) for node in range(2)]
    assert supervisors[1].wait(left_s()) == MISTAKE
    until(lambda: "node 1 is missing" in said(supervisors[0]))
    assert supervisors[0].poll() is None
