"""Detached start of a run: `livectr up --detach`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from livectr.trainer.process import stop_signals
from livectr.up.folder import POLL_S, RunFolder
from livectr.up.screen import Progress, show_parts


def up_detached(words: Sequence[str], environment: Mapping[str, str], folder: RunFolder) -> int:
    """Run a command under a process of its own, and return once all of its parts are ready.

    This process loads no pipeline: the other one would have to share the cores with it.

    Args:
        words: of `livectr up`, without --detach.
        environment: variables beside those of this process.
        folder: of the run.

    Returns:
        Exit code: 0, or that of the process if it ends before.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run has ended.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    log = folder.path / "up.log"
    command = [sys.executable, "-m", "livectr", *words]
    with log.open("wb") as out, stop_signals() as asked:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        progress = Progress()
        while child.poll() is None:
            state = folder.state()
            if state is not None and state.supervisor == child.pid:
                progress.show(state)
                commands = folder.next_commands()
                if commands is not None:
                    show_parts(state, commands)
                    return 0
                progress.wait_for(state)
            if asked():
                child.terminate()
                child.wait()
                raise KeyboardInterrupt
            time.sleep(POLL_S)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("livectr: ")]
    sys.stderr.write("\n".join(said[-1:]) + "\n")
    return child.returncode or 1
