"""Launch of a benchmark's module on N ranks with torchrun, and the result of rank 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.environment import ROOT
from livectr.system.children import with_parent
from livectr.trainer.comm.collectives import Collectives, connect


def launch(
    module: str,
    *arguments: str,
    world: int,
    threads: int = 0,
    python: Path | str = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run `python -m module OUT arguments…` on ranks, and return the JSON that rank 0 wrote to OUT.

    Args:
        module: full name.
        arguments: of the module.
        world: number of ranks.
        threads: of each rank; 0: the ranks share the cores.
        python: interpreter.
        environment: variables beside this process's.

    Raises:
        RuntimeError: a rank fails; with the end of standard error.
    """
    each = str(threads or max(1, len(os.sched_getaffinity(0)) // world))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
        done = subprocess.run(
            with_parent([*torchrun, f"--nproc-per-node={world}", "-m", module, str(out), *arguments]),
            cwd=ROOT,
            env=os.environ | environment | {"OMP_NUM_THREADS": each, "LIVECTR_THREADS": each},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"{module} on {world} ranks ended with {done.returncode}: {done.stderr[-6000:]}"
            )
        return json.loads(out.read_text())


def answer(measure: Callable[[Collectives], object]) -> None:
    """Measure on this rank, which `launch` started; rank 0 writes the JSON. Dataclasses become objects."""
    with connect() as shared:
        found = measure(shared)
        if shared.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found, default=asdict))
