"""Processes of the resizes, and their times."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import redis

from bench.resize.log import ADS, RATE, Log, Traffic
from bench.rows import bounded
from bench.serving.process import serving
from livectr.client.clients import RankClient
from livectr.local.kafka import Broker
from livectr.local.parts import Part, PartError, descendants
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.manifest import newest_manifest

PIPELINE = Path(__file__).with_name("pipeline.py")
RANKS = (1, 3, 2, 1)
GOAL_S = 30.0
START_S, END_S = 240.0, 120.0
SETTLED_S = 5.0
"""Traffic between two resizes."""
ASK_S, POLL_S = 0.05, 0.05
NO_RETRIES = (("grpc.service_config", "{}"),)


@dataclass(frozen=True)
class Resize:
    """Seconds from SIGTERM.

    Args:
        before, after: ranks.
        ended_s: until the former ranks have committed, published and ended.
        published_s: until a version that the new ranks have trained is in Redis.
        served_s: until a reply has it.
        cpu_s: CPU seconds of the new ranks and their supervisor until then.
    """

    before: int
    after: int
    ended_s: float
    published_s: float
    served_s: float
    cpu_s: float


@dataclass(frozen=True)
class Played:
    """Figures of a run.

    Args:
        rows, users: of the tables at the end, and of the look-up table.
        answered, failed: requests, as `Asking` counts them.
    """

    resizes: tuple[Resize, ...]
    rows: int
    users: int
    answered: int
    failed: Mapping[str, int]


class Asking:
    """Client of a rank server, without retries, while this is entered.

    Attributes:
        answered: requests that got a reply.
        failed: requests by the code of their error, and replies by the reason for which they are degraded.
        version: of the newest reply.
    """

    def __init__(self, address: str, users: int) -> None:
        self._users = users
        self._client = RankClient(address, options=NO_RETRIES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="asking")
        self.answered = self.version = 0
        self.failed: Counter[str] = Counter()

    def _ask(self) -> None:
        number = 0
        while not self._stop.wait(ASK_S):
            number += 1
            context = {
                "user_id": number % self._users,
                "ts": int(time.time() * 1000),
                "words": [number, 7 * number],
            }
            try:
                reply = self._client.rank(context, {"ad_id": [(number + i) % ADS for i in range(100)]})
            except grpc.RpcError as error:
                self.failed[error.code().name] += 1
                continue
            if reply.degraded:
                self.failed[reply.degraded_reason] += 1
            self.answered += 1
            self.version = reply.version

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


class Cast:
    """All processes, in a folder."""

    def __init__(self, folder: Path, stack: ExitStack, rows: int) -> None:
        self._folder, self._stack, self._least_rows = folder, stack, rows
        self._checkpoint = folder / "checkpoint"
        self._broker = stack.enter_context(Broker(data_dir=folder / "kafka"))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        self._url = server.url
        self._redis = stack.enter_context(redis.Redis.from_url(self._url))
        self._seen: tuple[object, VersionManifest | None] = (None, None)
        self.rows = self.users = 0

    def run(self, ranks: Sequence[int]) -> tuple[list[Resize], Asking]:
        """Fill the tables, start the server and the traffic, resize."""
        log = Log(self._broker.url, self._least_rows)
        self._stack.callback(log.close)
        log.fill()
        self._stack.enter_context(Traffic(log))
        trainer = self._start(ranks[0])
        self._until(trainer, lambda: self._published_rows() >= self._least_rows)
        address = self._stack.enter_context(serving("rank", self._url, str(PIPELINE)))
        asking = self._stack.enter_context(Asking(address, log.users))
        self.users = log.users
        found = []
        for before, after in pairwise(ranks):
            time.sleep(SETTLED_S)
            resize, trainer = self._resize(trainer, asking, before, after)
            found.append(resize)
        self.rows = self._published_rows()
        return found, asking

    def _resize(self, former: Part, asking: Asking, before: int, after: int) -> tuple[Resize, Part]:
        began = time.monotonic()
        os.kill(former.pid, signal.SIGTERM)
        if former.wait(END_S):
            raise former.failure()
        ended_s = time.monotonic() - began
        kept = newest_manifest(self._checkpoint)
        assert kept is not None and kept.world == before
        trainer = self._start(after)
        version = 0

        def published() -> bool:
            nonlocal version
            held = self._held()
            if held is not None and held.world == after and held.step > kept.step:
                version = held.version
            return version > 0

        self._until(trainer, published)
        published_s = time.monotonic() - began
        self._until(trainer, lambda: asking.version >= version)
        served_s = time.monotonic() - began
        return Resize(before, after, ended_s, published_s, served_s, _cpu_s(trainer.pid)), trainer

    def _start(self, ranks: int) -> Part:
        part = Part(
            f"trainer of {ranks} ranks",
            [
                *(sys.executable, "-m", "livectr", "train", "--pipeline", str(PIPELINE)),
                *(
                    "--source",
                    self._broker.url,
                    "--ranks",
                    str(ranks),
                    "--set",
                    "until_stopped=true",
                    "threads=1",
                ),
                *("--checkpoint", str(self._checkpoint), "--publish", self._url),
            ],
            self._folder / f"trainer-{time.monotonic_ns()}.log",
        )
        self._stack.callback(part.stop)
        return part

    def _held(self) -> VersionManifest | None:
        """Version in Redis; a text is parsed once."""
        text = self._redis.get(Keyspace().manifest)
        if text is not None and text != self._seen[0]:
            self._seen = text, VersionManifest.from_json(text)
        return self._seen[1]

    def _published_rows(self) -> int:
        held = self._held()
        return 0 if held is None else sum(held.tables.values())

    def _until(self, trainer: Part, done: Callable[[], bool]) -> None:
        """Wait. Raises PartError when the trainer ends, or after START_S."""
        limit = time.monotonic() + START_S
        while not done():
            trainer.check()
            if time.monotonic() > limit:
                raise PartError(f"the {trainer.name} is too slow; its log ends:\n{trainer.tail()}")
            time.sleep(POLL_S)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process, its descendants, and children that have ended."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):  # it ended meanwhile
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")


def play(rows: int, ranks: Sequence[int] = RANKS) -> Played:
    """Resize a trainer from one of `ranks` to the next. Raises PartError: a process ended that should not.

    Args:
        rows: least rows of its tables.
    """
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder, ExitStack() as stack:
        cast = Cast(Path(folder), stack, rows)
        found, asking = cast.run(ranks)
    return Played(tuple(found), cast.rows, cast.users, asking.answered, asking.failed)


def report(found: Played) -> dict[str, object]:
    """Result of the benchmark."""
    workload = f"{found.rows:,} rows and {found.users:,} look-up rows, {RATE} impressions/s"
    rows, lines = [], []
    for one in found.resizes:
        name = f"{one.before} → {one.after} ranks"
        rows.append(bounded(f"SIGTERM to served, {name}", workload, "s", one.served_s, goal=GOAL_S))
        spent_s = one.ended_s, one.published_s, one.served_s, one.cpu_s
        lines.append([name, *(f"{s:.1f}" for s in spent_s)])
    asked = f"{found.answered:,} requests, without retries"
    asked += "".join(f"; {number} {why}" for why, number in found.failed.items())
    failed = sum(found.failed.values())
    rows.append(bounded("requests that failed or are degraded", asked, "requests", failed, goal=0.0))
    return {
        "rows": rows,
        "tables": [
            {
                "title": "Course of a resize, seconds from SIGTERM",
                "lines": [
                    ["ranks", "former ranks ended", "version of the new ranks in Redis", "served"],
                    *lines,
                ],
                "note": "former ranks commit and publish before they end; CPU of the new ranks, until served",
            }
        ],
    }
