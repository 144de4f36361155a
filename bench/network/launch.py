"""Launch of a module on the ranks of a network, a torchrun in each namespace, and the result of rank 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench.environment import ROOT
from bench.network.namespaces import DEVICE, Wires
from livectr.system.children import with_parent

PORT = 29500
LONGEST_S, ENDS_S = 1200, 20


def launch(wires: Wires, module: str, *arguments: str, python: Path | str = sys.executable) -> Any:
    """Run `python -m module OUT arguments…` with a thread in every namespace; return rank 0's JSON in OUT.

    Ranks that a failure leaves end with the network (`bench.network.namespaces.network`).

    Args:
        wires: of the ranks.
        module: full name.
        arguments: of the module.
        python: interpreter.

    Raises:
        RuntimeError: a rank fails, with the end of its standard error; or they take longer than LONGEST_S.
    """
    names = {"GLOO_SOCKET_IFNAME": DEVICE, "TP_SOCKET_IFNAME": DEVICE, "NCCL_SOCKET_IFNAME": DEVICE}
    threads = {"OMP_NUM_THREADS": "1", "LIVECTR_THREADS": "1"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = folder / "found.json"
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, ranks)
        for rank in range(len(wires.ranks)):
            torchrun = [
                *(str(python), "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=0"),
                *(f"--nnodes={len(wires.ranks)}", f"--node-rank={rank}"),
                *(f"--master-addr={wires.address(0)}", f"--master-port={PORT}"),
                *("-m", module, str(out), *arguments),
            ]
            with _said(folder, rank).open("w") as said:
                ranks.append(
                    subprocess.Popen(
                        with_parent(wires.inside(rank, torchrun)),
                        cwd=ROOT,
                        env=os.environ | threads | names,
                        stderr=said,
                    )
                )
        _wait(module, ranks, folder)
        return json.loads(out.read_text())


def _wait(module: str, ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all ranks have ended, or one has failed."""
    until = time.monotonic() + LONGEST_S
    while (codes := [process.poll() for process in ranks]) != [0] * len(ranks):
        for rank, code in enumerate(codes):
            if code:
                said = _said(folder, rank).read_text()[-6000:]
                raise RuntimeError(f"{module}: rank {rank} of {len(ranks)} ended with {code}: {said}")
        if time.monotonic() > until:
            raise RuntimeError(f"{module} has not ended after {LONGEST_S} s")
        time.sleep(0.1)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs."""
    for process in ranks:
        process.terminate()
    for process in ranks:
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)
        process.kill()
        process.wait()


def _said(folder: Path, rank: int) -> Path:
    """File of a rank's standard error."""
    return folder / f"stderr-{rank}"
