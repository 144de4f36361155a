"""Precompute of a version: vectors of a rank's content (DICM §6), beside the training.

A sub-model changes with every step, and with it the vector of every id. So by default each version has the
vectors of all ids by the sub-model of its own step (`ContentPrecompute`); trainer.content.refresh computes
some of them. A commit copies the sub-model, the publisher's thread runs the copy over the features of this
rank, and the version is flipped when all ranks have finished. Metrics: `livectr_precompute_seconds` and
`rate(livectr_precomputed_content_total)`.

Each worker multiplies its own blocks on a single core, so that none waits for another. Their niceness is
raised by `NICE`, so that a step that needs the cores gets most of them. Memory: the blocks in flight, and a
blob of vectors.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from livectr.models.embedding import SubNetwork
from livectr.store.vectors import blob_count, blob_rows
from livectr.trainer.content import telemetry
from livectr.trainer.content.ams import Features16

I64 = npt.NDArray[np.int64]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

ROWS = 1024
"""Rows of a block."""
NICE = 5
"""Added to the workers' niceness: beside a busy thread of a step they get a third of the core."""


class StoppedError(Exception):
    """Precompute was interrupted: the process ends, and the version is not needed any more."""


class Precompute(Protocol):
    """Vectors of one content that this rank computes for a version.

    Attributes:
        tags: of the blobs, in the order in which `run` yields them; the last part of their names.
        whole: the blobs hold all of this rank's ids; else blobs of the version before stay, but for those of
            equal tags.
    """

    @property
    def tags(self) -> Sequence[str]:
        """Last parts of the blobs' names, in the order in which `run` yields them."""

    @property
    def whole(self) -> bool:
        """True if the blobs hold all of this rank's ids; else only those of the same tags are replaced."""

    def run(self, stopped: Callable[[], bool]) -> Iterator[tuple[I64, F32]]:
        """Yield ids i64[n] and their vectors f32[n, out] of each blob.

        Raises:
            StoppedError: `stopped` returns True.
        """

    def published(self) -> None:
        """Note that the version is served. In the training thread, alike on every rank."""


class Embedder:
    """Copy of a sub-model that embeds blocks on workers.

    Attributes:
        out: numbers of a vector.
    """

    def __init__(self, name: str, network: SubNetwork) -> None:
        self.name = name
        self.out = int(network.absent.shape[0])
        self._network = copy.deepcopy(network).eval().requires_grad_(False)
        self._device = network.absent.device
        self._workers = torch.get_num_threads() if self._device.type == "cpu" else 1

    def over(
        self, blocks: Iterable[tuple[I64, Callable[[], F16]]], stopped: Callable[[], bool]
    ) -> Iterator[tuple[I64, F32]]:
        """Ids i64[k] and vectors f32[k, out] of all blocks, in order; 2 blocks a worker are in flight.

        Args:
            blocks: ids i64[k], and a function that a worker calls for their features f16[k, width].
            stopped: asked after each block; True: the process ends.

        Raises:
            StoppedError: `stopped` returns True.
        """
        under_way: deque[tuple[I64, Future[F32]]] = deque()
        with workers(self._workers) as pool:
            try:
                for ids, features in blocks:
                    under_way.append((ids, pool.submit(self._embed, features)))
                    if len(under_way) >= 2 * self._workers:
                        yield self._next(under_way, stopped)
                while under_way:
                    yield self._next(under_way, stopped)
            finally:
                pool.shutdown(cancel_futures=True)

    def _next(
        self, under_way: deque[tuple[I64, Future[F32]]], stopped: Callable[[], bool]
    ) -> tuple[I64, F32]:
        ids, future = under_way.popleft()
        vectors = future.result()
        if stopped():
            raise StoppedError
        telemetry.PRECOMPUTED_CONTENT.labels(self.name).inc(len(ids))
        return ids, vectors

    @torch.inference_mode()
    def _embed(self, features: Callable[[], F16]) -> F32:
        # a copy, since PyTorch does not accept read-only memory, such as a mapped file
        rows = torch.from_numpy(np.array(features())).to(self._device)
        out: F32 = self._network.embed(rows.float()).cpu().numpy()
        return out


class ContentPrecompute:
    """Vectors of all ids of one content for one version, by a copy of the current sub-model (`Precompute`).

    Args:
        name: of the content.
        network: sub-model, copied at once.
        store: features of this rank.

    Attributes:
        blobs: number of blobs that `run` yields
    """

    whole = True

    def __init__(self, name: str, network: SubNetwork, store: Features16) -> None:
        self.name = name
        self._store = store
        self._embedder = Embedder(name, network)
        self.blobs = blob_count(len(store), self._embedder.out)

    @property
    def tags(self) -> Sequence[str]:
        """See `Precompute`."""
        return [str(number) for number in range(self.blobs)]

    def run(self, stopped: Callable[[], bool]) -> Iterator[tuple[I64, F32]]:
        """Yield `blobs` times ids i64[n] and their vectors f32[n, out].

        Every id of the store comes once, also ids that were added meanwhile.

        Raises:
            StoppedError: `stopped` returns True.
        """
        started = time.perf_counter()
        ids: list[I64] = [np.empty(0, np.int64)]
        vectors: list[F32] = [np.empty((0, self._embedder.out), np.float32)]
        rows = blob_rows(self._embedder.out)
        given = held = 0
        for some, embedded in self._embedder.over(self._blocks(), stopped):
            ids.append(some)
            vectors.append(embedded)
            held += len(some)
            if held >= rows and given < self.blobs - 1:
                yield np.concatenate(ids), np.concatenate(vectors)
                given, held = given + 1, 0
                del ids[1:], vectors[1:]
        telemetry.PRECOMPUTE_SECONDS.labels(self.name).observe(time.perf_counter() - started)
        for _ in range(given, self.blobs):
            yield np.concatenate(ids), np.concatenate(vectors)
            del ids[1:], vectors[1:]

    def published(self) -> None:
        """See `Precompute`."""
        telemetry.OLDEST_CONTENT.labels(self.name).set(0)

    def _blocks(self) -> Iterator[tuple[I64, Callable[[], F16]]]:
        for ids, features in self._store.chunks(ROWS):
            yield ids, lambda features=features: features  # type: ignore[misc]  # bound now


def workers(count: int) -> ThreadPoolExecutor:
    """Threads of low priority that compute on one core each; other threads keep their setting."""
    ready = threading.Barrier(count + 1)

    def begin() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _niceness())
            torch.get_num_threads()  # makes the setting this thread's own
            torch.set_num_threads(1)
        finally:
            ready.wait()

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="sweep", initializer=begin)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(before)  # for threads that start later
    return pool


def _niceness() -> int:
    return min(19, os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + NICE)
