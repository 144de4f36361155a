"""A rank that fails ends the others within seconds, and they say which rank it was and why."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from livectr.local.ports import free_ports
from livectr.system.errors import InternalError
from livectr.trainer.comm import abort
from tests.commands import Command
from tests.tiers import few

ROOT = Path(__file__).parents[2]
HOW = [("waiting", 0), ("computing", 2), ("killed", 1)]
"""State of the failing rank, and its number."""
SOON_S = 540
"""Less than the transport's own time-out of ten minutes; seconds on a quiet machine."""
CAUSE = "rank {} failed: ConfigError: the spill is full"


@contextmanager
def ranks(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each rank, as torchrun would start it."""
    world = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    world |= {"MASTER_PORT": str(free_ports(1))}
    running: list[subprocess.Popen[str]] = [
        Command(
            [sys.executable, "-m", *command],
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("how", "failing"), few(HOW, ("killed", 1)))
def test_the_others_end_and_name_the_cause(how: str, failing: int) -> None:
    """The failed rank is still closing its resources: its connections are open."""
    with ranks([["tests.trainer.abort_worker", how, str(failing)]] * 3) as started:
        for rank, process in enumerate(started):
            if rank == failing:
                continue
            _, said = process.communicate(timeout=SOON_S)
            assert process.returncode == 1, said
            cause = "a rank ended without a word" if how == "killed" else CAUSE.format(failing)
            assert cause in said


def test_nobody_waits_for_a_rank_that_ended_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never reads the cause: all ranks would start again three seconds later."""
    monkeypatch.setattr(abort, "LINGER_S", 3600.0)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    left = abort.Abort(store, rank=0, world=2)
    with pytest.raises(InternalError, match="a rank ended without a word"), left.guard():
        raise RuntimeError("gloo: connection closed by peer")
    left.close()


@pytest.mark.full
@pytest.mark.parametrize("failing", few([0, 1], 1))
def test_a_rank_that_fails_before_it_has_joined(tmp_path: Path, failing: int) -> None:
    """One machine lacks the pipeline's file; its rank reports it to the others, which wait."""
    (tmp_path / "logs").mkdir()
    good = tmp_path / "pipeline.py"
    good.write_text("from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n")
    files = [tmp_path / "missing.py" if rank == failing else good for rank in range(2)]
    train = ["livectr", "train", "--source", f"file:{tmp_path / 'logs'}", "--pipeline"]
    with ranks([[*train, str(file)] for file in files]) as started:
        said = [process.communicate(timeout=SOON_S)[1] for process in started]
        assert [process.returncode for process in started] == [2 if r == failing else 1 for r in range(2)]
    assert f"rank {failing} failed: ConfigError: " in said[1 - failing]
    assert "missing.py" in said[1 - failing]
