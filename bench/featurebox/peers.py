"""The peers' own environment, made at the first run: their packages are no part of ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernels.errors import ConfigError

PACKAGES = Path(__file__).with_name("peers.txt")
ROOT = Path(__file__).parents[2]


def python() -> Path:
    """The interpreter of the environment under $LIVECTR_CACHE_DIR (default ~/.cache/livectr).

    Raises ConfigError when the packages cannot be installed.
    """
    digest = hashlib.sha256(PACKAGES.read_bytes() + sys.version.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")
    folder = cache / f"peers-{digest}"
    if not (folder / "ready").exists():
        names = ", ".join(PACKAGES.read_text().split())
        print(f"bench featurebox: installing the peers ({names}) into {folder}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(PACKAGES)]
            subprocess.run([*install, "--disable-pip-version-check"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"the peers {names} cannot be installed ({error}); look above") from error
        (folder / "ready").touch()
    return folder / "bin" / "python"


def run(peer: str, *arguments: str, cores: int) -> dict[str, Any]:
    """What module `peer` of this package prints as its last line, JSON."""
    if peer == "spark_peer" and shutil.which("java") is None:
        raise ConfigError("PySpark needs Java; install openjdk-17-jre-headless")
    done = subprocess.run(
        [str(python()), "-m", f"bench.featurebox.{peer}", *arguments],
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
