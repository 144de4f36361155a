"""Rank whose failure is reported to the others: abort_worker.py HOW RANK, with torchrun's variables."""

import os
import signal
import sys
import time
from contextlib import ExitStack

import numpy as np

from livectr.system.errors import ConfigError, InternalError
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control


def main(how: str, failing: int) -> int:
    """Exchange numbers with the other ranks forever; rank `failing` ends in the third round."""
    try:
        with connect() as shared, ExitStack() as resources, shared.abort.guard():
            resources.callback(lambda: time.sleep(600 if shared.rank == failing else 0))  # a slow server
            control = Control(shared.rank, shared.world)
            for turn in range(10**9):
                if turn == 3 and shared.rank == failing:
                    print("fails", flush=True)
                    if how == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ConfigError("the spill is full")
                if turn == 3 and how == "computing":
                    time.sleep(6000)  # no collective would break
                control.gather(np.array([turn]))
    except InternalError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
