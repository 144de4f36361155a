"""Supervisor of the ranks of a machine, for `livectr train --ranks N --set restarts=K` and `until_stopped`.

    1  gather: wait until the supervisors of all nodes are there (livectr.local.gang)
    2  start N processes, each with its rank in torchrun's variables, each in its own session
    3  all exit with 0: done. With `until_stopped` another node was told to stop: go to 1
    4  a rank fails: stop the others, on all nodes, and go to 1; they resume from the checkpoint
    5  K restarts in a row without a new step in the checkpoint: give up. Waiting for a broker or Redis that
       does not answer is not counted, once the run has a checkpoint. With `until_stopped` nothing is counted
    6  SIGTERM or Ctrl-C: pass it on, so that ranks finish their step, commit and end; a second Ctrl-C kills.
       With `until_end`, a run that has not come to the log's end then ends with UNFINISHED on all nodes

The ranks are children of this process, without torchrun's agent: the agent sometimes hangs when it restores a
group, and does not distinguish a user's mistake or SIGTERM from a failure. A user's mistake (exit code 2 or 3
of a rank) ends the run at once, for a restart would repeat it. A rank that fails ends all other ranks by
itself, too (trainer.comm.abort).
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from livectr.local.gang import End, Gang, Over
from livectr.local.gathering import Alone, Gathering, Member
from livectr.local.ranks import CLEAN_S, POLL_S, SET_ASIDE, UNFINISHED, WELL, Ranks, how
from livectr.system.errors import InternalError
from livectr.trainer.process import stop_signals

LOG = logging.getLogger(__name__)
MISTAKE, DATA, AWAY, ROWS = 2, 3, 4, 4
LONGEST_PAUSE_S = 30.0
LONGEST_PAUSE_OF_A_POD_S = 8.0
"""With `until_stopped`: all ranks train again within half a minute, and nobody counts the starts."""
FAREWELL_S = 3.0
"""Time that node 0 stays after its ranks have ended well."""
GATHER_S = 600.0
"""Time for the other nodes to come, without `until_stopped`."""


@dataclass(frozen=True)
class Supervision:
    """Run to supervise.

    Args:
        ranks: processes of this machine.
        restarts: restarts in a row without a new step, K.
        checkpoint: folder that the ranks resume from; needed for restarts.
        gang: nodes that train together; None: this machine alone.
        until_stopped: end only when this process is told to stop, or after a user's mistake.
        start_wait_s: seconds from the start for which a broker or Redis may be away.
        until_end: the log is bounded, and to be learned to its end.
    """

    ranks: Ranks
    restarts: int = 0
    checkpoint: Path | None = None
    gang: Gang | None = None
    until_stopped: bool = False
    start_wait_s: float = 0.0
    until_end: bool = False


def supervise(run: Supervision, beat: Callable[[], None] = lambda: None) -> int:
    """Run the ranks.

    Args:
        run: what to run, how often, and with which nodes.
        beat: called several times a second.

    Returns:
        Exit code: 0; MISTAKE or DATA when a rank reported a user's mistake; AWAY when nothing answered a run
        without a checkpoint, whose address may be wrong; UNFINISHED when this node or another was told to
        stop before the log's end.

    Raises:
        ConfigError: this is node 0, and the port of the rendezvous is taken.
        InternalError: it gave up.
        KeyboardInterrupt: after a second Ctrl-C.
    """
    with stop_signals() as asked:

        def stop() -> bool:
            beat()
            return asked()

        gathering = Alone() if run.gang is None else Member(run.gang)
        try:
            return _Loop(run, gathering, stop).run()
        finally:
            gathering.close()


class _Loop:
    """The loop of `supervise`."""

    def __init__(self, run: Supervision, gathering: Gathering, stop: Callable[[], bool]) -> None:
        self._run, self._gathering, self._stop = run, gathering, stop
        self._failures = self._away = 0
        self._reached = _steps(run.checkpoint)
        self._patient_until = time.monotonic() + run.start_wait_s

    def run(self) -> int:
        """Run rounds until there is an exit code."""
        while True:
            round_ = self._gathering.wait(self._stop, None if self._run.until_stopped else GATHER_S)
            if self._stop():
                return self._stopped
            if round_ is None:
                raise InternalError(
                    f"not all nodes have come within {GATHER_S:g} s; the log says who has not."
                )
            elsewhere: list[Over] = []

            def over(seen: list[Over] = elsewhere) -> Over | None:
                if not seen and (found := self._gathering.over()) is not None:
                    seen.append(found)
                return seen[0] if seen else None

            codes = self._run.ranks.run(round_, self._stop, over)
            self._gathering.end(self._end(codes))
            code = self._judge(codes, elsewhere[0] if elsewhere else None)
            if code is not None:
                return code

    @property
    def _stopped(self) -> int:
        """Exit code of a run that was told to stop."""
        return UNFINISHED if self._run.until_end else 0

    def _end(self, codes: list[int]) -> End:
        if set(codes) <= {0, SET_ASIDE}:
            return End.DONE
        if AWAY in codes:
            return End.AWAY
        # A rank that a signal ends had not begun, and without it no other has.
        if self._stop() and -signal.SIGTERM in codes:
            return End.STOPPED
        return End.UNFINISHED if set(codes) <= set(WELL) else End.FAILED

    def _judge(self, codes: list[int], elsewhere: Over | None) -> int | None:
        """Exit code, or None after the pause before the next round."""
        own, forever = self._end(codes), self._run.until_stopped
        if self._stop() and own in (End.DONE, End.STOPPED, End.UNFINISHED):
            if self._run.gang is not None and self._run.gang.node == 0:
                self._gathering.verdict(FAREWELL_S)  # the others hear of all ends through this process
            # Ranks that were ended with those of another node have no code of their own.
            done = own is End.DONE and (elsewhere is None or elsewhere.end is End.DONE)
            return _done(codes) if done else self._stopped
        if own in (End.DONE, End.UNFINISHED) and not forever:
            elsewhere = self._gathering.verdict(CLEAN_S) or elsewhere
        for mistake in (MISTAKE, DATA):
            if mistake in codes:
                return mistake
        if AWAY in codes:
            return self._wait_for_services()
        first = self._run.ranks.node * self._run.ranks.ranks
        ends = [f"rank {first + r} {how(code)}" for r, code in enumerate(codes) if code]
        if self._stop():
            raise InternalError(f"asked to stop, but {'; '.join(ends)}; the last checkpoint is whole.")
        self._away, how_else = 0, elsewhere.end if elsewhere is not None else End.DONE
        if how_else in (End.GONE, End.AWAY) or (how_else is End.STOPPED and forever):
            LOG.warning("%s; waiting for it", elsewhere.why if elsewhere is not None else "")
            return None
        if End.UNFINISHED in (own, how_else) and End.FAILED not in (own, how_else):
            return UNFINISHED  # own ranks without a code have hung after the commit, and were ended
        if how_else is End.STOPPED or (own is End.DONE and how_else is End.DONE):
            if not forever:
                return self._stopped if how_else is End.STOPPED else _done(codes)
            LOG.info("all ranks have committed and ended, for another node was told to stop, or is gone")
            self._pause(2)
            return 0 if self._stop() else None
        steps = _steps(self._run.checkpoint)
        self._failures = 1 if steps > self._reached else self._failures + 1
        self._reached = max(steps, self._reached)
        self._count("; ".join(ends or [elsewhere.why if elsewhere is not None else ""]))
        self._pause(self._failures)
        return self._stopped if self._stop() else None

    def _count(self, ends: str) -> None:
        """Raise InternalError when there were too many failures without a new step."""
        restarts, step = self._run.restarts, max(self._reached, 0)
        if self._run.until_stopped:
            LOG.warning("%s; all ranks start again from step %d", ends, step)
            return
        if self._failures > restarts:
            tried = f", and {restarts} starts brought no new step into the checkpoint" if restarts else ""
            raise InternalError(f"training failed{tried}: {ends}.")
        LOG.warning("%s; start %d of %d from step %d", ends, self._failures, restarts, step)

    def _wait_for_services(self) -> int | None:
        """AWAY, or None after a pause."""
        steps = _steps(self._run.checkpoint)
        patient = self._run.until_stopped or time.monotonic() < self._patient_until
        if self._stop():
            return self._stopped if patient else AWAY
        if not (patient or (self._run.restarts and steps >= 0)):
            return AWAY
        self._away += 1
        LOG.warning("the broker, a topic or Redis is not there; trying again from step %d", max(steps, 0))
        self._pause(self._away + 1)
        return None

    def _pause(self, failures: int) -> None:
        """Nothing before the first try, then seconds that double."""
        longest_s = LONGEST_PAUSE_OF_A_POD_S if self._run.until_stopped else LONGEST_PAUSE_S
        pause_s = 0.0 if failures == 1 else min(2.0 ** min(failures - 2, 20), longest_s)
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self._stop():
            self._gathering.poll()
            time.sleep(POLL_S)


def _done(codes: Sequence[int]) -> int:
    """Exit code after ranks that came to the log's end."""
    return ROWS if SET_ASIDE in codes else 0


def _steps(checkpoint: Path | None) -> int:
    """Steps of the newest readable manifest, or -1; trainer.checkpoint.checkpoint would load torch."""
    if checkpoint is None:
        return -1
    for path in sorted(checkpoint.glob("gen-*/MANIFEST.json"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(json.loads(path.read_bytes())["body"])["step"])
    return -1
