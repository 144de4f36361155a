"""Record of a rollout in the new run's checkpoint folder, for `rollout status` and others of another shell.

rollout.json    Record; the rollout writes it
rollout.ask     "promote" or "abort", and a reason: what another shell asks for; the rollout removes it
rollout.lock    held by the rollout while it lives
rollout.log     output of the new trainer
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from livectr.system.errors import ConfigError, InUseError
from livectr.system.file_locks import is_held, take


class Phase(StrEnum):
    """Phases of a rollout."""

    COMPARING = "comparing"
    PROMOTED = "promoted"
    ENDED = "ended"
    """Not promoted: the old side answers all requests, and the new trainer is no more."""


@dataclass(frozen=True)
class Record:
    """State of a rollout.

    Args:
        pipeline: file of the new pipeline.
        old: checkpoint of the old run.
        redis: URL without its password.
        stable: namespace of the old run.
        canary: namespace of the new one.
        phase: of it.
        said: sentence on how it stands.
        pid: number of the new trainer's process; 0: none was started by the rollout itself.
        born: its start, in ticks since the machine's boot: numbers of processes come again.
        before: parts of the run folder as they were; of a rollout in one.
        relearn: part of the log that the new run learns again, as it was asked for; "": none.
        again: examples that the new run learns again before it is compared; 0: none, or it has.
        passed: records of the old and the new prediction log that are not compared.
    """

    pipeline: str
    old: str
    redis: str
    stable: str
    canary: str
    phase: Phase = Phase.COMPARING
    said: str = ""
    pid: int = 0
    born: int = 0
    before: tuple[dict[str, Any], ...] = ()
    relearn: str = ""
    again: int = 0
    passed: tuple[int, int] = (0, 0)


class RolloutFolder:
    """Files of a rollout in a checkpoint folder."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._ask = checkpoint / "rollout.ask"

    @property
    def log(self) -> Path:
        """Output of the new trainer."""
        return self.checkpoint / "rollout.log"

    def read(self) -> Record | None:
        """Record; None: there has been no rollout. Raises ConfigError for a file of another release."""
        try:
            values = json.loads((self.checkpoint / "rollout.json").read_text())
            known = {field.name for field in fields(Record)}
            record = Record(**{name: value for name, value in values.items() if name in known})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            path = self.checkpoint / "rollout.json"
            raise ConfigError(f"{path} is no record of a rollout ({error}); remove it") from None
        exact = {"phase": Phase(record.phase), "before": tuple(record.before), "passed": (*record.passed,)}
        return Record(**{**vars(record), **exact})

    def write(self, record: Record) -> None:
        """Replace the record."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        new = self.checkpoint / "rollout.json.new"
        new.touch(0o600)  # parts may hold passwords
        new.write_text(json.dumps(asdict(record), indent=1) + "\n")
        new.replace(self.checkpoint / "rollout.json")

    def ask(self, what: str, reason: str = "") -> None:
        """Ask the rollout that is running."""
        new = self._ask.with_suffix(".new")
        new.write_text(f"{what}\n{reason}")
        new.replace(self._ask)

    def asked(self) -> tuple[str, str] | None:
        """Take what another shell asks for, with its reason."""
        try:
            what, _, reason = self._ask.read_text().partition("\n")
        except FileNotFoundError:
            return None
        self._ask.unlink(missing_ok=True)
        return what, reason

    @property
    def running(self) -> bool:
        """Tell if a rollout is seen to here."""
        return is_held(self.checkpoint / "rollout.lock")

    @contextmanager
    def owned(self) -> Iterator[None]:
        """See to the rollout while this is open. Raises InUseError: another process does."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        with (self.checkpoint / "rollout.lock").open("ab") as file:
            if not take(file):
                raise InUseError(
                    f"a rollout into {self.checkpoint} is under way; `livectr rollout status` shows it, and "
                    "`livectr rollout abort` ends it"
                )
            self._ask.unlink(missing_ok=True)
            yield


def born(pid: int) -> int:
    """Start of a process in ticks since the machine's boot; 0: there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def lives(record: Record) -> bool:
    """Tell if the new trainer's process lives."""
    return record.pid > 0 and record.pid != os.getpid() and 0 < record.born == born(record.pid)
