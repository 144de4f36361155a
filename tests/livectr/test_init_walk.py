"""The walk of a new user: the commands that `livectr init` prints, run as they are, from a CSV to a CTR."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from livectr.local.ports import free_ports
from livectr.trainer.options import TrainOptions
from tests.commands import run
from tests.livectr.shop_rows import ROWS, shop_rows, write_csv

WAIT_S = 120


class Desk:
    """Folder in which a user types commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def types(self, line: str) -> str:
        """Run a command to its end, and return what it prints."""
        done = run(
            self._words(line),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @staticmethod
    def _words(line: str) -> list[str]:
        words = shlex.split(line)
        assert words[0] == "livectr"
        return [sys.executable, "-m", "livectr", *words[1:]]


def test_from_a_csv_to_a_ctr(tmp_path: Path) -> None:
    write_csv(tmp_path / "shop.csv", shop_rows())
    desk = Desk(tmp_path)
    said = desk.types("livectr init --from shop.csv --label clicked")
    printed = said.partition("Continue with:\n")[2].replace("50051", str(free_ports(1)))
    check, up, query, down = (line.strip() for line in printed.strip().splitlines())
    assert "checks" in desk.types(check)
    assert TrainOptions.min_examples > ROWS  # the command says min_examples
    try:
        assert "rank" in desk.types(up)
        answer = desk.types(query)
    finally:
        desk.types(down)
    assert "pctr" in answer and len([line for line in answer.splitlines() if line.startswith("│")]) == 3
