"""Parts of `livectr bench serving`: the search of an open loop, private pages, flame graphs, goals."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.flames import flame
from bench.rows import bounded
from bench.serving import load, profile
from bench.serving.open_loop import Search
from bench.serving.private_pages import MIB, private_mib
from bench.serving.requests import CANDIDATES, requests


@pytest.mark.parametrize("limit", [3.0, 137.0, 200.0, 5_000.0])
def test_the_search_finds_the_greatest_rate(limit: float) -> None:
    search = Search(first=200.0)
    for _ in range(24):
        search.tell(search.rate <= limit)
    assert math.isclose(search.best, limit, rel_tol=0.01) and search.best <= limit


def test_a_search_that_never_succeeds_says_so() -> None:
    search = Search(first=200.0)
    for _ in range(5):
        search.tell(False)
    assert search.best == 0


def test_private_pages_add_up_to_the_unique_set() -> None:
    array = bytearray(b"x") * (64 * MIB)  # touched: its pages are private
    kinds = private_mib()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    unique = sum(int(kb) for kb in re.findall(r"Private_(?:Clean|Dirty): +(\d+) kB", rollup)) / 1024
    assert sum(kinds.values()) == pytest.approx(unique, rel=0.02)
    assert kinds["heap"] + kinds["other"] >= len(array) / MIB


FOLDED = """\
_bootstrap (threading.py:1);_unary_response_in_pool (grpc/_server.py:5);rank (livectr/serving/rank.py:9) 30
_bootstrap (threading.py:1);_unary_response_in_pool (grpc/_server.py:5);dumps (json/<x>.py:1) 10
_bootstrap (threading.py:1);select (selectors.py:3) 500
"""


def test_a_flame_graph_shows_requests_alone() -> None:
    root = flame.tree(FOLDED, profile.ENTRY)
    assert root.samples == 40
    picture = flame.svg(root, "title")
    shown = re.findall(r"<title>(.*?), ([\d.]+) %</title>", picture)
    assert shown == [
        ("all", "100.0"),
        ("_unary_response_in_pool grpc/_server.py", "100.0"),
        ("dumps json/&lt;x&gt;.py", "25.0"),
        ("rank serving/rank.py", "75.0"),
    ]
    assert flame.COLOURS["LiveCTR"] in picture


NATIVE = (
    "0x7f (libc.so.6);DesStep.step (livectr/trainer/des/step.py:1);0x7e (libffi.so.8);"
    f"livectr::product::rows<livectr::Singles, void (int)> ({'0a' * 32}.so);THPEngine_run (libtorch.so);"
    "at::native::add<float> (libtorch_cpu.so) 7\nselect (selectors.py:3) 5\n"
)


def test_a_flame_graph_of_native_code_has_no_glue() -> None:
    picture = flame.svg(flame.tree(NATIVE, "DesStep."), "title")
    assert re.findall(r"<title>(.*?), ([\d.]+) %</title>", picture) == [
        ("all", "100.0"),
        ("DesStep.step trainer/des/step.py", "100.0"),
        ("livectr::product::rows", "100.0"),
        ("at::native::add libtorch_cpu.so", "100.0"),
    ]
    assert flame.COLOURS["its kernels"] in picture


@pytest.mark.parametrize(
    ("ours", "better", "met"), [(1.2, "less", True), (1.4, "less", False), (1.2, "more", False)]
)
def test_a_goal_without_a_peer_bounds_the_figure(ours: float, better: str, met: bool) -> None:
    row = bounded("p50", "w", "ms", ours, goal=1.3, better=better)  # type: ignore[arg-type]
    assert row["met"] is met and row["ratio"] is None


class Hasty(BaseHTTPRequestHandler):
    """Server that closes a connection after a short time without a request."""

    protocol_version, timeout = "HTTP/1.1", 0.3

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"index": list(range(CANDIDATES)), "pctr": [0.5] * CANDIDATES}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_connection_that_the_server_closed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the turn of the others takes longer than a server keeps a connection."""
    monkeypatch.setattr(load, "IDLE_S", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hasty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ask = load.http_client(f"127.0.0.1:{server.server_port}")
            for request in requests(3, seed=1):
                assert ask(request)[1].tolist() == [0.5] * CANDIDATES
                time.sleep(0.6)
        finally:
            server.shutdown()
            thread.join()
