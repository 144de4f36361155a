"""Start of a run: `livectr up` in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

from livectr.local.ports import is_free
from livectr.system.errors import ConfigError, DataError
from livectr.trainer.process import stop_signals
from livectr.up.folder import Kind, Part, Phase, RunFolder, State
from livectr.up.pipeline_process import PipelineProcess
from livectr.up.plan import UpOptions, plan
from livectr.up.runs import check_down, from_here, served_trainer, word_of
from livectr.up.screen import Progress, say, show_parts
from livectr.up.supervisor import Supervisor

STARTS = 3
"""Starts until the parts have ports: another process may take one between the look for it and the bind."""


def up(options: UpOptions | None, folder: RunFolder) -> int:
    """Run the parts until Ctrl-C or SIGTERM.

    Args:
        options: what the user said; None: the parts are those that the run had at its end.
        folder: of the run.

    Returns:
        Exit code 0.

    Raises:
        UserError: the run is up already, the pipeline cannot be loaded, or a part ended by a user's mistake
            before all were ready.
        KeyboardInterrupt: after a second Ctrl-C.
    """
    check_down(folder)
    with folder.owned(), stop_signals() as asked, closing(_loading(options, folder)) as pipeline:
        folder.forget()
        has_prerank, before = pipeline.has_prerank(), folder.parts()
        for _ in range(STARTS):
            if options is not None:
                parts = plan(options, from_here(folder.path), before, has_prerank=has_prerank)
                folder.write_parts(parts)
            run = _Run(folder, pipeline, asked)
            try:
                run.go()
            finally:
                folder.forget()
            if run.failed is None:
                return 0
            name, reason = run.failed
            if options is None or not _is_taken(folder.parts()[name]):
                break
            say(f"somebody else has taken {folder.parts()[name].address} meanwhile: starting again.")
        if before:
            folder.write_parts([*before.values()])  # `livectr up` alone goes on as the run was left
        kind = DataError if "exit code 3" in reason else ConfigError
        raise kind(f"the {name} {reason}; {word_of(folder)}/{name}.log has more.")


def _is_taken(part: Part) -> bool:
    """Tell if somebody else listens where a part that has ended was to answer."""
    host, _, port = part.address.rpartition(":")
    return bool(host) and not is_free(host.strip("[]"), int(port))


def _loading(options: UpOptions | None, folder: RunFolder) -> PipelineProcess:
    trainer = served_trainer(folder) if options is None else None
    file = options.pipeline if options is not None else trainer.setting("pipeline") if trainer else None
    if file is None:
        raise ConfigError(f"the run in {word_of(folder)} had no trainer: say the pipeline file.")
    return PipelineProcess(file)


class _Run:
    """Run in this process, and what it tells.

    Attributes:
        failed: name and reason of a part that has failed before all were ready.
    """

    def __init__(self, folder: RunFolder, pipeline: PipelineProcess, asked: Callable[[], bool]) -> None:
        self._folder, self._pipeline, self._asked = folder, pipeline, asked
        self._progress = Progress()
        self._state: State | None = None
        self._ready = self._told = False
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
        if self._told or self._state is None:
            return False
        failed = next((one for one in self._state.parts if one.phase is Phase.FAILED), None)
        if failed is not None:
            self.failed = failed.name, failed.reason
            return True
        if not self._ready:
            self._progress.wait_for(self._state)
            self._ready = self._state.settled(self._folder.parts())
            if self._ready:
                self._ask()
        elif (query := self._pipeline.answer()) is not None:
            self._tell(self._state, query)
        return False

    def _ask(self) -> None:
        """Ask for a query of the rank server."""
        parts = self._folder.parts()
        source = next((p.setting("source") for p in parts.values() if p.kind is Kind.TRAINER), None)
        self._pipeline.ask(parts["rank"].address, source or "")

    def _tell(self, state: State, query: str) -> None:
        """Say where all is, and the commands that one wants next."""
        self._pipeline.close()
        self._told = True
        said = word_of(self._folder)
        query = query or f"livectr query describe --server {self._folder.parts()['rank'].address}"
        commands = [query, f"livectr status {said}", f"livectr down {said}"]
        self._folder.write_next(commands)
        show_parts(state, commands)
        if sys.stdout.isatty():
            say("Ctrl-C ends all parts in order.")
