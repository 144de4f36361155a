"""Stage of a rollout in the folder of `livectr up`: the supervisor starts, replaces and ends its parts.

start      the new trainer becomes a part beside the old one
offer      servers get the canary; each is replaced without an outage
promote    servers get the new pipeline and namespace; the old trainer is no part any more
withdraw   the parts are as they were
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from livectr.config.settings import SETTINGS
from livectr.rollout.record import Record
from livectr.rollout.share import take_share
from livectr.rollout.stage import old_side_answers
from livectr.system.errors import ConfigError, InternalError
from livectr.system.logs import tell
from livectr.up.folder import Kind, Part, Phase, RunFolder, State
from livectr.up.runs import from_here, served_trainer, word_of
from livectr.up.screen import Progress

SETTLED_S = 300.0
"""Longest time in which servers are replaced."""
OF_THE_OLD_RUN = (
    *("pipeline", "checkpoint", "namespace", "predictions", "run_log", "report", "metrics_port"),
    *("warm_start", "warm_parts", "relearn"),
)
"""Settings that the new trainer does not take from the old one."""


@dataclass(frozen=True)
class OldRun:
    """Old pipeline of a run folder.

    Args:
        folder: of the run.
        trainer: part that learns it.
    """

    folder: RunFolder
    trainer: Part

    @staticmethod
    def of(folder: RunFolder) -> OldRun:
        """The trainer whose pipeline the servers serve. Raises ConfigError: there is none."""
        trainer = served_trainer(folder)
        if trainer is None or trainer.setting("checkpoint") is None:
            raise ConfigError(f"{word_of(folder)} has no trainer with a checkpoint; say --from with one.")
        return OldRun(folder, trainer)

    def value(self, name: str) -> str | None:
        """Setting of the old trainer; None: it has the default."""
        return self.trainer.setting(name)


class InRun:
    """The new trainer as a part of a run.

    Args:
        old: what runs.
        new: file of the new pipeline.
        checkpoint: folder of the new trainer.
        namespace: of the new trainer.
        settings: of the new trainer, where they are not the old one's.
        redis: URL, with its password.
        again: words of the command line that goes back.
        carried: the new run continues the old one.
    """

    def __init__(
        self,
        old: OldRun,
        new: str,
        checkpoint: Path,
        namespace: str,
        settings: Mapping[str, str],
        redis: str,
        again: str,
        *,
        carried: bool = True,
    ) -> None:
        self._folder, self._new, self._namespace = old.folder, new, namespace
        self._checkpoint, self._redis, self._again = checkpoint, redis, again
        self._old_checkpoint = old.value("checkpoint") or ""
        command = old.trainer.command
        for name in OF_THE_OLD_RUN:
            command = with_value(command, name, None)
        given = {"pipeline": new, "checkpoint": str(checkpoint), "namespace": namespace}
        if carried:
            given |= {"warm_start": self._old_checkpoint, "warm_parts": "run"}
        given |= {"run_log": str(checkpoint / "run.log"), "predictions": str(checkpoint / "predictions")}
        for name, value in {**given, **settings}.items():
            command = with_value(command, name, value)
        name = _part_name(old.folder, f"trainer-{Path(new).stem}", checkpoint)
        self.output = from_here(old.folder.log_of(name))
        self._part = replace(old.trainer, name=name, command=tuple(command), metrics_port=0)

    def runs(self, record: Record) -> bool:
        """As `Stage.runs`: the trainer is still a part."""
        return bool(record.before) and self._part.name in self._folder.parts()

    def start(self, record: Record) -> Record:
        """Add the trainer."""
        with self._folder.changing() as parts:
            if not record.before:
                record = replace(record, before=tuple(asdict(part) for part in parts.values()))
            parts.setdefault(self._part.name, self._part)
            self._part = parts[self._part.name]
        return record

    def ended(self) -> str | None:
        """As `Stage.ended`."""
        state = self._folder.state()
        if state is None:
            return None if self._folder.running else "has ended with the run, which is down"
        one = state.of(self._part)
        if one is None or one.phase not in (Phase.FAILED, Phase.DONE):
            return None
        return "" if one.phase is Phase.DONE else one.reason

    def offer(self) -> None:
        """Give the servers the canary."""
        canary = f"ns={self._namespace},share=0,pipeline={self._new}"
        with self._folder.changing() as parts:
            for name, part in parts.items():
                if part.kind is Kind.SERVER:
                    parts[name] = replace(part, command=with_value(part.command, "canary", canary))
        self._settle()

    def promote(self, record: Record) -> list[str]:
        """Let the servers serve the new pipeline, then end the old trainer."""
        with self._folder.changing() as parts:
            for name, part in parts.items():
                if part.kind is Kind.SERVER:
                    command = with_value(part.command, "canary", None)
                    command = with_value(command, "pipeline", self._new)
                    command = with_value(command, "namespace", self._namespace)
                    parts[name] = replace(part, command=command)
        self._settle()
        with self._folder.changing() as parts:
            for name in self._old_trainers(record, parts):
                del parts[name]
        self._settle()
        take_share(self._redis, record.stable, record.canary)
        folder = word_of(self._folder)
        return [
            f"Servers serve {self._new}, and the old trainer has ended; its checkpoint is {record.old}.",
            f"After `livectr down`, `livectr up --dir {folder}` goes on with it.",
            f"To go back: {self._again}",
        ]

    def is_promoted(self, record: Record) -> bool:
        """As `Stage.is_promoted`."""
        return not self._old_trainers(record, self._folder.parts())

    def _old_trainers(self, record: Record, parts: Mapping[str, Part]) -> list[str]:
        """Names of the parts that train the old run."""
        trainers = [part for part in parts.values() if part.kind is Kind.TRAINER]
        return [part.name for part in trainers if part.setting("checkpoint") == record.old]

    def withdraw(self, record: Record) -> str:
        """Let the parts be as they were; the old trainer goes on from its checkpoint."""
        with self._folder.changing() as parts:
            parts.pop(self._part.name, None)
            for read in record.before:
                part = Part(**{**read, "kind": Kind(read["kind"]), "command": tuple(read["command"])})
                parts[part.name] = part
        try:
            if self._folder.running:
                self._settle()
        except InternalError as error:
            tell(f"{str(error).rstrip('.')}; the parts are to be as they were before the rollout")
        if self._folder.running:
            return old_side_answers(record)
        return f"The run is down; `livectr up --dir {word_of(self._folder)}` goes on with the old side."

    def _settle(self) -> None:
        """Wait until the parts are as they are to be, and tell of each that ends or becomes ready."""
        progress = Progress(self._folder.state())

        def settled(state: State) -> bool:
            progress.show(state)
            return state.settled(self._folder.parts())

        self._folder.wait(settled, SETTLED_S)


def _part_name(folder: RunFolder, name: str, checkpoint: Path) -> str:
    """Name of the part that trains into a checkpoint: the one that it has, else a free one."""
    parts, number = folder.parts(), 1
    for part in parts.values():
        if part.kind is Kind.TRAINER and _is(part.setting("checkpoint"), checkpoint, folder):
            return part.name
    while (found := name + (f"-{number}" if number > 1 else "")) in parts:
        number += 1
    return found


def _is(said: str | None, checkpoint: Path, folder: RunFolder) -> bool:
    """Tell if a part's checkpoint is this one; what it says may be relative to where `livectr up` runs."""
    if said is None:
        return False
    below = Path(said).parts[-2:] == (folder.path.name, checkpoint.name)
    return Path(said).absolute() == checkpoint.absolute() or (
        below and checkpoint.absolute().parent == folder.path
    )


def with_value(command: Sequence[str], name: str, value: str | None) -> tuple[str, ...]:
    """Command of a part with another value of a setting; None: without it."""
    flag, words = f"--{name.replace('_', '-')}", list(command)
    at = words.index("--set") if "--set" in words else len(words)
    head, others = words[:at], [word for word in words[at + 1 :] if not word.startswith(f"{name}=")]
    declared, off = SETTINGS[name], f"--no-{flag[2:]}"
    is_switch = declared.kind is bool
    while flag in head:
        del head[head.index(flag) : head.index(flag) + (1 if is_switch else 2)]
    head = [word for word in head if not word.startswith(f"{flag}=") and word != off]
    if value is not None and declared.metadata["flag"]:
        on = value.lower() in ("true", "1", "yes", "on")
        head += ([flag] if on else [off]) if is_switch else [flag, value]
    elif value is not None:
        others.append(f"{name}={value}")
    return (*head, *(("--set", *others) if others else ()))
