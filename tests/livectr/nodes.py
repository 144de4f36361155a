"""Supervisors of several nodes on one machine, with ranks that only meet, commit steps and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from livectr.local.gang import Gang
from livectr.local.ports import free_ports
from livectr.local.ranks import UNFINISHED
from tests.waiting import alive, until

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0
PATIENT = f"for module in (gathering, meeting): module.SILENT_S = {600 * WAIT_S}"
"""A supervisor that a busy machine stalls for 20 s is not gone: it would be one more round."""
RANK = """
import json, os, signal, sys, time
from pathlib import Path

here, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life = here / os.environ["MASTER_PORT"]
life.mkdir(exist_ok=True)
BEFORE
stopping = []
(life / f"{rank}-{os.getpid()}").touch()

def pids():
    return {int(p.name.partition("-")[2]) for p in life.glob("*-*")}

def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

while len(pids()) < world:  # a rank that waits for others has no handler yet: SIGTERM ends it
    time.sleep(0.01)
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
if rank == 0:
    step = len(list((here / "checkpoint").glob("gen-*"))) + 1
    folder = here / "checkpoint" / f"gen-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text(json.dumps({"body": json.dumps({"step": step})}))
(life / f"trains.{rank}").touch()
while not (life / "stop").exists():  # as ranks do: when one is told to stop, all of them end
    if stopping:
        (life / "stop").touch()
    if not all(map(runs, pids())) and not (life / "stop").exists():
        sys.exit(1)  # lost another rank
    time.sleep(0.01)
sys.exit(CODE)
"""


class Nodes:
    """Supervisors of nodes; a rendezvous of their own.

    Args:
        folder: files of the test.
        before: code that a rank runs before it meets the others.
        until_stopped: supervise as in pods.
        until_end: the log is bounded, and the ranks never come to its end.
    """

    def __init__(
        self,
        folder: Path,
        before: str = "",
        *,
        until_stopped: bool = True,
        restarts: int = 0,
        until_end: bool = False,
    ) -> None:
        self.folder = folder
        code = str(UNFINISHED if until_end else 0)
        (folder / "rank.py").write_text(RANK.replace("BEFORE", before).replace("CODE", code))
        self.rendezvous = f"127.0.0.1:{free_ports(1)}"
        self._flags = (
            f"{restarts}, Path({str(folder / 'checkpoint')!r}), gang, {until_stopped}, 0.0, {until_end}"
        )
        self.running: list[subprocess.Popen[str]] = []

    def start(
        self, node: int, nodes: int = 2, *, ranks: int = 1, generation: str = "", patch: str = ""
    ) -> subprocess.Popen[str]:
        """Start the supervisor of a node."""
        gang = Gang(nodes, node, ranks, generation, self.rendezvous)
        program = f"""
import logging, sys
from pathlib import Path
from livectr.system.errors import LiveCTRError
from livectr.local import gathering, meeting
from livectr.local.gang import Gang
from livectr.local.ranks import Ranks
from livectr.local.supervise import Supervision, supervise
logging.basicConfig(level=logging.INFO)
{PATIENT}
{patch}
gang = {gang!r}
command = ({sys.executable!r}, {str(self.folder / "rank.py")!r}, {str(self.folder)!r})
ranks = Ranks(command, {ranks}, {{}}, {nodes}, {node})
try:
    sys.exit(supervise(Supervision(ranks, {self._flags})))
except LiveCTRError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""
        log = (self.folder / f"node-{len(self.running)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdout=log, stderr=log, text=True
        )
        process.log = Path(log.name)  # type: ignore[attr-defined]
        self.running.append(process)
        return process

    def lives(self) -> list[Path]:
        """Folders of the rounds, oldest first."""
        folders = [path for path in self.folder.iterdir() if path.name.isdigit()]
        return sorted(folders, key=lambda path: path.stat().st_ctime)

    def train(self, world: int, after: int = 0) -> Path:
        """Wait until `world` ranks train in a round after the first `after` rounds; its folder."""
        found: list[Path] = []

        def trains() -> bool:
            found[:] = [path for path in self.lives()[after:] if len(list(path.glob("trains.*"))) == world]
            return bool(found)

        until(trains)
        return found[-1]

    def kill(self) -> None:
        """Kill all supervisors, which takes their ranks along."""
        for process in self.running:
            family = []
            with suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid).children()
            process.kill()
            process.wait()
            until(lambda: not alive(family))  # noqa: B023


def pids(life: Path) -> dict[int, int]:
    """Rank → pid."""
    parts = [path.name.split("-") for path in life.glob("*-*")]
    return {int(rank): int(pid) for rank, pid in parts}


def said(process: subprocess.Popen[str]) -> str:
    return str(process.log.read_text())  # type: ignore[attr-defined]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def step(folder: Path) -> int:
    """Step of the newest checkpoint of the stand-in ranks."""
    newest = max((folder / "checkpoint").glob("gen-*/MANIFEST.json"))
    return int(json.loads(json.loads(newest.read_text())["body"])["step"])
