"""Commit and machine that figures were measured on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.environment import ROOT

VECTORS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
"""Instructions that decide a benchmark's figures, as Linux names them."""


def commit() -> str:
    """Commit of the checkout, marked `-dirty` when files differ from it.

    Without git it is $LIVECTR_COMMIT, for a copy of a checkout on another machine, else "unknown".
    """
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LIVECTR_COMMIT", "unknown")


def hardware() -> dict[str, Any]:
    """Processor, cores, memory (GiB), GPU, and the versions of Python and torch."""
    import torch

    from livectr.models.precision import arithmetic_name

    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": version("torch"),
        "bf16": arithmetic_name("bf16", torch.device("cpu")),
    }


def processor() -> str:
    """Name, family, model and vector instructions: "AMD EPYC, family 25, model 1, avx2".

    A virtual machine may give processors of several generations one name.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = (line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
    of_last = {name.strip(): value.strip() for name, value in lines}
    numbers = [f"{name.split()[-1]} {of_last[name]}" for name in ("cpu family", "model") if name in of_last]
    flags = of_last.get("flags", "").split()
    vectors = [flag for flag in VECTORS if flag in flags]
    return ", ".join([of_last.get("model name", platform.machine()), *numbers, *vectors])
