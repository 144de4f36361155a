"""Folder `bench` of a checkout: it is no part of the installed package."""

import importlib
import sys
from pathlib import Path
from typing import Any

from livectr.system.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def import_from_checkout(module: str, command: str) -> Any:
    """Import a module of `bench` for the command that needs it.

    Raises ConfigError when LiveCTR is an installed package and not a checkout.
    """
    if not (ROOT / "bench" / "run.py").is_file():
        raise ConfigError(
            f"`livectr {command}` needs a checkout of the repository; this is an installed package."
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(module)
