"""Ranks of a test: processes with torchrun's variables, started by the launcher of `livectr train --ranks`.

    python tests/ranks.py N WORD ...      runs `python WORD ...` N times; exit code 1 when a rank failed

Torchrun's own agent imports PyTorch first, which costs as much as a rank. Tests of what happens under its
agent start it themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from livectr.local.gang import Round
from livectr.local.ports import free_ports
from livectr.local.ranks import Ranks
from livectr.trainer.process import stop_signals

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"LIVECTR_THREADS": "1", "OMP_NUM_THREADS": "1"}


def launch(world: int, *words: str) -> list[str]:
    """Command line that runs `python WORDS` as `world` ranks."""
    return [sys.executable, *([__file__, str(world)] if world > 1 else []), *words]


def run_ranks(world: int, module: str, *arguments: str) -> None:
    """Call `main()` of a module in `world` ranks of one thread each. Fails with what they wrote last."""
    done = subprocess.run(
        launch(world, "-m", "tests.rank", module, *arguments),
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def main(world: str, *words: str) -> int:
    """Run the ranks until all have ended; pass SIGTERM on."""
    ranks = Ranks((sys.executable, *words), int(world))
    with stop_signals() as stop:
        codes = ranks.run(Round("127.0.0.1", free_ports(1)), stop, lambda: None)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
