"""Namespaces with limits, ranks in them, the prediction, and rows and page of the network's benchmark.

These tests need root, iproute2 and util-linux, and fail without.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.network import namespaces
from bench.network.compare import AUTO, DMP, MESH, PANELS, link_rows, panel_rows, tables
from bench.network.launch import launch
from bench.network.measure import Found
from bench.network.namespaces import DEVICE, Wires, network
from bench.network.page import page, picture
from bench.network.predict import FRAMING, Line, crossing, measured_crossing
from bench.peers.workloads import P
from livectr.system.errors import ConfigError
from tests.waiting import left_s, until

RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("up", flush=True)
client, _ = server.accept()
received, start = 0, time.perf_counter()
while part := client.recv(1 << 20):
    received += len(part)
print(received, time.perf_counter() - start)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as client:
    client.sendall(bytes(int(sys.argv[2])))
"""
MAKER = """
import time
from bench.network.namespaces import network
with network(1) as wires:
    print(wires, flush=True)
    time.sleep(6000)
"""


def of_the_machine() -> tuple[str, str, str]:
    """Devices, routes and named namespaces outside."""
    words = (["-brief", "link"], ["route"], ["netns", "list"])
    devices, routes, names = (
        subprocess.run(["ip", *word], capture_output=True, text=True, check=True).stdout for word in words
    )
    return devices, routes, names


def spaces() -> set[str]:
    """Network namespaces of all processes."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found.add(str((entry / "ns" / "net").readlink()))
    return found


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """Fails when the machine's own network has changed."""
    before = of_the_machine()
    yield
    assert of_the_machine() == before


def gone(made: set[str]) -> bool:
    """True as soon as no process is in one of these namespaces."""
    until(lambda: not made & spaces(), "the end of the namespaces' processes")
    return True


def space_of(process: int) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def spaces_of(wires: Wires) -> set[str]:
    return {space_of(process) for process in (wires.bridge, *wires.ranks)}


def rate(wires: Wires, size: int) -> float:
    """Gbit/s of `size` bytes from rank 0 to rank 1."""
    program = [sys.executable, "-I", "-S", "-c"]
    address = wires.address(1)
    receiver = subprocess.Popen(
        wires.inside(1, [*program, RECEIVE, address]), stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout and receiver.stdout.readline() == "up\n"
    subprocess.run(wires.inside(0, [*program, SEND, address, str(size)]), check=True)
    received, seconds = receiver.communicate(timeout=left_s())[0].split()
    assert int(received) == size
    return 8e-9 * size / float(seconds)


def reaches(wires: Wires, size: int, least: float, below: float = math.inf) -> None:
    """No transfer is faster than the limit, and one comes near it, however busy the machine is."""

    def near() -> bool:
        found = rate(wires, size)
        assert found < below
        return found > least

    until(near)


@pytest.mark.usefixtures("nothing_stays")
def test_a_limit_bounds_what_a_wire_carries_and_nothing_stays() -> None:
    with network(2) as wires:
        made = spaces_of(wires)
        assert len(made) == 3 and space_of(os.getpid()) not in made
        control = ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]
        assert subprocess.run(wires.inside(1, control), capture_output=True, check=True).stdout == b"reno\n"
        wires.limit(0.1)
        reaches(wires, 4_000_000, 0.05, below=0.1)
        wires.limit(0.2)
        reaches(wires, 8_000_000, 0.1, below=0.2)
        wires.limit(None)
        reaches(wires, 40_000_000, 0.4)
        left = subprocess.Popen(wires.inside(0, ["sleep", "600"]))
        until(lambda: space_of(left.pid) in made)
    assert left.wait(left_s()) == -signal.SIGKILL
    assert not made & spaces()


@pytest.mark.usefixtures("nothing_stays")
def test_what_a_rank_receives_is_bounded_too() -> None:
    with network(2) as wires:
        wires.limit(0.1)
        egress = ["tc", "qdisc", "replace", "dev", DEVICE, "root", "noqueue"]
        subprocess.run(wires.inside(0, egress), check=True)
        reaches(wires, 4_000_000, 0.05, below=0.1)


