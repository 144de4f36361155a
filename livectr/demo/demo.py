"""`livectr demo`: all processes on one machine, and a report that compares what was written and learned.

    simulator ─► log (files or Kafka) ─► trainer (N ranks) ─► Redis ─► rank, pre-rank ◄─ clients

    1  Redis-protocol server, broker
    2  simulator, which writes the look-up tables and waits
    3  trainer, which publishes its initial model, and servers, side by side; clients once these are ready
    4  the traffic, for `seconds`
    5  the simulator ends; the trainer learns the rest, commits, ends; the servers load the last version
    6  clients and servers end; the ledger is compared with the log of predictions

Each part is a process of its own and is stopped by its pid, also after a failure or Ctrl-C.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from livectr.demo.live import Screen, State
from livectr.demo.prometheus import Target, command, directions, is_ready, prometheus_program
from livectr.demo.report import account, last_json_line, report
from livectr.demo.stopping import stoppable
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.local.parts import Part, PartError
from livectr.local.ports import free_ports
from livectr.local.scrape import quantile, scrape
from livectr.simulator.ledger import SCHEMA, LedgerTail
from livectr.simulator.traffic import TICK_MS
from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.system.errors import ConfigError
from livectr.system.scratch import scratch
from livectr.trainer.quality.metrics import auc
from livectr.trainer.quality.predictions import read_predictions

LOG = logging.getLogger(__name__)
PIPELINE = Path(__file__).resolve().parents[1] / "examples" / "display_ads" / "pipeline.py"
PARTITIONS = 4
USERS = 2000
ADS = 500  # alive at a time
AD_INTERVAL_S, AD_LIFE = 5, 15  # a simulated minute stands for a day: an ad lives little longer
DRIFT_S = 600
VISITS_PER_S = 20
START_S, DRAIN_S, SWAP_S = 600.0, 180.0, 20.0  # how long a part may take to start, drain, follow
FETCH_S = 600.0  # the broker's first start fetches its jars
UNTIL_IDLE_S = 6.0
WINDOW_S = 30  # of the quality that the live table shows
WATCHED_WINDOW_S = 120  # an alert on quality needs 10,000 examples and 1,000 clicks
RESTARTS = 3
WATCH_S = 10 * 365 * 86_400.0
"""Traffic of a demo that is watched: nobody waits for its end."""
BAYES_EVERY_S = 2.0


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo.

    Args:
        seconds: length of the traffic.
        log: "file" or "kafka".
        ranks: processes that train.
        rate: impressions per second.
        keep: folder to work in and to keep; None: a temporary folder.
        report: file of the report.
        watch: traffic continues until Ctrl-C, with a Prometheus beside it; there is no report.
        rules: file of Prometheus' rules, with `watch`; None: those of the repository.
    """

    seconds: float = 60.0
    log: str = "file"
    ranks: int = 1
    rate: float = 2000.0
    seed: int = 1
    pipeline: str | None = None
    keep: Path | None = None
    report: Path | None = None
    watch: bool = False
    rules: Path | None = None


