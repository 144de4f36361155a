"""Output of `livectr inspect --pipeline` for the pipeline of display ads."""

from __future__ import annotations

from pathlib import Path

import pytest

from livectr.cli import main

DISPLAY_ADS = Path(__file__).parents[2] / "examples" / "display_ads" / "pipeline.py"


def inspect(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert main(["inspect", "--pipeline", str(DISPLAY_ADS), *map(str, flags)]) == 0
    return capsys.readouterr().out


def table(shown: str, title: str) -> list[list[str]]:
    """Cells of the rows of a printed table."""
    lines = shown[shown.index(f"{title}") :].split("└")[0].splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