@pytest.mark.usefixtures("nothing_stays")
def test_a_failure_and_ctrl_c_remove_the_network() -> None:
    for error in (RuntimeError, KeyboardInterrupt):
        made: set[str] = set()
        with pytest.raises(error), network(1) as wires:
            made |= spaces_of(wires)
            raise error
        assert made and not made & spaces()


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_killed_benchmark_leaves_no_network(number: signal.Signals) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True)
    assert maker.stdout
    made = spaces_of(Wires.parse(maker.stdout.readline()))
    assert made <= spaces()
    maker.send_signal(number)
    maker.communicate(timeout=left_s())
    assert gone(made)


def test_who_has_no_rights_or_programs_reads_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as user:
        user.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(ConfigError, match="bench network needs root"), network(1):
            pass
    monkeypatch.setattr(namespaces, "PATH", "/nowhere")
    with pytest.raises(ConfigError, match="Debian packages iproute2, util-linux; install them"), network(1):
        pass


@pytest.mark.full
@pytest.mark.usefixtures("nothing_stays")
def test_ranks_train_in_namespaces_and_count_their_bytes() -> None:
    point = json.dumps([{"n": 2, "b": 64, "f": 4, "k": 4}])
    with network(2) as wires:
        wires.limit(0.1)
        found = launch(wires, "bench.scaling", point)
        with pytest.raises(RuntimeError, match=r"(?s)rank \d of 2 ended with .*No module named bench\.none"):
            launch(wires, "bench.none")
        counters = subprocess.run(
            wires.inside(1, ["cat", "/proc/net/dev"]), capture_output=True, text=True, check=True
        )
    assert [one["field_exchange"] for one in found] == ["partial", "vectors", "rows"]
    sent = sum(sum(one["bytes"].values()) for one in found)
    (through,) = re.findall(rf"{DEVICE}: *(\d+)", counters.stdout)
    assert int(through) > sent > 0


def test_the_prediction_adds_the_wire_to_computing() -> None:
    line = Line(computing=0.05, sent=1448e3)
    assert FRAMING == 1514 / 1448
    assert line.seconds(None) == 0.05
    assert line.seconds(1.0) == pytest.approx(0.05 + 1514e3 * 8 / 1e9)
    assert line.seconds(0.5) == pytest.approx(0.05 + 2 * 1514e3 * 8 / 1e9)
    assert line.on_cores(0.5).seconds(1.0) == pytest.approx(0.025 + 1514e3 * 8 / 1e9)


def test_predicted_and_measured_crossings() -> None:
    light, heavy = Line(0.06, 1e6), Line(0.04, 4e6)
    at = crossing(light, heavy)
    assert at is not None and light.seconds(at) == pytest.approx(heavy.seconds(at))
    assert light.seconds(at / 2) < heavy.seconds(at / 2) and light.seconds(2 * at) > heavy.seconds(2 * at)
    assert crossing(heavy, light) == pytest.approx(at)
    assert crossing(light, Line(0.07, 4e6)) is None and crossing(light, Line(0.06, 4e6)) is None
    gbits = (0.5, 1.0, 2.5, 10.0, None)
    measured = measured_crossing(
        {gbit: light.seconds(gbit) for gbit in gbits}, {gbit: heavy.seconds(gbit) for gbit in gbits}
    )
    assert measured == pytest.approx(at)  # seconds are linear in 1 / bandwidth
    assert measured_crossing({None: 1.0, 1.0: 2.0}, {None: 2.0, 1.0: 3.0}) is None
    assert measured_crossing({None: 1.0, 1.0: 2.0}, {None: 1.0, 1.0: 3.0}) == float("inf")


def found(seconds: float, sent: float, contestant: str) -> list[Found]:
    line = Line(seconds, sent)
    ours = {"sum": (sent / 2, seconds / 4)} if contestant == AUTO else {}
    return [
        Found(contestant, gbit, line.seconds(gbit), sent, 2 * sent, ours) for gbit in (0.5, 1.0, 10.0, None)
    ]


def example() -> dict[str, list[Found]]:
    peers = [one for i, name in enumerate(DMP) for one in found(0.05, (4 + 4 * i) * 1e6, name)]
    mesh = found(0.4, 10e6, AUTO) + found(0.6, 20e6, MESH)
    return {"P": found(0.06, 1e6, AUTO) + peers, "W&D": mesh}


def test_rows_have_predictions_and_goals() -> None:
    rows = {(row["figure"], row["peer_name"]): row for row in panel_rows("P", example()["P"])}
    predicted = rows[f"{AUTO} at 1 Gbit/s", "predicted"]
    assert predicted["ratio"] == pytest.approx(1.0)
    assert predicted["ours"] == pytest.approx(P.batch / Line(0.06, 1e6).seconds(1.0))
    table_wise, row_wise = (rows[f"training at 1 Gbit/s, {AUTO}", name] for name in DMP)
    assert table_wise["goal"] == 2.0 and table_wise["met"] is False
    assert table_wise["ratio"] == pytest.approx(Line(0.05, 4e6).seconds(1.0) / Line(0.06, 1e6).seconds(1.0))
    assert row_wise["ratio"] == pytest.approx(Line(0.05, 8e6).seconds(1.0) / Line(0.06, 1e6).seconds(1.0))
    assert rows[f"{AUTO}: busiest wire", None]["ours"] == 1.0
    assert rows[f"{AUTO}: `sum`, rank 0", None]["ours"] == 0.5
    (mesh,) = [row for row in panel_rows("W&D", example()["W&D"]) if row["goal"]]
    assert mesh["goal"] == 4.52 and mesh["peer_name"] == MESH
    limited, free = link_rows({"0.5": 0.47, "None": 9.0})
    assert limited["peer"] == 0.5 and free["peer"] is None


def test_tables_say_between_which_ratios_a_goal_lies() -> None:
    shown = {table["title"].split(",")[0]: table["lines"] for table in tables(example())}
    header, table_wise, *_ = shown["Goals"]
    assert header[3:5] == ["computing", "bytes"]
    assert table_wise[:5] == ["P", "TorchRec DMP table-wise", "2", "0.83", "4.00"]
    at = crossing(Line(0.06, 1e6), Line(0.05, 4e6))
    assert at is not None
    assert ["P", AUTO, "TorchRec DMP table-wise", f"{at:.2g}", f"{at:.2g}"] in shown["Crossing points"]
    assert all(len(line) == len(lines[0]) for lines in shown.values() for line in lines)


def test_the_page_shows_tables_and_picture() -> None:
    measured = example()
    rows = [row for panel, one in measured.items() for row in panel_rows(panel, one)]
    result = {
        "commit": "abc",
        "hardware": {"cores": 2, "processor": "a CPU"},
        "rows": rows,
        "tables": tables(measured),
    }
    text = page("before\n<!-- network -->\nold\n<!-- end of network -->\nafter", result)
    assert text.startswith("before\n<!-- network -->\n\nCommit `abc`, 2 cores of a CPU.")
    assert text.endswith("<!-- end of network -->\nafter") and "old" not in text
    assert f"| {AUTO} | 1.00 | 60 |" in text
    assert page(text, result) == text
    drawn = picture(result)
    assert drawn.count("<circle") == 4 * (len(DMP) + 1) + 4 * 2 + 3  # dots, and three colours of the legend
    assert ">W&amp;D, samples/s<" in drawn and "TorchRec DMP table-wise / mesh, synchronous" in drawn


def test_panels_have_the_papers_goals() -> None:
    goals = {panel: set(of.goals.values()) for panel, of in PANELS.items()}
    assert goals == {"P": {2.0}, "W": {1.8}, "LR": {1.55}, "W&D": {4.52}, "DeepFM": {3.91}}
