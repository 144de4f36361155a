"""Start of a run: `livectr up`, in this process or detached."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError, DataError
from livectr.trainer.process import stop_signals
from livectr.up.example_query import example_query
from livectr.up.folder import POLL_S, Kind, Phase, RunFolder, State
from livectr.up.plan import UpOptions, plan
from livectr.up.runs import check_down, from_here, word_of
from livectr.up.screen import Progress, say, show_parts
from livectr.up.supervisor import Supervisor


def up(options: UpOptions, pipeline: Pipeline, folder: RunFolder) -> int:
    """Run the parts until Ctrl-C or SIGTERM.

    Returns:
        Exit code 0.

    Raises:
        UserError: the run is up already, or a part ended by a user's mistake before all were ready.
        KeyboardInterrupt: after a second Ctrl-C.
    """
    check_down(folder)
    with folder.owned(), stop_signals() as asked:
        folder.forget_state()
        folder.write_parts(plan(options, pipeline, from_here(folder.path), folder.parts()))
        run = _Run(folder, pipeline, asked)
        try:
            run.go()
        finally:
            folder.forget_state()
        if run.failed is not None:
            name, reason = run.failed
            kind = DataError if "exit code 3" in reason else ConfigError
            raise kind(f"the {name} {reason}; {word_of(folder)}/{name}.log has more.")
        return 0


class _Run:
    """Run in this process, and what it tells.

    Attributes:
        failed: name and reason of a part that has failed before all were ready.
    """

    def __init__(self, folder: RunFolder, pipeline: Pipeline, asked: Callable[[], bool]) -> None:
        self._folder, self._pipeline, self._asked = folder, pipeline, asked
        self._progress = Progress()
        self._state: State | None = None
        self._whole = False
        self.failed: tuple[str, str] | None = None

    def go(self) -> None:
        """Run until told to stop, or until a part fails at the start."""
        Supervisor(self._folder, self._changed).run(self._stop)

    def _changed(self, state: State) -> None:
        self._state = state
        self._progress.show(state)

    def _stop(self) -> bool:
        """Look ten times a second: tells if the run is to end."""
        if self._asked() or self.failed is not None:
            return True
        if self._whole or self._state is None:
            return False
        failed = next((one for one in self._state.parts if one.phase is Phase.FAILED), None)
        if failed is not None:
            self.failed = failed.name, failed.reason
            return True
        self._progress.wait_for(self._state)
        if self._state.settled(self._folder.parts()):
            self._whole = True
            show_parts(self._state, next_commands(self._folder, self._pipeline))
            if sys.stdout.isatty():
                say("Ctrl-C ends all parts in order.")
        return False


def next_commands(folder: RunFolder, pipeline: Pipeline) -> list[str]:
    """Commands that one wants once a run is up: a query, status, down."""
    parts = folder.parts()
    commands = []
    if "rank" in parts:
        source = next((p.setting("--source") for p in parts.values() if p.kind is Kind.TRAINER), None)
        commands.append(example_query(parts["rank"].address, pipeline, source or ""))
    return [*commands, f"livectr status {word_of(folder)}", f"livectr down {word_of(folder)}"]


def up_detached(
    words: Sequence[str], environment: Mapping[str, str], pipeline: Pipeline, folder: RunFolder
) -> int:
    """Run the parts under a process of their own, and return once all are ready.

    Args:
        words: of the command without --detach.
        environment: variables beside those of this process.
        pipeline: of the file.
        folder: of the run.

    Returns:
        Exit code: 0, or that of the process if it ends before.
    """
    check_down(folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    log = folder.path / "up.log"
    command = [sys.executable, "-m", "livectr", *words]
    with log.open("wb") as out, stop_signals() as asked:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        progress = Progress()
        while child.poll() is None:
            state = folder.state()
            if state is not None and state.supervisor == child.pid:
                progress.show(state)
                progress.wait_for(state)
                if not state.ending and all(one.phase is not Phase.FAILED for one in state.parts):
                    parts = folder.parts()
                    if parts and state.settled(parts):
                        show_parts(state, next_commands(folder, pipeline))
                        return 0
            if asked():
                child.terminate()
                child.wait()
                raise KeyboardInterrupt
            time.sleep(POLL_S)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("livectr: ")]
    sys.stderr.write("\n".join(said[-1:]) + "\n")
    return child.returncode or 1
