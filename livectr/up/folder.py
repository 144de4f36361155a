"""Folder of a run on this machine: what is to run, what runs, and who sees to it.

    parts.json   parts that are to run: a list of Part. Who changes the run writes it (`RunFolder.changing`)
    state.json   parts that run: a State. Only the supervisor (`livectr.up.supervisor`) writes it
    lock         held by the supervisor while it lives
    next.txt     commands that one wants next, once all parts are ready
    NAME.log     standard output and error of a part
    checkpoint/  of the trainer, and whatever else the parts keep

To change a running system, change its parts and wait until the state says so:

    folder = RunFolder(Path(".livectr/pipeline"))
    with folder.changing() as parts:
        parts["trainer-v2"] = Part("trainer-v2", Kind.TRAINER, ("train", "--pipeline", "v2.py", …), metrics=1)
        parts["rank"] = replace(parts["rank"], command=(*parts["rank"].command, "--set", "canary=…"))
        del parts["old"]
    folder.wait(lambda state: state.settled(folder.parts()), timeout_s=300)

A new part is started. A part that is gone ends in order. A server whose part has changed is replaced without
an outage: the new process listens on the same port (`share_port`), and the old one drains once the new one is
ready. Any other part is ended first, since it owns what the new one needs, such as a checkpoint.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from livectr.system.errors import ConfigError, InternalError, InUseError
from livectr.system.file_locks import is_held, take

POLL_S = 0.1


class Kind(StrEnum):
    """Kinds of parts; they end in this order, those of a kind together."""

    TRAINER = "trainer"
    SERVER = "server"
    REDIS = "redis"
    KAFKA = "kafka"


class Phase(StrEnum):
    """Phases of a part."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    """It has ended by itself, and starts again after a pause."""
    FAILED = "failed"
    """It has ended by a user's mistake, which a restart would repeat."""
    DONE = "done"
    """It has ended well, as a trainer that was told to learn to the log's end does."""
    ENDING = "ending"


@dataclass(frozen=True)
class Part:
    """Part that is to run.

    Args:
        name: unique; also that of its log file.
        kind: of the part.
        command: words after `livectr`.
        address: HOST:PORT on which it answers; "": none.
        ready: text of its log from which on it is ready; "": ready as soon as its metrics answer, or at once.
        metrics: number of its processes with metrics, each on a port of its own; 0: none.
        metrics_port: first of these ports; another is taken while the one of a replaced server is in use.
        environment: variables beside those of the supervisor, such as URLs with passwords.
    """

    name: str
    kind: Kind
    command: tuple[str, ...]
    address: str = ""
    ready: str = ""
    metrics: int = 0
    metrics_port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, metrics_port: int) -> list[str]:
        """Words after `livectr` of a process with metrics from this port on; 0: without."""
        if not metrics_port:
            return [*self.command]
        last = [word for word in self.command if word.startswith("--")][-1:]  # whose values come last
        return [*self.command, *(() if last == ["--set"] else ("--set",)), f"metrics_port={metrics_port}"]

    def setting(self, name: str) -> str | None:
        """Setting of its command or variables, such as "checkpoint"; None: it has the default."""
        flag, words = f"--{name.replace('_', '-')}", self.command
        for at, word in enumerate(words):
            if word == flag and at + 1 < len(words):
                return words[at + 1]
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
        for word in reversed(words):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return self.environment.get(f"LIVECTR_{name.upper()}")


