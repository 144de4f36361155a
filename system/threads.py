"""Detection of dead threads: a process ends when one of its threads ended by an exception.

Python prints a traceback and continues. A server would answer from a version that nobody follows any more; a
trainer would keep rows that nobody removes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def watched_threads(act: Callable[[str], None] = lambda _: None) -> Iterator[list[str]]:
    """Logs the death of any thread, while this context is open.

    Args:
        act: called with a sentence in the dying thread.

    Returns:
        Context whose value is the list of these sentences.
    """
    deaths: list[str] = []
    before = threading.excepthook

    def note(what: threading.ExceptHookArgs) -> None:
        name = what.thread.name if what.thread is not None else "unknown"
        sentence = f"thread {name!r} ended by {what.exc_type.__name__}: {what.exc_value}"
        value = what.exc_value
        log.critical("%s", sentence, exc_info=(what.exc_type, value, what.exc_traceback) if value else None)
        deaths.append(sentence)
        act(sentence)

    threading.excepthook = note
    try:
        yield deaths
    finally:
        threading.excepthook = before
