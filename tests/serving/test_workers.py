"""Workers of a server: forked, with the memory of their supervisor, and never beside its threads."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from livectr.client.clients import RankClient
from livectr.serving.app import serve_rank
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConfigError
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.processes import ready, server
from tests.waiting import alive, left_s, until

PIPELINE = Path(__file__).parent / "display_pipeline.py"
STARTS_A_THREAD = """
import threading
exec(open({path!r}).read())
threading.Thread(target=threading.Event().wait, name="metrics-of-mine", daemon=True).start()
"""
TORCH_MIB = 100
"""Least of PyTorch's private memory in a process that imports it by itself."""


def test_workers_share_the_memory_of_their_supervisor(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    flags = ["--listen", "127.0.0.1:0", "--workers", "2"]
    with server("rank", redis_url, *flags, begin=subprocess.Popen) as process:
        address, _ = ready(process)
        assert ready(process)[0] == address
        for _ in range(8):  # connections, which the kernel spreads over the workers
            with RankClient(address) as client:
                client.rank({"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]})
        workers = psutil.Process(process.pid).children()
        private = [worker.memory_full_info().uss / 2**20 for worker in workers]
    assert len(private) == 2 and max(private) < TORCH_MIB


def test_a_killed_worker_ends_the_server(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with server("rank", redis_url, "--listen", "127.0.0.1:0", "--workers", "2") as process:
        for _ in range(2):
            ready(process)
        first, second = psutil.Process(process.pid).children()
        first.kill()
        _, stderr = process.communicate(timeout=left_s())
        assert process.returncode != 0 and "worker of the server ended with status -9" in stderr
        assert alive([second]) == []


def test_workers_end_with_a_killed_supervisor(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with server("rank", redis_url, "--listen", "127.0.0.1:0", "--workers", "2") as process:
        for _ in range(2):
            ready(process)
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        until(lambda: not alive(workers))


def test_several_workers_need_a_process_without_threads(redis_url: str, tmp_path: Path) -> None:
    from tests.serving.display_pipeline import pipeline

    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, name="of-mine")
    thread.start()
    try:
        with pytest.raises(ConfigError, match=r"has .*of-mine.*: use `livectr serve --workers`"):
            serve_rank(pipeline, ServeOptions(redis_url, workers=2))
    finally:
        waiting.set()
        thread.join()
    starts = tmp_path / "pipeline.py"
    starts.write_text(STARTS_A_THREAD.format(path=str(PIPELINE)))
    with server("rank", redis_url, "--workers", "2", pipeline=starts) as process:
        _, stderr = process.communicate(timeout=left_s())
    assert process.returncode == 2
    assert "this one has metrics-of-mine" in stderr and "Traceback" not in stderr
