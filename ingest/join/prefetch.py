"""Read-ahead: a thread that runs an iterator ahead of its reader, within a bounded queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item]):
    """Iterator that a thread reads ahead. Exceptions of the iterator are raised by `next`.

    Args:
        items: iterator that the thread runs.
        ahead: greatest number of waiting items.
        name: of the thread.
    """

    def __init__(self, items: Iterator[Item], ahead: int, *, name: str) -> None:
        self._items, self._ahead = items, ahead
        self._changed = threading.Condition()
        # The fields below are guarded by _changed.
        self._ready: deque[Item] = deque()
        self._error: BaseException | None = None
        self._finished = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def next(self) -> Item | None:
        """Return the next item, or None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Stop the thread; a second call does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._ahead or self._stopping)
                    if self._stopping:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