def demo(options: DemoOptions) -> dict[str, Any]:
    """Run the demo and return its report. Raises PartError when a part fails, ConfigError, ConnectError.

    With `watch` it ends by KeyboardInterrupt.
    """
    pipeline = Path(options.pipeline or PIPELINE)
    if not pipeline.is_file():
        raise ConfigError(
            f"the demo's pipeline {pipeline} is not there; run it in a checkout, or say --pipeline."
        )
    loaded = load_pipeline(pipeline)
    if loaded.log.clicks is None:
        raise ConfigError(f"{pipeline} joins no clicks; the demo's logs are impressions and clicks.")
    if options.watch:
        prometheus_program()
    with ExitStack() as stack:
        work = _folder(options.keep, stack)
        check = stack.enter_context(stoppable())
        summary = _Demo(options, pipeline, loaded, work, stack, check).run()
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _folder(keep: Path | None, stack: ExitStack) -> Path:
    if keep is None:
        return stack.enter_context(scratch("demo"))
    if keep.exists() and any(keep.iterdir()):
        raise ConfigError(f"the folder {keep} is not empty; a demo starts afresh.")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.absolute()


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        pipeline: Path,
        loaded: Pipeline,
        work: Path,
        stack: ExitStack,
        check: Callable[[], None],
    ) -> None:
        self.options, self.pipeline, self.work = options, pipeline, work
        self.window_ms = loaded.log.window_ms
        self._stack, self._check_stop = stack, check
        self._parts: list[Part] = []
        port = free_ports(7 + options.ranks)
        self.redis_port, self.broker_port = port, port + 4
        self.servers = {"rank": port + 1, "prerank": port + 2}
        self.trainer_metrics = port + 7  # rank r answers at port + r
        self.server_metrics = {"rank": port + 3, "prerank": port + 5}
        self.prometheus_port = port + 6
        self.redis_url = f"redis://127.0.0.1:{self.redis_port}"
        self.ledger, self.predictions = work / "ledger.arrows", work / "predictions"
        self.restarts = 0
        self._seconds = WATCH_S if options.watch else options.seconds
        self._window_s = WATCHED_WINDOW_S if options.watch else WINDOW_S
        self.state = State(seconds=self._seconds, shadow=next(iter(loaded.shadows), ""))
        self._next_bayes = 0.0
        self._ledger_tail = LedgerTail(self.ledger)
        self._newest: list[pa.RecordBatch] = []  # of the ledger, one a tick

    def run(self) -> dict[str, Any]:
        options = self.options
        title = f"LiveCTR demo: {options.log} log, {options.ranks} rank{'s' * (options.ranks > 1)}"
        with Screen(title) as screen:
            self._start_redis()
            self.source = self._start_log()
            simulator = self._start_simulator()
            self.trainer = self._start_trainer()
            servers = {role: self._start_server(role) for role in self.servers}
            for role, server in servers.items():
                self._until(server.name, START_S, partial(_ready, server))
                screen.say(f"{role} server ready on 127.0.0.1:{self.servers[role]}")
            clients = self._start_clients()
            if options.watch:
                self._start_prometheus(screen.say)
            simulator.say("go")
            began = time.monotonic()
            while simulator.exit_code is None:
                self._watch(simulator)
                self._look(began, simulator, clients)
                screen.show(self.state)
                time.sleep(0.25)
            simulated = last_json_line(simulator.tail())
            screen.say("The traffic has ended; the trainer learns what is left.")
            deadline = time.monotonic() + DRAIN_S
            while self.trainer.exit_code is None:
                self._watch(simulator)
                if time.monotonic() > deadline:
                    raise PartError(f"the trainer does not end:\n{self.trainer.tail()}")
                self._look(began, simulator, clients)
                screen.show(self.state)
                time.sleep(0.25)
            if self.trainer.exit_code:
                raise self.trainer.failure()
            for ended in (simulator, self.trainer):  # as they should
                self._parts.remove(ended)
            version = self._published()
            self._until("clients", SWAP_S, lambda: self._served(clients) >= version)
            fresh = scrape(self.server_metrics["rank"])
            clients.stop()
            for server in servers.values():
                server.stop()
            summary = self._report(simulated, clients, fresh)
            screen.conclude(summary)
            return summary

    # Parts

    def _part(self, name: str, *command: str, environment: dict[str, str] | None = None) -> Part:
        log = self.work / f"{name.replace(' ', '-')}.log"
        part = Part(name, command, log, environment=environment)
        self._stack.callback(part.stop)
        self._parts.append(part)
        return part

    def _livectr(self, name: str, *arguments: str) -> Part:
        return self._part(name, sys.executable, "-m", "livectr", *arguments)

    def _start_redis(self) -> None:
        self._livectr("Redis server", "local", "redis", "--listen", f"127.0.0.1:{self.redis_port}")
        client = redis.Redis.from_url(self.redis_url)
        self._stack.callback(client.close)
        self.redis: Any = client
        self._until("Redis server", START_S, lambda: _answers(client))

    def _start_log(self) -> str:
        if self.options.log == "file":
            return f"file:{self.work / 'logs'}"
        broker = self._livectr(
            "broker",
            *("local", "kafka", "--listen", f"127.0.0.1:{self.broker_port}"),
            *("--data", str(self.work / "kafka")),
        )
        self._until("broker", FETCH_S, lambda: "answers at" in broker.output())
        return f"kafka://127.0.0.1:{self.broker_port}"

    def _start_simulator(self) -> Part:
        o = self.options
        part = self._livectr(
            "simulator",
            *("logs", "simulate", "--to", self.source, "--wait-for-start", "--ledger", str(self.ledger)),
            *("--rate", str(o.rate), "--seconds", str(self._seconds), "--seed", str(o.seed)),
            *("--label-window", f"{self.window_ms}ms", "--partitions", str(PARTITIONS)),
            *("--users", str(USERS), "--drift", str(DRIFT_S)),
            *("--ads", str(ADS), "--ad-interval", str(AD_INTERVAL_S), "--ad-life", str(AD_LIFE)),
        )
        self._until("simulator", START_S, lambda: "ready" in last_json_line(part.tail()))
        return part

    def _start_trainer(self) -> Part:
        # A watched demo has no end of its own: a laptop that sleeps, or is busy, makes a quiet log.
        end = () if self.options.watch else ("--set", f"until_idle_s={UNTIL_IDLE_S}")
        return self._livectr(
            "trainer",
            *("train", "--pipeline", str(self.pipeline), "--source", self.source),
            *("--ranks", str(self.options.ranks)),
            # Clients ask from the first second on, so that they see the model begin to learn.
            *("--publish", self.redis_url, "--set", "min_examples=0"),
            *("--checkpoint", str(self.work / "checkpoint")),
            *(*end, "--set", f"metrics_window_s={self._window_s}"),
            # Threads that wait for each other at every operation lose on cores that many processes share.
            *("--set", "threads=1"),
            *("--set", f"predictions={self.predictions}", "--report", str(self.work / "train.json")),
            *("--set", f"dead_letters={self.work / 'dead-letters'}", f"metrics_port={self.trainer_metrics}"),
        )

    def _start_server(self, role: str) -> Part:
        return self._livectr(
            f"{role} server",
            *("serve", role, "--pipeline", str(self.pipeline), "--redis", self.redis_url),
            *("--listen", f"127.0.0.1:{self.servers[role]}"),
            *("--set", f"metrics_port={self.server_metrics[role]}"),
        )

    def _start_clients(self) -> Part:
        return self._part(
            "clients",
            *(sys.executable, "-m", "livectr.demo.load"),
            *("--per-second", str(VISITS_PER_S), "--users", str(USERS)),
            *("--rank", f"127.0.0.1:{self.servers['rank']}"),
            *("--prerank", f"127.0.0.1:{self.servers['prerank']}"),
        )

    def _start_prometheus(self, say: Callable[[str], None]) -> None:
        """Watch all processes, and say where to look."""
        targets = [
            *(Target("trainer", f"trainer-{r}", self.trainer_metrics + r) for r in range(self.options.ranks)),
            *(Target(role, f"{role}-0", port) for role, port in self.server_metrics.items()),
        ]
        port, rules = self.prometheus_port, self.options.rules
        self._part(
            "Prometheus", *command(prometheus_program(), self.work / "prometheus", port, targets, rules)
        )
        self._until("Prometheus", START_S, partial(is_ready, port))
        for line in directions(port, targets):
            say(line)

    # Watching

    def _until(self, name: str, timeout_s: float, done: Callable[[], bool]) -> None:
        """Wait for `done`, while all parts live."""
        deadline = time.monotonic() + timeout_s
        while not done():
            self._check_stop()
            for part in self._parts:
                part.check()
            if time.monotonic() > deadline:
                part = next(p for p in self._parts if p.name == name)
                raise PartError(
                    f"the {name} is not ready after {timeout_s:g} s; its log ends:\n{part.tail()}"
                )
            time.sleep(0.1)

    def _watch(self, simulator: Part) -> None:
        """All parts live, or have ended well; a trainer that died is started again from its checkpoint."""
        self._check_stop()
        for part in self._parts:
            if part is self.trainer:
                if part.exit_code and simulator.exit_code is None and self.restarts < RESTARTS:
                    LOG.warning("%s", part.failure())
                    self.restarts += 1
                    self._parts.remove(part)
                    self.trainer = self._start_trainer()
                    return
                if part.exit_code == 0 and simulator.exit_code is not None:
                    continue
            if part.exit_code is not None and not (part is simulator and part.exit_code == 0):
                raise part.failure()

    def _look(self, began: float, simulator: Part, clients: Part) -> None:
        """Read every part's figures."""
        s = self.state
        s.elapsed_s = min(time.monotonic() - began, s.seconds)
        s.simulator = last_json_line(simulator.tail())
        s.clients = last_json_line(clients.tail())
        samples = scrape(self.trainer_metrics)
        if samples:
            s.read_trainer(samples)
        fresh = scrape(self.server_metrics["rank"])
        s.freshness_p50_s = quantile(fresh, "livectr_freshness_seconds", 0.5)
        s.freshness_p99_s = quantile(fresh, "livectr_freshness_seconds", 0.99)
        if time.monotonic() > self._next_bayes:
            self._next_bayes = time.monotonic() + BAYES_EVERY_S
            s.bayes_auc = self._bayes()

    def _bayes(self) -> float | None:
        """The Bayes AUC of the newest impressions whose labels are final."""
        self._newest = [*self._newest, *self._ledger_tail.new_batches()][-self._window_s * 1000 // TICK_MS :]
        rows = pa.Table.from_batches(self._newest, SCHEMA)
        p, label = rows["probability"].to_numpy(), rows["label"].to_numpy().astype(np.float32)
        bayes_auc = auc(np.log(p / (1 - p)), label)
        return bayes_auc if np.isfinite(bayes_auc) else None

    def _published(self) -> int:
        text = self.redis.get(Keyspace().manifest)
        if text is None:
            raise PartError(f"the trainer published nothing:\n{self.trainer.tail()}")
        return VersionManifest.from_json(text).version

    def _served(self, clients: Part) -> int:
        clients_report = last_json_line(clients.tail())
        return min((role["version"] for role in clients_report.values()), default=0)

    def _report(self, simulated: dict[str, Any], clients: Part, fresh: Any) -> dict[str, Any]:
        if not simulated:
            raise PartError("the simulator left no counts")
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.options).items()}
        return report(
            simulated=simulated,
            trained=json.loads((self.work / "train.json").read_text()),
            accounted=account(self.ledger, read_predictions(self.predictions)),
            freshness={
                "p50": quantile(fresh, "livectr_freshness_seconds", 0.5),
                "p99": quantile(fresh, "livectr_freshness_seconds", 0.99),
            },
            requested=last_json_line(clients.tail()),
            settings=settings,
            trainer_restarts=self.restarts,
        )


def _ready(server: Part) -> bool:
    return "ready on" in server.output()


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