@dataclass(frozen=True)
class Running:
    """State of a part. While a server is replaced, there are two of its name.

    Args:
        part: that it was started as.
        phase: of it.
        pid: number of the process; 0: none runs.
        started_ms: time of the last start, ms since 1970.
        metrics: HOST:PORT of each Prometheus endpoint.
        log: file of its output.
        restarts: starts after the first.
        reason: why it has last ended by itself; "": it has not.
    """

    part: Part
    phase: Phase
    pid: int = 0
    started_ms: int = 0
    metrics: tuple[str, ...] = ()
    log: str = ""
    restarts: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of the part."""
        return self.part.name


@dataclass(frozen=True)
class State:
    """State of a run.

    Args:
        supervisor: number of the process that sees to the parts.
        parts: in the order of parts.json; a replaced process follows the one that takes its place.
        ending: the supervisor was told to end.
    """

    supervisor: int
    parts: tuple[Running, ...] = ()
    ending: bool = False

    def of(self, part: Part) -> Running | None:
        """State of a part as it is to run; None: it has not been started yet."""
        return next((one for one in self.parts if one.part == part and one.phase is not Phase.ENDING), None)

    def settled(self, parts: Mapping[str, Part]) -> bool:
        """Tell if exactly these parts run, all ready or done, and nothing else runs any more.

        Raises:
            InternalError: a part has failed; the message has its reason.
        """
        found = {name: self.of(part) for name, part in parts.items()}
        for name, one in found.items():
            if one is not None and one.phase is Phase.FAILED:
                raise InternalError(f"{name} {one.reason}")
        well = all(one is not None and one.phase in (Phase.READY, Phase.DONE) for one in found.values())
        return well and len(self.parts) == len(parts)


class RunFolder:
    """Folder of a run.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def exists(self) -> bool:
        """Tell if a run was ever started here."""
        return (self.path / "parts.json").is_file()

    @property
    def running(self) -> bool:
        """Tell if a supervisor sees to the parts."""
        return is_held(self.path / "lock")

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the supervisor while this is open.

        Raises:
            InUseError: another process is.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("ab") as file:
            if not take(file):
                raise InUseError(f"the run in {self.path} is up already.")
            yield

    def parts(self) -> dict[str, Part]:
        """Parts that are to run, by name; {} before the first start.

        Raises:
            ConfigError: the file is none of this release's.
        """
        try:
            read = json.loads((self.path / "parts.json").read_text())
            return {part.name: part for part in map(_part, read)}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{self.path / 'parts.json'} cannot be read: {error}") from None

    def write_parts(self, parts: Sequence[Part]) -> None:
        """Replace the parts that are to run."""
        self._write("parts.json", [asdict(part) for part in parts])

    @contextmanager
    def changing(self) -> Iterator[dict[str, Part]]:
        """Parts by name, to be changed; they are written at the end, unless it is an exception.

        One process changes them at a time; others wait.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "parts.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            parts = self.parts()
            yield parts
            self.write_parts(list(parts.values()))

    def state(self) -> State | None:
        """State of the run; None: nobody sees to it."""
        if not self.running:
            return None
        try:
            read = json.loads((self.path / "state.json").read_text())
            parts = tuple(_running(one) for one in read["parts"])
            return State(int(read["supervisor"]), parts, bool(read["ending"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None  # it was started this moment

    def write_state(self, state: State) -> None:
        """Replace the state; the supervisor does."""
        self._write("state.json", asdict(state))

    def next_commands(self) -> list[str] | None:
        """Commands that one wants next; None until all is ready."""
        try:
            return (self.path / "next.txt").read_text().splitlines()
        except FileNotFoundError:
            return None

    def write_next(self, commands: Sequence[str]) -> None:
        """Keep the commands that one wants next, for whoever waits for them."""
        new = self.path / "next.txt.new"
        new.write_text("".join(f"{command}\n" for command in commands))
        new.replace(self.path / "next.txt")

    def forget(self) -> None:
        """Remove what an earlier supervisor has said."""
        for name in ("state.json", "next.txt"):
            (self.path / name).unlink(missing_ok=True)

    def wait(self, met: Callable[[State], bool], timeout_s: float) -> State:
        """Wait for a state.

        Args:
            met: tells if a state is the one; what it raises ends the wait.
            timeout_s: longest wait.

        Raises:
            InternalError: the supervisor has ended, or the time is over.
        """
        end = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if state is not None and met(state):
                return state
            if not self.running:
                raise InternalError(f"the run in {self.path} has ended; {self.path / 'up.log'} says why.")
            if time.monotonic() > end:
                raise InternalError(f"the run in {self.path} is not as wanted after {timeout_s:g} s.")
            time.sleep(POLL_S)

    def log_of(self, name: str) -> Path:
        """File of a part's output."""
        return self.path / f"{name}.log"

    def _write(self, name: str, value: Any) -> None:
        """Write JSON that only this user can read, at once: addresses may hold passwords."""
        self.path.mkdir(parents=True, exist_ok=True)
        new = self.path / f"{name}.{os.getpid()}.new"
        new.touch(0o600)
        new.write_text(json.dumps(value, indent=1) + "\n")
        new.replace(self.path / name)


def _part(read: Mapping[str, Any]) -> Part:
    _check(read, Part)
    part = Part(**read)
    return replace(part, kind=Kind(part.kind), command=tuple(part.command))


def _running(read: Mapping[str, Any]) -> Running:
    _check(read, Running)
    one = Running(**read)
    return replace(one, part=_part(read["part"]), phase=Phase(one.phase), metrics=tuple(one.metrics))


def _check(read: Mapping[str, Any], kind: Any) -> None:
    unknown = sorted(set(read) - {each.name for each in fields(kind)})
    if unknown:
        raise ValueError(f"there is no field {', '.join(unknown)}")
