"""Local servers outlive a stall, and no process outlives a kill -9 of its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from livectr.local.ports import free_ports
from livectr.system.children import with_parent
from tests.trainer.ad_logs import write_files
from tests.waiting import alive, until

ROOT = Path(__file__).parents[2]
LIVECTR = [sys.executable, "-m", "livectr"]
STALL_S = 3.0
PIPELINE = "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Command, whose processes are all gone at the end."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    family: list[psutil.Process] = []
    try:
        yield process
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    finally:
        for one in (process, *family):
            one.kill()
        process.communicate()


def killed_alone(process: subprocess.Popen[str], children: int) -> None:
    """Kill the process with SIGKILL when it has this number of descendants; they end by themselves."""
    parent = psutil.Process(process.pid)
    until(lambda: len(parent.children(recursive=True)) >= children)
    family = parent.children(recursive=True)
    process.kill()
    try:
        until(lambda: not alive(family))
    finally:
        for one in alive(family):
            one.kill()


def test_a_local_server_starts_without_a_fork() -> None:
    """A fork runs the hooks of gRPC and others in the child, which hang or crash beside their threads."""
    code = (
        "import os\nfrom livectr.local.ports import free_ports\nfrom livectr.local.valkey import LocalRedis\n"
        "os.register_at_fork(before=lambda: print('forked'))\n"
        "with LocalRedis(f'127.0.0.1:{free_ports(1)}'): print('answers')"
    )
    with running([sys.executable, "-c", code]) as process:
        assert process.stdout and process.stdout.read().split() == ["answers"]


def test_a_bound_child_has_the_signals_of_any_child() -> None:
    """Python ignores SIGPIPE; a program that it starts must not."""
    for name, number in (("PIPE", signal.SIGPIPE), ("INT", signal.SIGINT)):
        done = subprocess.run(with_parent(["sh", "-c", f"kill -{name} $$; echo survived"]))
        assert done.returncode == -number


def test_a_bound_program_that_is_missing_says_so() -> None:
    done = subprocess.run(with_parent(["livectr-missing"]), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "livectr-missing cannot be started: No such file or directory"


def test_a_local_redis_that_stalls_keeps_its_data() -> None:
    port = free_ports(1)
    with running([*LIVECTR, "local", "redis", "--listen", f"127.0.0.1:{port}"]) as process:
        assert process.stdout and "answers at" in process.stdout.readline()
        client = redis.Redis(port=port)
        client.set("key", "value")
        (server,) = psutil.Process(process.pid).children()
        server.send_signal(signal.SIGSTOP)
        time.sleep(STALL_S)
        server.send_signal(signal.SIGCONT)
        assert client.get("key") == b"value"
        assert client.info("server")["process_id"] == server.pid
        time.sleep(1.5)
        assert process.poll() is None and client.get("key") == b"value"


@pytest.mark.parametrize("command", ["redis", "kafka"])
def test_a_local_server_ends_with_its_command(command: str) -> None:
    with running([*LIVECTR, "local", command, "--listen", f"127.0.0.1:{free_ports(1)}"]) as process:
        assert process.stdout and "answers at" in process.stdout.readline()
        killed_alone(process, 1)


def test_workers_end_with_their_server(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    serve = ["serve", "rank", "--workers", "2", "--pipeline", str(tmp_path / "pipeline.py")]
    with running([*LIVECTR, *serve, "--redis", f"{redis_url}/7"]) as process:
        killed_alone(process, 2)


def test_ranks_end_with_the_agent_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2"]
    train = ["train", "--pipeline", str(tmp_path / "pipeline.py"), "--set", "batch_size=64"]
    train += ["--source", write_files(tmp_path / "logs", 300), "--checkpoint", str(tmp_path / "checkpoint")]
    with running([sys.executable, *torchrun, "-m", "livectr", *train]) as process:
        until(lambda: list((tmp_path / "checkpoint").glob("gen-*/MANIFEST.json")))
        killed_alone(process, 2)


def test_parts_of_a_demo_end_with_it(tmp_path: Path) -> None:
    """The simulator and the clients; the servers and the trainer's ranks are above and in test_supervise."""
    simulate = [*LIVECTR, "logs", "simulate", "--to", f"file:{tmp_path / 'logs'}", "--seconds", "600"]
    load = [sys.executable, "-m", "livectr.demo.load", "--per-second", "1"]
    load += ["--rank", "127.0.0.1:1", "--prerank", "127.0.0.1:1"]
    parent = (
        "import time\nfrom pathlib import Path\nfrom livectr.local.parts import Part\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        f"parts = [Part('part', command, log) for command in {[simulate, load]!r}]\n"
        "time.sleep(6000)"
    )
    with running([sys.executable, "-c", parent]) as process:
        until(lambda: (tmp_path / "logs").exists())
        killed_alone(process, 2)
