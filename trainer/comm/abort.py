"""Abort protocol: if one rank fails, all ranks end within seconds and log the cause.

A rank in a collective would wait for a failed rank until the transport's time-out. So the first failure is a
key in the store of the process group (TCPStore), which outlives a single rank's collectives:

    1  the rank that fails writes the key, before it closes anything, and logs its error; of a machine's ranks
       with the same user's mistake, the first tells it
    2  a thread of every other rank polls the key twice a second, through its own connection
    3  a collective that breaks raises InternalError with the rank and the error of the key
    4  a rank that is still inside a collective GRACE_S after it saw the key exits at once, with code 1

Step 4 is safe for checkpoints, like a kill -9: a manifest is renamed or it is not. A collective cannot be
left in another way: Gloo does not interrupt a wait.
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

from livectr.system.errors import DataError, InternalError, NotLearningError, UserError
from livectr.system.logs import tell

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
GRACE_S = 1.5
"""Time that a rank has to leave a broken collective by itself."""
LINGER_S = 3.0
"""Time that the failed rank, which may hold the store, waits until the others have read the key."""
JOIN_S = 30.0
"""Time that a rank that fails before it has joined waits for the others, to report its failure."""
EXIT_CODE = 1

_CAUSE, _SEEN, _TOLD = "livectr/failed", "livectr/failed-seen", "livectr/told"


class Abort:
    """First failure of a run, as one rank sees it.

    Args:
        store: of the process group; None: a single rank.
        rank: this rank.
        world: N ranks.

    Attributes:
        cause: rank and error of the first failure, once this rank knows of it; "" before
    """

    def __init__(self, store: Store | None = None, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.cause = ""
        self._known = threading.Event()
        self._leaving = threading.Event()
        self._closed = threading.Event()
        self._reported = False
        self._silent = 0  # ranks that ended without a report: they read none either
        self._shared = store  # rank 0 has the server: keep it open
        self._store: Store | None = None
        self._watcher: threading.Thread | None = None
        if store is not None:
            # Its own connection: a wait of the main thread holds the other connection.
            self._store = store.clone()  # type: ignore[attr-defined]  # the stub lacks it
            self._store.set_timeout(timedelta(seconds=LINGER_S))
            self._watcher = threading.Thread(target=self._watch, name="abort", daemon=True)
            self._watcher.start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Report an exception that leaves the block to the other ranks; guards may be nested.

        Raises:
            InternalError: in place of a transport's error, with the cause where it is known.
        """
        try:
            yield
        except BaseException as error:
            self._leaving.set()
            if not _is_transport_error(error):
                alike = isinstance(error, NotLearningError) or (
                    isinstance(error, DataError) and error.everywhere
                )
                if not alike:
                    self.report(error)
                raise
            self._known.wait(LOOK_EVERY_S + 0.5)
            self._silent = int(not self.cause)
            why = self.cause or "a rank ended without a word (killed?)"
            failure = InternalError(f"rank {self.rank} lost another rank of this run: {why}")
            self.report(failure)
            raise failure from error

    def report(self, error: BaseException) -> None:
        """Make `error` the run's failure, unless another came first (compare-and-swap)."""
        if self._store is None:
            return
        if isinstance(error, UserError) and not error.told:
            self._tell(error)
        if self._reported or self.cause:
            return
        self._reported = True
        cause = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        if not isinstance(error, UserError):
            LOG.error("%s", cause)
        with suppress(RuntimeError):  # the store's rank is gone: all connections break
            self._store.compare_set(_CAUSE, "", cause)

    def _tell(self, error: UserError) -> None:
        """Tell a user's mistake, unless another rank of this machine has told the same."""
        assert self._store is not None
        machine = self.rank // int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        own = f"{self.rank}: {error}"
        with suppress(RuntimeError):  # the store's rank is gone
            first = self._store.compare_set(f"{_TOLD}-{machine}", "", own).decode(errors="replace")
            if first == own or first.partition(": ")[2] != str(error):
                tell(str(error))
            error.told = True

    def close(self) -> None:
        """Stop watching. A rank that reported its failure waits until the others, if alive, have read it."""
        if self._reported and self._store is not None:
            until = time.monotonic() + LINGER_S
            with suppress(RuntimeError):
                others = self.world - 1 - self._silent
                while self._store.add(_SEEN, 0) < others and time.monotonic() < until:
                    time.sleep(0.05)
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        assert self._store is not None
        while not self._closed.wait(LOOK_EVERY_S):
            try:
                if self._reported or not self._store.check([_CAUSE]):
                    continue
                self.cause = self._store.get(_CAUSE).decode(errors="replace")
                self._store.add(_SEEN, 1)
            except RuntimeError:
                return  # the store's rank has ended: all connections break
            self._known.set()
            break
        if self._known.is_set() and not (self._leaving.wait(GRACE_S) or self._closed.is_set()):
            LOG.error("rank %d ends: %s", self.rank, self.cause)
            logging.shutdown()
            os._exit(EXIT_CODE)


def join(timeout_s: float) -> tuple[Store, int, int]:
    """Join the run by torchrun's environment variables; waits until every rank has joined.

    Returns:
        The store that all ranks share, this rank, and the number of ranks.
    """
    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
    return store, rank, world


@contextmanager
def report_failures() -> Iterator[None]:
    """Report an exception that leaves the block to the other ranks, before this rank has joined the run."""
    try:
        yield
    except BaseException as error:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            with suppress(RuntimeError):  # no other rank joined
                abort = Abort(*join(JOIN_S))
                abort.report(error)
                abort.close()
        raise


def _is_transport_error(error: BaseException) -> bool:
    """True if the transport lost another rank."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
