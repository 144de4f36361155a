"""Parts of a run on this machine: the commands of the documentation, with addresses that are free."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from livectr.config.settings import SETTINGS, commands_of
from livectr.local.ports import claim, free_ports, is_free
from livectr.secrets import has_password
from livectr.serving.options import SERVERS
from livectr.store.layout import without_password
from livectr.system.errors import ConfigError, InUseError
from livectr.up.folder import Kind, Part

HOST = "127.0.0.1"
PORTS = {"redis": 6379, "kafka": 9092, "rank": 50051, "prerank": 50052, "recommend": 50053}
"""Ports of the documentation, which are taken where they are free."""
PATIENCE = "start_wait_s=5m"
"""Parts start side by side: Redis, the broker or its topics may come later."""

AT_ONCE = "batch_wait_s=1s"
"""The last examples of files that do not grow fill no batch; they are learned without one, as of a broker."""


@dataclass(frozen=True)
class UpOptions:
    """Options of a run.

    Args:
        pipeline: file of the pipeline.
        source: log; None: with `kafka` that broker, else the folder `logs` beside the pipeline.
        listen: HOST:PORT of the rank server; None: port 50051 of loopback, or a free one.
        redis: URL; None: a server of this run.
        kafka: start a broker.
        ranks: processes that train.
        settings: further settings of trainer and servers, by name.
        config: file of settings.
    """

    pipeline: str
    source: str | None = None
    listen: str | None = None
    redis: str | None = None
    kafka: bool = False
    ranks: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    config: str | None = None


def plan(options: UpOptions, folder: Path, before: Mapping[str, Part], *, has_prerank: bool) -> list[Part]:
    """Parts of a run, in the order in which they are shown.

    Args:
        options: what the user said.
        folder: of the run.
        before: parts of an earlier run in the folder, whose addresses are kept where they are free.
        has_prerank: the pipeline has a pre-rank model.

    Raises:
        ConfigError: no source is known, or two options do not go together.
        InUseError: the address that was asked for is taken.
    """
    return list(_Plan(options, folder, before, has_prerank=has_prerank).parts())


def command_of(part: Part) -> str:
    """Command line of a part, to be pasted; passwords are hidden."""
    variables = [f"{name}={shlex.quote(without_password(url))} " for name, url in part.environment.items()]
    return f"{''.join(variables)}livectr {shlex.join(part.words(part.metrics_port))}"


class _Plan:
    """Parts of a run; see `plan`."""

    def __init__(
        self, options: UpOptions, folder: Path, before: Mapping[str, Part], *, has_prerank: bool
    ) -> None:
        self._options, self._before, self._has_prerank = options, before, has_prerank
        self._folder = folder
        asked = (options.listen or "").rpartition(":")[2]
        self._taken = {int(asked)} if asked.isdecimal() else set[int]()  # of the rank server
        self._metrics = int(options.settings.get("metrics_port", 0))
        self._settings = {n: v for n, v in options.settings.items() if n != "metrics_port"}
        if options.kafka and options.source is not None:
            raise ConfigError("--kafka starts a broker, and --source names another log: say one of them.")

    def parts(self) -> Iterator[Part]:
        """All parts."""
        options = self._options
        source, redis = options.source, options.redis
        if options.kafka:
            address = self._address("kafka")
            source = f"kafka://{address}"
            data = str(self._folder / "kafka")
            words = ("local", "kafka", "--listen", address, "--data", data)
            yield Part("kafka", Kind.KAFKA, words, address, "Kafka answers at")
        if redis is None:
            address = self._address("redis")
            redis = f"redis://{address}"
            yield Part(
                "redis", Kind.REDIS, ("local", "redis", "--listen", address), address, "Redis answers at"
            )
        yield self._trainer(source or self._beside(), redis)
        yield self._server("rank", redis)
        if self._has_prerank:
            yield self._server("prerank", redis)
            yield self._server("recommend", redis)

    def _beside(self) -> str:
        """Source of a pipeline that has its logs beside it, as `livectr init` writes them."""
        logs = Path(self._options.pipeline).parent / "logs"
        if not logs.is_dir():
            raise ConfigError(
                f"there is no folder {logs}: say --source kafka://HOST:PORT or file:DIR, or --kafka for a "
                "broker of this run."
            )
        return f"file:{logs}"

    def _trainer(self, source: str, redis: str) -> Part:
        options = self._options
        url, environment = _url("publish", redis)
        words = ["train", "--pipeline", options.pipeline, "--source", source]
        more = [f"run_log={self._folder / 'run.log'}", PATIENCE]
        if not source.startswith("kafka:"):
            more.append(AT_ONCE)
        if "checkpoint" not in self._settings:
            words += ["--checkpoint", str(self._folder / "checkpoint")]
        if options.ranks > 1:
            words += ["--ranks", str(options.ranks)]
        words += [*url, *self._words("train", more)]
        metrics, port = options.ranks, self._metrics_port("trainer", options.ranks)
        return Part("trainer", Kind.TRAINER, tuple(words), "", "", metrics, port, environment)

    def _server(self, role: str, redis: str) -> Part:
        url, environment = _url("redis", redis)
        address = self._address(role)
        words = ["serve", role, "--pipeline", self._options.pipeline, *url, "--listen", address]
        words += self._words(role, ["share_port=true", PATIENCE])
        workers = int(self._settings.get("workers", 1))
        port = self._metrics_port(role, workers)
        ready = f"{role} server ready on"
        return Part(role, Kind.SERVER, tuple(words), address, ready, workers, port, environment)

    def _words(self, command: str, more: Sequence[str]) -> list[str]:
        """Flags and `--set` of a command: its own, then those of the user that it has."""
        flags = ["--config", self._options.config] if self._options.config else []
        others = list(more)
        for name, value in self._settings.items():
            declared = SETTINGS[name]
            if command not in commands_of(declared):
                continue
            flag = name.replace("_", "-")
            if not declared.metadata["flag"]:
                others = [one for one in others if one.partition("=")[0] != name]
                others.append(f"{name}={value}")
            elif declared.kind is bool:
                flags.append(f"--{flag}" if value.lower() in ("true", "1", "yes", "on") else f"--no-{flag}")
            else:
                flags += [f"--{flag}", value]
        return [*flags, "--set", *others]

    def _address(self, name: str) -> str:
        """HOST:PORT of a part: the one asked for, the last one, that of the documentation, or any."""
        asked = self._options.listen if name in SERVERS else None
        if asked is not None:
            host, _, port = asked.rpartition(":")
            if not host or not port.isdecimal() or int(port) > 65_535:
                raise ConfigError(f"--listen is {asked!r}, but must be HOST:PORT.")
            if name == "rank" and int(port):
                self._taken.add(int(port))
                if not (is_free(host.strip("[]"), int(port)) and claim(int(port))):
                    raise InUseError(f"{asked} is taken; say another --listen, or end what listens there.")
                return asked
            wanted = [int(port) + SERVERS.index(name)] if int(port) else []
        else:
            host, wanted = HOST, [PORTS[name]]
        last = self._before[name].address if name in self._before else ""
        if last.rpartition(":")[0] == host:
            wanted.insert(0, int(last.rpartition(":")[2]))
        bare = host.strip("[]")
        usable = (one for one in wanted if one not in self._taken and is_free(bare, one) and claim(one))
        found = next(usable, 0) or self._free(1, bare)
        self._taken.add(found)
        return f"{host}:{found}"

    def _free(self, count: int, host: str) -> int:
        """First of consecutive ports that nobody listens on, and no part is to listen on."""
        while True:
            first = free_ports(count, host)
            if self._taken.isdisjoint(range(first, first + count)):
                return first

    def _metrics_port(self, name: str, count: int) -> int:
        """First of the ports of a part's metrics."""
        if self._metrics:
            first, self._metrics = self._metrics, self._metrics + count
            return first
        last = self._before.get(name)
        first = last.metrics_port if last is not None and last.metrics == count else 0
        ports = range(first, first + count)
        if not first or not all(is_free(HOST, port) and port not in self._taken for port in ports):
            first = self._free(count, HOST)
        self._taken |= set(range(first, first + count))
        return first


def _url(flag: str, url: str) -> tuple[list[str], dict[str, Any]]:
    """Words and variables that name Redis; every user of the machine can read words."""
    if has_password(url):
        return [], {f"LIVECTR_{flag.upper()}": url}
    return [f"--{flag}", url], {}
