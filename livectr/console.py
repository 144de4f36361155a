"""Console of the commands that print tables."""

import os
import sys

from rich.console import Console

PIPED_WIDTH = 160
"""Width of output that is piped, unless COLUMNS is set."""


def make_console() -> Console:
    """Console as wide as the terminal, or PIPED_WIDTH."""
    return Console(width=PIPED_WIDTH if is_piped() else None)


def is_piped() -> bool:
    """Tell if standard output is no terminal, and nothing else says its width."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ
