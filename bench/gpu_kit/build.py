"""Builds the kernels that the kit brings along: `python -m bench.gpu_kit.build`.

It runs the kit's dry run, which knows all kernels that a run on a GPU asks for, and compiles those that are
not in .gpu_kit/ by NVRTC, which needs no GPU. What nothing asks for any more is deleted. The kernel library
of this CPU is brought along, too: a machine with a CPU of the same level compiles none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.environment import ROOT
from bench.gpu_kit.events import noted
from bench.gpu_kit.kernels import ARCH, BUILD
from livectr.kernels.runtime import library
from livectr.system.cpu import own_levels

FOLDER = ROOT / ".gpu_kit"
MOST_BYTES = 40 << 20
"""Greatest size of what is brought along: it travels with the checkout."""


def main() -> None:
    """Build, and say how many there are. The exit code is 1 if a step failed, or if they are too large."""
    level = own_levels()[0]
    brought = library.build(level, FOLDER, progress=True)
    for old in set(brought.parent.iterdir()) - {brought}:
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="livectr-kit-") as out:
        command = [str(ROOT / "bench" / "gpu_kit" / "run.sh"), out, "--dry"]
        done = subprocess.run(
            command, env=os.environ | {BUILD: str(FOLDER), "PYTHON": sys.executable}, check=False
        )
        asked = {kernel["key"] for kernel in noted(Path(out), "kernel")}
        seconds = sum(kernel["seconds"] for kernel in noted(Path(out), "kernel"))
    cubins = list((FOLDER / ARCH).glob("*.cubin"))
    if done.returncode == 0:
        for cubin in cubins:
            if cubin.stem not in asked:
                cubin.unlink()
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    made = f"{len(asked)} cubins and the library of {level.name}, {size / 2**20:.1f} MiB in {FOLDER}"
    print(f"{made}; {seconds:.0f} s of NVRTC")
    sys.exit(done.returncode or int(size > MOST_BYTES))


if __name__ == "__main__":
    main()
