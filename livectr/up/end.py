"""End of a run: `livectr down`."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from livectr.local.parts import alive
from livectr.system.errors import ConfigError, InternalError
from livectr.up.folder import POLL_S, RunFolder
from livectr.up.runs import word_of
from livectr.up.screen import Progress, say
from livectr.up.supervisor import GRACE_S

DOWN_S = sum(GRACE_S.values()) + 10.0
"""Longest end of a run."""


def down(folder: RunFolder) -> None:
    """End a run in order, and wait until it has ended.

    Raises:
        ConfigError: it is not up.
        InternalError: it does not end.
    """
    end = time.monotonic() + DOWN_S
    while folder.running and (state := folder.state()) is None and time.monotonic() < end:
        time.sleep(POLL_S)  # it has been started this moment
    if not folder.running or state is None:
        raise ConfigError(f"the run in {word_of(folder)} is not up.")
    progress, pid = Progress(state), state.supervisor
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while folder.running:
        if (state := folder.state()) is not None:
            progress.show(state)
        if time.monotonic() > end:
            raise InternalError(f"the run in {word_of(folder)} has not ended after {DOWN_S:g} s.")
        time.sleep(POLL_S)
    while alive(pid) and time.monotonic() < end:
        time.sleep(POLL_S)
    say(f"{word_of(folder)} is down; `livectr up` goes on from its checkpoint.")
