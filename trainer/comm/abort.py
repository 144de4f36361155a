"""The end of a run whose ranks cannot go on: one rank fails, all end within seconds and say why.

A rank that waits in a collective for one that failed would wait for the transport's time-out. So the first
failure is a key in the store of the process group (TCPStore), which outlives a single rank's collectives:

    1  the rank that fails writes the key, before it closes anything, and logs its error;
    2  a thread of every other rank looks for the key twice a second, through a connection of its own;
    3  a collective that breaks raises InternalError with the rank and the error that the key names;
    4  a rank that is still inside a collective GRACE_S after it saw the key ends at once, with exit code 1.

Step 4 is a kill -9 as far as checkpoints are concerned: the manifest is renamed or it is not. A collective
cannot be left in another way: Gloo does not interrupt a wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from livectr.kernels.errors import DataError, InternalError, UserError

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
GRACE_S = 1.5
"""A rank has this long to leave a broken collective by itself."""
LINGER_S = 3.0
"""The rank that failed may hold the store: it waits this long for the others to have read the key."""
JOIN_S = 30.0
"""So long a rank that fails before it has joined waits for the others, to tell them."""
EXIT_CODE = 1

_CAUSE, _SEEN = "livectr/failed", "livectr/failed-seen"


class Abort:
    """One rank's view of the run's first failure; without a store (one rank) there are no others to tell.

    Attributes:
        cause: the rank and error of the first failure, once this rank knows of it; "" before
    """

    def __init__(self, store: Store | None = None, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.cause = ""
        self._known = threading.Event()
        self._leaving = threading.Event()
        self._closed = threading.Event()
        self._told = False
        self._shared = store  # rank 0's is the server
        self._store: Store | None = None
        self._watcher: threading.Thread | None = None
        if store is not None:
            # Its own connection: a wait of the main thread holds the other one.
            self._store = store.clone()  # type: ignore[attr-defined]  # the stub lacks it
            self._store.set_timeout(timedelta(seconds=LINGER_S))
            self._watcher = threading.Thread(target=self._watch, name="abort", daemon=True)
            self._watcher.start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Tell the others of an exception that leaves the block; one inside the other is fine.

        Raises InternalError in place of a transport's error, with the cause where it is known.
        """
        try:
            yield
        except BaseException as error:
            self._leaving.set()
            if not _lost(error):
                if not (isinstance(error, DataError) and error.everywhere):
                    self.tell(error)
                raise
            self._known.wait(LOOK_EVERY_S + 0.5)
            why = self.cause or "a rank ended without a word (killed?)"
            found = InternalError(f"rank {self.rank} lost another rank of this run: {why}")
            self.tell(found)
            raise found from error

    def tell(self, error: BaseException) -> None:
        """Make `error` the run's failure, unless there was one before."""
        if self._store is None or self._told or self.cause:
            return
        self._told = True
        cause = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        if not isinstance(error, UserError):  # the command line says those
            LOG.error("%s", cause)
        with suppress(RuntimeError):  # the store's rank is gone: everybody sees that
            self._store.compare_set(_CAUSE, "", cause)

    def close(self) -> None:
        """Stop watching. A rank that told its failure stays until the others have read it."""
        if self._told and self._store is not None:
            until = time.monotonic() + LINGER_S
            with suppress(RuntimeError):
                while self._store.add(_SEEN, 0) < self.world - 1 and time.monotonic() < until:
                    time.sleep(0.05)
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        assert self._store is not None
        while not self._closed.wait(LOOK_EVERY_S):
            try:
                if self._told or not self._store.check([_CAUSE]):
                    continue
                self.cause = self._store.get(_CAUSE).decode(errors="replace")
                self._store.add(_SEEN, 1)
            except RuntimeError:
                return  # the store's rank has ended: its connections tell the rest
            self._known.set()
            break
        if self._known.is_set() and not (self._leaving.wait(GRACE_S) or self._closed.is_set()):
            LOG.error("rank %d ends: %s", self.rank, self.cause)
            logging.shutdown()
            os._exit(EXIT_CODE)


def join(timeout_s: float) -> tuple[Store, int, int]:
    """The store that the ranks of this run share, by the variables that torchrun sets; (store, rank, world).

    Waits until every rank has come.
    """
    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
    return store, rank, world


@contextmanager
def telling() -> Iterator[None]:
    """Tell the other ranks of an exception that leaves the block, where the run has not been joined yet."""
    try:
        yield
    except BaseException as error:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            with suppress(RuntimeError):  # nobody came
                abort = Abort(*join(JOIN_S))
                abort.tell(error)
                abort.close()
        raise


def _lost(error: BaseException) -> bool:
    """Whether the transport says that another rank is gone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
