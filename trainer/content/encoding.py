"""Encoding of new pictures: from the stream into the store that the AMS reads.

    topic ─► ContentTopic ─► newest of each id ─► encoder ─► ContentStore ─► trainer.content.ams
             own shards       known digest: skip              own shards

Rank r of N encodes the pictures of its own shards, s with s mod N = r, in a thread beside the training loop.
The loop waits for it at the start only: all pictures that are in the topic by then are encoded before the
first batch, so that a bounded run depends on the logs alone. Later pictures arrive asynchronously, like rows
of look-up tables: until its picture is stored, an id has the sub-model's "absent" vector.

Every process reads the topic from its beginning. A picture that is stored with an equal digest is not encoded
again, so that a restart costs only the reading.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

import numpy as np
import numpy.typing as npt
import torch

from livectr.ingest.content.encode import PictureWriter
from livectr.ingest.content.store import ContentStore
from livectr.ingest.content.topic import ContentTopic, Picture
from livectr.models.encoders import Encoder
from livectr.trainer.content import telemetry

LOG = logging.getLogger(__name__)

SLICE = 64
"""Pictures between two checks for a stop."""
GATHER_S = 1.0
"""Time for which new pictures are gathered, since an append writes a file for each shard."""
POLL_S = 0.2
SAY_EVERY_S = 10.0
DEFERRED_BYTES = 64 << 20
"""Most bytes of changed pictures that wait for the end of the topic at the start (`Encoding`)."""

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


class Encoding:
    """Thread that encodes the pictures of one content into a store.

    A picture replaces the row of its id if its bytes differ from those of the row's picture. While the topic
    is read again at the start, an older picture of an id may come before the stored picture. So changed
    pictures wait until the topic's end is reached, and only the last picture of each id is encoded.

    Args:
        name: of the content.
        topic: pictures of ids whose shards the store holds; closed by `close`.
        store: of this rank's shards.
        encoder: from pictures to features.

    Attributes:
        error: exception that ended the thread; None: the thread has not failed
        encoded: pictures encoded so far
        bad: pictures refused so far
    """

    def __init__(self, name: str, topic: ContentTopic, store: ContentStore, encoder: Encoder) -> None:
        self.name = name
        self._topic, self._store = topic, store
        self._writer = PictureWriter(
            store, _encoding(encoder), size=encoder.size, short_side=encoder.short_side, threads=1
        )
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self.error: BaseException | None = None
        self._deferred: dict[int, Picture] = {}
        self._deferred_bytes = 0
        self._in_hand = 0
        self.encoded = 0
        self.bad = 0
        self._queue = telemetry.CONTENT_QUEUE_RECORDS.labels(name)
        self._next_line = time.monotonic() + SAY_EVERY_S
        self._thread = threading.Thread(target=self._work, name=f"livectr-encode-{name}", daemon=True)
        self._thread.start()

    @property
    def caught_up(self) -> bool:
        """True once all pictures that the topic had at the start are in the store."""
        return self._caught_up.is_set()

    @property
    def running(self) -> bool:
        """True while more pictures can come; a bounded topic ends."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Approximate number of pictures that are not encoded yet."""
        return self._topic.behind + self._in_hand + len(self._deferred)

    def check(self) -> None:
        """Raise the error of the thread: a store that cannot be written, a topic that is gone."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Stop the thread and close the topic; idempotent.

        The next process reads again the pictures that were not encoded.
        """
        self._stop.set()
        self._thread.join()
        self._topic.close()
        with suppress(Exception) if self.error is not None else nullcontext():  # it has been raised
            self._writer.close()

    # ── in the thread ──

    def _work(self) -> None:
        try:
            while not self._stop.is_set() and not (self._topic.until_end and self.caught_up):
                self._turn()
        except BaseException as error:
            self.error = error

    def _turn(self) -> None:
        pictures = self._topic.poll(POLL_S)
        started = self._caught_up.is_set()
        if pictures and started and self._stop.wait(GATHER_S):
            return
        pictures += self._topic.poll(0.0) if started else []
        at_end = self._topic.at_end
        self._in_hand = len(pictures)
        self._sort_out(pictures, defer=not started)
        if not started and at_end:
            self._release()
            self._caught_up.set()
        self._in_hand = 0
        self._queue.set(self.waiting)
        if not started and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SAY_EVERY_S
            LOG.info("content %s: %d pictures encoded, about %d to go", self.name, self.encoded, self.waiting)

    def _sort_out(self, pictures: Sequence[Picture], *, defer: bool) -> None:
        """Encode new pictures, skip known pictures, and defer changed pictures if `defer`."""
        newest = {picture.id: picture for picture in pictures}
        ids = np.array(list(newest), np.int64)
        stored, known = self._store.digests(ids)
        now: list[Picture] = []
        for picture, digest, is_known in zip(newest.values(), stored.tolist(), known.tolist(), strict=True):
            earlier = self._deferred.pop(picture.id, None)
            self._deferred_bytes -= len(earlier.value) if earlier is not None else 0
            if is_known and digest == picture.digest:
                continue
            if is_known and defer:
                self._deferred[picture.id] = picture
                self._deferred_bytes += len(picture.value)
            else:
                now.append(picture)
        self._encode(now)
        if self._deferred_bytes > DEFERRED_BYTES:
            self._release()

    def _release(self) -> None:
        """Encode the deferred pictures."""
        deferred, self._deferred, self._deferred_bytes = list(self._deferred.values()), {}, 0
        self._encode(deferred)

    def _encode(self, pictures: Sequence[Picture]) -> None:
        for start in range(0, len(pictures), SLICE):
            if self._stop.is_set():
                return
            part = pictures[start : start + SLICE]
            began = time.perf_counter()
            done = self._writer.write(np.array([p.id for p in part], np.int64), [p.value for p in part])
            telemetry.CONTENT_ENCODE_SECONDS.labels(self.name).observe(time.perf_counter() - began)
            telemetry.CONTENT_ENCODED.labels(self.name).inc(done.encoded)
            telemetry.CONTENT_BAD.labels(self.name).inc(len(done.bad))
            self.encoded += done.encoded
            self.bad += len(done.bad)
            for place, why in done.bad:
                self._topic.refuse(part[place], why)
        self._writer.flush()


def _encoding(encoder: Encoder) -> Callable[[U8], F32]:
    """Adapt an encoder of tensors to arrays."""
    return lambda pictures: np.asarray(encoder(torch.from_numpy(pictures)).numpy())
