"""Pipeline files of trainers that get SIGTERM at a step that is known."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.waiting import until

FILE = """\
from dataclasses import replace

from tests.trainer.ad_logs import ad_pipeline
from tests.trainer.break_off import break_off

pipeline = replace(ad_pipeline(), settings={"batch_size": 64, "batch_ramp": 0, "threads": 1})
break_off(ranks=RANKS)
"""
BREAK_OFF = "BREAK_OFF_AT_STEP"
"""Environment variable; without it nothing is broken off."""


def write_pipeline(path: Path, ranks: int) -> Path:
    """Write the file of the ad pipeline, for a run that may be broken off."""
    path.write_text(FILE.replace("RANKS", str(ranks)))
    return path


def break_off(*, ranks: int) -> None:
    """Let rank 0 send SIGTERM to the process that a user has started, and wait until it gets it itself."""
    supervised = ranks > 1
    if BREAK_OFF not in os.environ or os.environ.get("RANK") != ("0" if supervised else None):
        return
    from livectr.trainer.run import Training
    from livectr.trainer.stream.batcher import Round

    ends, at = Training._ends, int(os.environ[BREAK_OFF])
    sent: list[bool] = []

    def stopping(self: Training, round_: Round) -> bool:
        if self._begun >= at and not sent:
            sent.append(True)
            os.kill(os.getppid() if supervised else os.getpid(), signal.SIGTERM)
            until(lambda: self.stop())
        return ends(self, round_)

    Training._ends = stopping  # type: ignore[method-assign]
