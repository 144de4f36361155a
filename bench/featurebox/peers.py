"""The peers of this benchmark, each a process in an environment of their own (`bench.environment`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.environment import ROOT, python
from livectr.system.errors import ConfigError

PACKAGES = Path(__file__).with_name("peers.txt")


def run(peer: str, *arguments: str, cores: int) -> dict[str, Any]:
    """Last line that module `peer` of this package prints, parsed as JSON."""
    if peer == "spark_peer" and shutil.which("java") is None:
        raise ConfigError("PySpark needs Java; install openjdk-17-jre-headless")
    done = subprocess.run(
        [str(python(PACKAGES, program="bench featurebox")), "-m", f"bench.featurebox.{peer}", *arguments],
        cwd=ROOT,
        env=os.environ | {"POLARS_MAX_THREADS": str(cores), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{peer} ended with status {done.returncode}: {done.stderr[-3000:]}")
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found
