"""Processes of the mixed load, and what is done to them."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.mixed_load.memory import MemoryLog
from bench.rows import row
from livectr.local.parts import Part
from livectr.local.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "examples" / "display_ads" / "pipeline.py"
START_S = 180.0
IMPRESSIONS_PER_S, REQUESTS_PER_S, CONNECTIONS, SERVERS = 300, 40, 200, 2
DECLARED = ("OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED")
"""Codes that a client has to expect of a server in trouble."""
KILL_AT, VERIFY_AT, EMPTY_AT = 0.05, (0.3, 0.45, 0.9), 0.5
"""Shares of the time."""
GROWTH = 1.03


@dataclass(frozen=True)
class Verdict:
    """Replies that `livectr query verify` found to be equal, and to differ."""

    equal: int = 0
    different: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.equal + other.equal, self.different + other.different)


class Cast:
    """All processes, in a folder."""

    def __init__(self, folder: Path, stack: ExitStack, seconds: float) -> None:
        self._folder, self._stack, self._seconds = folder, stack, seconds
        port = free_ports(1 + SERVERS)
        self._redis_address = f"127.0.0.1:{port}"
        self._addresses = [f"127.0.0.1:{port + 1 + i}" for i in range(SERVERS)]
        self._url = f"redis://{self._redis_address}"
        self._logs = f"file:{folder / 'logs'}"
        self._checkpoint = folder / "checkpoint"

    def start(self) -> None:
        """Everything, up to the first version that is served."""
        self._redis = self._start_redis()
        rate, seconds = str(IMPRESSIONS_PER_S), str(self._seconds + START_S)
        self._part("simulator", "logs", "simulate", "--to", self._logs, "--rate", rate, "--seconds", seconds)
        self._part(
            "trainer",
            *("train", "--pipeline", str(PIPELINE), "--source", self._logs, "--publish", self._url),
            *("--checkpoint", str(self._checkpoint), "--set", "start_wait_s=60", "threads=1"),
        )
        self.servers = [self._start_server(address) for address in self._addresses]
        for server in self.servers:
            self._wait_ready(server)

    @property
    def target(self) -> str:
        """Both servers, as gRPC names them."""
        return "ipv4:" + ",".join(self._addresses)

    def kill_a_server(self) -> None:
        """Kill a server, and start it again as Kubernetes would."""
        os.kill(self.servers[0].pid, signal.SIGKILL)
        self.servers[0] = self._start_server(self._addresses[0])

    def empty_redis(self) -> None:
        """Restart Redis, which keeps nothing."""
        self._redis.stop()
        self._redis = self._start_redis()

    def verify(self) -> Verdict:
        """Compare replies with the reference scorer's. Raises PartError when nothing can be said of them."""
        part = self._part(
            "verify",
            *("query", "verify", "--pipeline", str(PIPELINE), "--server", self._addresses[1]),
            *("--redis", self._url),
            *("--checkpoint", str(self._checkpoint), "--requests", "20", "--wait", "90s", "--json"),
        )
        code = part.wait(180.0)
        if code not in (0, 1):
            raise part.failure()
        found = json.loads(part.output().strip().splitlines()[-1])
        verdict = Verdict(int(found["equal"]), int(found["different"]))
        if not verdict.equal + verdict.different:
            raise part.failure()
        return verdict

    def ask(self) -> Part:
        """Start the clients."""
        words = ("-m", "bench.mixed_load.clients", self.target, self._seconds, REQUESTS_PER_S)
        return self._run("clients", *words)

    def _start_server(self, address: str) -> Part:
        return self._part(
            "server",
            *("serve", "recommend", "--pipeline", str(PIPELINE), "--redis", self._url),
            *("--listen", address, "--set", "start_wait_s=60"),
        )

    def _wait_ready(self, server: Part) -> None:
        limit = time.monotonic() + START_S
        while "ready on" not in server.output():
            if server.exit_code is not None or time.monotonic() > limit:
                raise server.failure()
            time.sleep(0.2)

    def _start_redis(self) -> Part:
        return self._part("redis", "local", "redis", "--listen", self._redis_address)

    def _part(self, name: str, *words: str) -> Part:
        return self._run(name, "-m", "livectr", *words)

    def _run(self, name: str, *words: object) -> Part:
        log = self._folder / f"{name}-{time.monotonic_ns()}.log"
        part = Part(name, [sys.executable, *map(str, words)], log)
        self._stack.callback(part.stop)
        return part


def rows(seconds: float) -> list[dict[str, object]]:
    """Play the mixed load for some seconds; raises PartError when a process ends that should not."""
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder, ExitStack() as stack:
        cast = Cast(Path(folder), stack, seconds)
        cast.start()
        clients = cast.ask()
        with MemoryLog(lambda: [server.pid for server in cast.servers]) as memory:
            verdict = _play(cast, clients, seconds)
            growth = memory.mean(0.9, 1.0) / memory.mean(0.1, 0.2)
        replies = json.loads(clients.output().strip().splitlines()[-1])
    return _rows(replies, verdict, growth, seconds)


def _play(cast: Cast, clients: Part, seconds: float) -> Verdict:
    """Make trouble at its times; all verdicts together."""
    started, verdict = time.monotonic(), Verdict()
    acts = [
        (KILL_AT, cast.kill_a_server),
        (EMPTY_AT, cast.empty_redis),
        *((at, cast.verify) for at in VERIFY_AT),
    ]
    for at, act in sorted(acts, key=lambda pair: pair[0]):
        time.sleep(max(0.0, started + at * seconds - time.monotonic()))
        verdict += act() or Verdict()
    if clients.wait(seconds + 120.0):
        raise clients.failure()
    return verdict


def _rows(
    replies: dict[str, Any], verdict: Verdict, growth: float, seconds: float
) -> list[dict[str, object]]:
    codes: dict[str, int] = replies["codes"]
    workload = f"{seconds:.0f} s, {CONNECTIONS} connections, {REQUESTS_PER_S} requests/s, " + ", ".join(
        f"{name} {count:,}" for name, count in sorted(codes.items())
    )
    unexpected = sum(n for name, n in codes.items() if name.split()[1] not in DECLARED)
    failed = sum(n for name, n in codes.items() if name.split()[1] != "OK")
    made: list[dict[str, object]] = [
        {**row(figure, workload, unit, ours), "goal": goal, "met": None if goal is None else ours <= goal}
        for figure, unit, ours, goal in (
            ("replies with another code than declared", "replies", float(unexpected), 0.0),
            ("replies that livectr query verify found to differ", "replies", float(verdict.different), 0.0),
            ("replies that livectr query verify found to be equal", "replies", float(verdict.equal), None),
            ("memory, last tenth beside the second", "ratio", growth, GROWTH),
            ("replies with an error", "replies", float(failed), None),
            ("degraded replies", "replies", float(replies["degraded"]), None),
            ("p50 latency", "ms", replies["p50_ms"], None),
            ("p99 latency", "ms", replies["p99_ms"], None),
        )
    ]
    return made
