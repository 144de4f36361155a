"""Topic of new pictures of a `Content`, read by every process from its beginning, as look-up tables are.

Pictures are bytes here. They are decoded once, by the encoder, on the rank that owns their id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from livectr.ingest.chunks import BEGINNING, Chunk
from livectr.ingest.content.store import digest_of
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.language.content import Content
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.sources.source import open_source
from livectr.system.errors import ConfigError

MAX_PICTURE_BYTES = 32 << 20
"""Longer records of pictures become dead letters."""
QUEUE_BYTES = 16 << 20
"""Bytes of pictures that may wait to be encoded; with more, reading pauses."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picture:
    """Record of the topic. digest: of its bytes, as stored in the ContentStore."""

    id: int
    value: bytes
    digest: int
    partition: int
    offset: int
    index: int


class ContentTopic:
    """Reads the pictures of a content's topic from its beginning, and follows it.

    Records without a picture (null), and deletes, are ignored: stored features stay.

    Args:
        content: with a topic of pictures.
        url: `kafka://…` or `file:…`.
        wanted: ids int64[n] → bool[n], ids whose pictures are returned; others are skipped.
        until_end: stop at the end that the topic has at the start; else follow it.
        letters: receives records that hold no picture (bad JSON, no id). Every rank reads them all, so only
            one rank should keep them.
        own_letters: receives pictures passed to `refuse`.
        limits: of records; a picture may have at least MAX_PICTURE_BYTES.

    Raises:
        ConfigError: the content has no topic, or the topic does not exist.
        ConnectError: the brokers cannot be reached.
    """

    def __init__(
        self,
        content: Content,
        url: str,
        wanted: Callable[[I64], npt.NDArray[np.bool_]],
        *,
        until_end: bool,
        letters: DeadLetters,
        own_letters: DeadLetters,
        limits: RecordLimits = LIMITS,
    ) -> None:
        table, column = content.topic, content.image_column
        if table is None or column is None:
            raise ConfigError("this content has no topic of pictures; give it topic= and encoder=")
        self.topic, self._key, self._column = table.topic, table.key, column
        self.until_end = until_end
        self._wanted, self._own_letters = wanted, own_letters
        # As plain bytes: with type "image" the decoder would check every picture, on every rank.
        plain = Table(
            table.topic, key=table.key, columns={table.key: table.columns[table.key], column: "binary"}
        )
        self._source = open_source(
            url,
            [plain],
            until_end=until_end,
            dead_letters=letters,
            limits=replace(limits, record_bytes=max(limits.record_bytes, MAX_PICTURE_BYTES)),
            max_queue_bytes=QUEUE_BYTES,
        )
        try:
            self._places = [(topic, p) for topic, parts in self._source.topics().items() for p in parts]
            start = dict.fromkeys(self._places, BEGINNING)
            letters.resume(start)  # read again after a restart, its bad records too
            own_letters.resume(start)
            self._source.assign(start)
            self._source.start()
        except BaseException:
            self._source.close()
            raise

    def poll(self, max_wait_s: float) -> list[Picture]:
        """Return wanted pictures that were read, in order of their partition.

        It waits up to `max_wait_s` seconds.
        """
        pictures = [picture for chunk in self._source.poll(max_wait_s) for picture in self._pictures(chunk)]
        self._source.tell()
        return pictures

    @property
    def at_end(self) -> bool:
        """True when `poll` has returned all pictures up to the end."""
        return all(self._source.at_end(*place) for place in self._places)

    @property
    def behind(self) -> int:
        """Approximate count of records of the topic that `poll` has not returned."""
        return sum(self._source.lag().values())

    def refuse(self, picture: Picture, why: str) -> None:
        """Write a dead letter for a picture that cannot be encoded."""
        place = self.topic, picture.partition, picture.offset, picture.index
        detail = f"column {self._column} of {self._key} {picture.id}: {why}"
        self._own_letters.write(place, Reason.BAD_IMAGE, detail, picture.value)

    def close(self) -> None:
        """Stop reading; a second call does nothing."""
        self._source.close()

    def _pictures(self, chunk: Chunk) -> Iterator[Picture]:
        ids, values = key_of(chunk.batch.column(self._key)), chunk.batch.column(self._column)
        for row in np.flatnonzero(self._wanted(ids)).tolist():
            if values[row].is_valid:
                value = values[row].as_py()
                place = chunk.partition, int(chunk.offset[row]), int(chunk.index[row])
                yield Picture(int(ids[row]), value, digest_of(value), *place)
