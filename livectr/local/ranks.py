"""Ranks of this machine: child processes with torchrun's variables, started and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from livectr.local.gang import End, Over, Round
from livectr.system.children import with_parent

UNFINISHED = 5
"""Exit code of a run that was stopped before the log's end; no failure."""
SET_ASIDE = 6
"""Exit code of a rank whose run has come to its end, but too many rows were set aside; no failure."""
WELL = (0, UNFINISHED, SET_ASIDE)
END_S = 5.0
"""Time for the other ranks to exit after a rank failed: their exit codes may say that a user made a mistake.
After a signal killed a rank, the other ranks are not waited for."""
CLEAN_S = 60.0
"""Time for the ranks to end after those of another node have ended well."""
POLL_S = 0.02


@dataclass(frozen=True)
class Ranks:
    """Ranks to start.

    Args:
        command: command line of a rank.
        ranks: processes on this machine, N.
        environment: variables of a rank beside those of this process.
        nodes: machines, with N ranks each.
        node: number of this machine.
    """

    command: Sequence[str]
    ranks: int
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    node: int = 0

    def start(self, round_: Round) -> list[subprocess.Popen[bytes]]:
        """Start the processes, whose store is at the address of the round."""
        return [
            subprocess.Popen(
                with_parent(self.command),
                env={**os.environ, **self.environment, **self.variables(round_, rank)},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
            )
            for rank in range(self.ranks)
        ]

    def variables(self, round_: Round, rank: int) -> dict[str, str]:
        """Torchrun's variables of a rank of this machine."""
        world = {"WORLD_SIZE": str(self.nodes * self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks)}
        world |= {"MASTER_ADDR": round_.host, "MASTER_PORT": str(round_.port)}
        world |= {"RANK": str(self.node * self.ranks + rank), "LOCAL_RANK": str(rank)}
        if self.ranks > 1:
            # Threads of ranks that wait for each other at every operation lose on shared cores.
            world["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        return world

    def run(self, round_: Round, stop: Callable[[], bool], over: Callable[[], Over | None]) -> list[int]:
        """Run the ranks until all have ended.

        Args:
            round_: of the ranks, with their variables.
            stop: tells if this process was asked to end; the ranks then get SIGTERM.
            over: tells if another node has ended the round.

        Returns:
            Exit codes by rank; 0 also for ranks that were ended because others failed.
        """
        ranks = self.start(round_)
        deadline: float | None = None
        stopping = False
        try:
            while any(rank.poll() is None for rank in ranks):
                if stop() and not stopping:
                    stopping = True
                    for rank in ranks:
                        rank.terminate()
                bad = [code for code in (rank.poll() for rank in ranks) if code not in (None, *WELL)]
                elsewhere = over()
                if deadline is None and (bad or elsewhere):
                    deadline = time.monotonic() + _patience_s(bad, elsewhere, stopping=stop())
                if deadline is not None and time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)
            first = [rank.poll() for rank in ranks]  # before ranks that hang are ended
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
        return [0 if code is None else code for code in first]


def how(code: int) -> str:
    """End of a process in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _patience_s(bad: Sequence[int], elsewhere: Over | None, *, stopping: bool) -> float:
    """Time that the ranks get to end by themselves."""
    if bad:
        return END_S if min(bad) > 0 or stopping else 0.0
    return CLEAN_S if elsewhere is not None and elsewhere.end in (End.DONE, End.UNFINISHED) else END_S
