"""Commit and machine that figures were measured on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.environment import ROOT


def commit() -> str:
    """Commit of the checkout, marked `-dirty` when files differ from it; "unknown" without git."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware() -> dict[str, Any]:
    """Processor, cores, memory (GiB), GPU, and the versions of Python and torch."""
    import torch

    from livectr.models.precision import arithmetic_name

    processor = platform.processor() or platform.machine()
    memory = 0
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        processor = models[0] if models else processor
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": version("torch"),
        "bf16": arithmetic_name("bf16", torch.device("cpu")),
    }
