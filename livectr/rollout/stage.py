"""Stage of a rollout: who starts and ends the new trainer, and who makes servers know of the canary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from livectr.rollout.record import Record, RolloutFolder, born, lives
from livectr.system.logs import tell

GRACE_S = 60.0
"""Time in which a trainer commits and ends."""
POLL_S = 0.1
TAIL_BYTES = 2000


def old_side_answers(record: Record) -> str:
    """Sentence at the end of a rollout whose servers run on."""
    return f"The old side ({record.stable}) answers all requests."


class Stage(Protocol):
    """Hands of a rollout. All calls may be repeated."""

    output: Path
    """Log file of the new trainer."""

    def runs(self, record: Record) -> bool:
        """Tell if the new trainer of a rollout that was killed is still there."""

    def start(self, record: Record) -> Record:
        """Start the new trainer, unless it runs."""

    def ended(self) -> str | None:
        """End of the new trainer: "" well, else a reason; None: it runs."""

    def offer(self) -> None:
        """Let the servers know the canary; its share is 0 until Redis has another one."""

    def promote(self, record: Record) -> list[str]:
        """Let the new side be the one; the share is 1 already. Returns sentences on what to do next."""

    def is_promoted(self, record: Record) -> bool:
        """Tell if nothing of a promotion is left to do, as of one that was killed."""

    def withdraw(self, record: Record) -> str:
        """End the new trainer, and let the servers forget the canary; the share is 0 already.

        Returns:
            Who answers requests from here on, as a sentence.
        """


class Alone:
    """The new trainer as a process of its own, which outlives the rollout; servers are the user's.

    Args:
        folder: of the new checkpoint.
        command: words after `livectr` of the new trainer.
        environment: variables beside those of this process.
        again: words of the command line that goes back.
    """

    def __init__(
        self, folder: RolloutFolder, command: Sequence[str], environment: Mapping[str, str], again: str
    ) -> None:
        self.output = folder.log
        self._folder, self._command, self._environment = folder, command, environment
        self._again = again
        self._process: subprocess.Popen[bytes] | None = None
        self._record: Record | None = None

    def runs(self, record: Record) -> bool:
        """As `Stage.runs`."""
        return lives(record)

    def start(self, record: Record) -> Record:
        """Start the trainer in a session of its own, or take over the one that a killed rollout has left."""
        if not lives(record):
            with self._folder.log.open("ab") as out:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "livectr", *self._command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            record = replace(record, pid=self._process.pid, born=born(self._process.pid))
        self._record = record
        return record

    def ended(self) -> str | None:
        """As `Stage.ended`; of a trainer that was taken over nobody knows the exit code."""
        if self._process is None:
            return None if self._record is not None and lives(self._record) else ""
        code = self._process.poll()
        if code is None:
            return None
        return "" if code == 0 else f"ended with exit code {code}: {self._last_line()}"

    @property
    def code(self) -> int:
        """Exit code of the trainer; 0: it runs, has ended well, or nobody knows."""
        return self._process.poll() or 0 if self._process is not None else 0

    def offer(self) -> None:
        """Servers know the canary by their setting, or not at all."""

    def promote(self, record: Record) -> list[str]:
        """As `Stage.promote`: nothing is changed."""
        said = [f"The new trainer goes on as process {record.pid}: `kill {record.pid}` ends it."]
        if not lives(record):
            said = ["The new trainer has come to the log's end."]
        return [
            *said,
            f"The old trainer ({record.old}) goes on, too; end it when you are sure.",
            f"Start servers with {record.pipeline} and --namespace {record.canary} when it suits you.",
            f"To go back: {self._again}",
        ]

    def is_promoted(self, record: Record) -> bool:
        """As `Stage.is_promoted`: there is nothing but the share."""
        return True

    def withdraw(self, record: Record) -> str:
        """End the trainer: it commits, and is killed if that takes too long."""
        if lives(record):
            tell("waiting for the new trainer to commit and end")
            os.kill(record.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE_S
            while self._lives(record) and time.monotonic() < end:
                time.sleep(POLL_S)
            if self._lives(record):
                os.killpg(record.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        return old_side_answers(record)

    def _lives(self, record: Record) -> bool:
        if self._process is not None:
            self._process.poll()  # a child that has ended stays a zombie until it is asked
        return lives(record)

    def _last_line(self) -> str:
        with self._folder.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it has said nothing")
        return last.removeprefix("livectr: ")
