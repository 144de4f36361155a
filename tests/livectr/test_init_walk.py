"""The walk of a new user: the commands that `livectr init` prints, run as they are, from a CSV to a CTR."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from livectr.local.ports import free_ports
from livectr.trainer.options import TrainOptions
from tests.commands import Command, run
from tests.livectr.shop_rows import ROWS, shop_rows, write_csv
from tests.waiting import left_s

WAIT_S = 120


class Desk:
    """Folder in which a user types commands."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self._folder, self._ended = folder, ended
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

    def starts(self, line: str, says: str) -> None:
        """Start a command in the background, and wait until it says that it is there."""
        process = Command(
            self._words(line.removesuffix(" &")),
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ended.callback(self._end, process)
        assert process.stdout is not None
        assert says in process.stdout.readline()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=left_s())

    @staticmethod
    def _words(line: str) -> list[str]:
        words = shlex.split(line)
        assert words[0] == "livectr"
        return [sys.executable, "-m", "livectr", *words[1:]]


def test_from_a_csv_to_a_ctr(tmp_path: Path) -> None:
    write_csv(tmp_path / "shop.csv", shop_rows())
    redis = free_ports(2)
    server = redis + 1
    with ExitStack() as ended:
        desk = Desk(tmp_path, ended)
        said = desk.types("livectr init --from shop.csv --label clicked")
        printed = (
            said.partition("Continue with:\n")[2].replace("26379", str(redis)).replace("50051", str(server))
        )
        check, start_redis, train, serve, query = (line.strip() for line in printed.strip().splitlines())
        assert "checks" in desk.types(check)
        desk.starts(start_redis, "Redis answers at")
        trained = desk.types(train)
        assert TrainOptions.min_examples > ROWS  # the command says min_examples
        assert f"{ROWS} in " in trained and "how well, each example scored before it was learned" in trained
        desk.starts(serve, "rank server ready on")
        answer = desk.types(query)
        assert "pctr" in answer and len([line for line in answer.splitlines() if line.startswith("│")]) == 3
