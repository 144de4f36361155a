"""Supervisor of the ranks of a machine, for `livectr train --ranks N --restarts K`.

    1  start N processes, each with its rank in torchrun's variables, each in its own session
    2  all exit with 0: done
    3  a rank fails: stop the others, and restart all ranks from the checkpoint
    4  K restarts in a row without a new step in the checkpoint: give up. Waiting for a broker or Redis that
       does not answer is not counted, once the run has a checkpoint
    5  SIGTERM or Ctrl-C: pass it on, so that ranks finish their step, commit and end; a second Ctrl-C kills

The ranks are children of this process, without torchrun's agent: the agent sometimes hangs when it restores a
group, and does not distinguish a user's mistake or SIGTERM from a failure. A user's mistake (exit code 2 or 3
of a rank) ends the run at once, for a restart would repeat it. Each machine has a supervisor of its own; a
rank that fails ends all other ranks (trainer.comm.abort).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from livectr.kernels.errors import InternalError
from livectr.kernels.process.children import die_with_parent
from livectr.local.ports import free_ports
from livectr.trainer.process import stop_signals

LOG = logging.getLogger(__name__)
END_S = 5.0
"""Time for the other ranks to exit after a rank failed: their exit codes may say that a user made a mistake.
After a rank that a signal killed, nobody is waited for."""
POLL_S = 0.02
MISTAKE, DATA, AWAY = 2, 3, 4
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Supervision:
    """Run to supervise.

    Args:
        command: command line of a rank.
        ranks: processes on this machine, N.
        restarts: restarts in a row without a new step, K.
        checkpoint: folder that the ranks resume from; needed for restarts.
        environment: variables of a rank beside those of this process.
        nodes: machines, with N ranks each.
        node: number of this machine.
        rendezvous: HOST:PORT of node 0 where the ranks meet; None on one machine.
    """

    command: Sequence[str]
    ranks: int
    restarts: int = 0
    checkpoint: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    node: int = 0
    rendezvous: str | None = None


def supervise(run: Supervision) -> int:
    """Run the ranks.

    Returns:
        Exit code: 0; MISTAKE or DATA when a rank reported a user's mistake; AWAY when nothing answered a run
        without a checkpoint, whose address may be wrong.

    Raises:
        InternalError: it gave up.
        KeyboardInterrupt: after a second Ctrl-C.
    """
    failures, away, reached = 0, 0, _steps(run.checkpoint)
    with stop_signals() as stop:
        while True:
            codes = _run_once(run, stop)
            if not any(codes) or (stop() and -signal.SIGTERM in codes):
                return 0  # a rank that a signal ends had not begun, and without it no other has
            for mistake in (MISTAKE, DATA):
                if mistake in codes:
                    return mistake
            steps = _steps(run.checkpoint)
            if AWAY in codes:
                if stop() or not run.restarts or steps < 0:
                    return AWAY
                away += 1
                LOG.warning("the broker or Redis does not answer; trying again from step %d", steps)
                _pause(away + 1, stop)
                continue
            away, failures = 0, 1 if steps > reached else failures + 1
            reached = max(steps, reached)
            ends = "; ".join(f"rank {r} {_how(code)}" for r, code in enumerate(codes) if code)
            if stop():
                raise InternalError(f"asked to stop, but {ends}; the last checkpoint is whole.")
            if failures > run.restarts:
                tried = f", and {run.restarts} starts brought no new step into the checkpoint"
                raise InternalError(f"training failed{tried if run.restarts else ''}: {ends}.")
            LOG.warning("%s; start %d of %d from step %d", ends, failures, run.restarts, max(reached, 0))
            _pause(failures, stop)
            if stop():
                return 0


def _run_once(run: Supervision, stop: Callable[[], bool]) -> list[int]:
    """Exit codes by rank; 0 also for ranks that were stopped because another failed."""
    ranks = _start(run)
    deadline: float | None = None
    stopping = False
    try:
        while any(rank.poll() is None for rank in ranks):
            if stop() and not stopping:
                stopping = True
                for rank in ranks:
                    rank.terminate()
            bad = [code for code in (rank.poll() for rank in ranks) if code]
            if bad and deadline is None:
                deadline = time.monotonic() + (END_S if min(bad) > 0 or stop() else 0)
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


def _start(run: Supervision) -> list[subprocess.Popen[bytes]]:
    host, _, port = (run.rendezvous or f"127.0.0.1:{free_ports(1)}").rpartition(":")
    world = {"WORLD_SIZE": str(run.nodes * run.ranks), "LOCAL_WORLD_SIZE": str(run.ranks)}
    world |= {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}
    first = run.node * run.ranks
    if run.ranks > 1:
        # Threads of ranks that wait for each other at every operation lose on shared cores.
        world["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    return [
        subprocess.Popen(
            run.command,
            env={
                **os.environ,
                **run.environment,
                **world,
                "RANK": str(first + rank),
                "LOCAL_RANK": str(rank),
            },
            start_new_session=True,  # Ctrl-C reaches the supervisor alone
            preexec_fn=die_with_parent(),
        )
        for rank in range(run.ranks)
    ]


def _steps(checkpoint: Path | None) -> int:
    """Steps of the newest readable manifest, or -1. (trainer.checkpoint.checkpoint would load torch.)"""
    if checkpoint is None:
        return -1
    for path in sorted(checkpoint.glob("gen-*/MANIFEST.json"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(json.loads(path.read_bytes())["body"])["step"])
    return -1


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _pause(failures: int, stop: Callable[[], bool]) -> None:
    """Nothing before the first try, then seconds that double."""
    pause_s = 0.0 if failures == 1 else min(2.0 ** (failures - 2), LONGEST_PAUSE_S)
    until = time.monotonic() + pause_s
    while time.monotonic() < until and not stop():
        time.sleep(POLL_S)
