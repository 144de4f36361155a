"""Virtual environments of peers and tools, made at the first run; their packages are not among ours."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from livectr.system.errors import ConfigError

ROOT = Path(__file__).parents[1]


def cache() -> Path:
    """$LIVECTR_CACHE_DIR, or ~/.cache/livectr."""
    return Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")


def python(packages: Path, *, program: str, beside_ours: bool = False) -> Path:
    """Interpreter of an environment with the packages of a requirements file.

    Args:
        packages: the requirements file.
        program: who needs it, for messages.
        beside_ours: install without dependencies, with this interpreter's packages behind them: both sides of
            a benchmark can run in one process, on one torch.

    Raises:
        ConfigError: the packages cannot be installed.
    """
    ours = sysconfig.get_path("purelib") if beside_ours else ""
    content = packages.read_bytes() + sys.version.encode() + ours.encode()
    folder = cache() / f"peers-{hashlib.sha256(content).hexdigest()[:16]}"
    if not (folder / "ready").exists():
        print(f"{program}: installing the packages of {packages.name} into {folder}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(packages)]
            alone = ["--no-deps"] if beside_ours else []
            subprocess.run([*install, *alone, "--disable-pip-version-check"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"{packages.name} cannot be installed ({error}); look above") from error
        if beside_ours:
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "ours.pth").write_text(ours + "\n")
        (folder / "ready").touch()
    return folder / "bin" / "python"


def needs_torch(wanted: str) -> None:
    """Check that torch has the release that the peers' binaries are built for. Raises ConfigError."""
    found = importlib.metadata.version("torch").split("+")[0]
    if found != wanted:
        raise ConfigError(
            f"the peers are built for torch {wanted}, this environment has {found}; install torch=={wanted}"
        )
