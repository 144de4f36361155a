"""Program that draws the flame graphs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.environment import ROOT
from bench.flames import flame
from bench.flames.works import WORKS, Work
from bench.machine import commit, hardware
from livectr.system.children import with_parent
from livectr.system.errors import InternalError

SECONDS = 15.0
WARM_S = 300.0


def draw(name: str, work: Work, seconds: float) -> str:
    """Picture of some seconds of work."""
    each = str(max(1, len(os.sched_getaffinity(0)) // work.world))
    threads = {"OMP_NUM_THREADS": each, "LIVECTR_THREADS": each, "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory() as folder:
        pid_file = Path(folder, "pid")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
        words = [f"--nproc-per-node={work.world}", "-m", "bench.flames.rank", str(pid_file), name]
        errors = Path(folder, "errors")
        with errors.open("wb") as log:
            command = with_parent([*torchrun, *words])
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | threads, stderr=log)
        try:
            folded = flame.record(_warm(process, pid_file, errors), seconds, native=True)
        finally:
            process.terminate()
            process.wait()
    return flame.svg(flame.tree(folded, work.entry), f"{work.title}; {hardware()['processor']}; {commit()}")


def _warm(process: subprocess.Popen[bytes], pid_file: Path, errors: Path) -> int:
    """Process id of a rank that is warm."""
    deadline = time.monotonic() + WARM_S
    while not (pid_file.exists() and pid_file.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise InternalError(f"bench.flames: no rank has become warm: {errors.read_text()[-3000:]}")
        time.sleep(0.1)
    return int(pid_file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flames", description="Draw flame graphs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKS)}; default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of samples (default: %(default)g)")
    given = parser.parse_args()
    if unknown := set(given.names) - set(WORKS):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose of {', '.join(WORKS)}")
    for name in given.names or WORKS:
        path = ROOT / "docs" / f"flame-{name}.svg"
        path.write_text(draw(name, WORKS[name], given.seconds))
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
