"""Pictures as they come: the topic of a `Content`, read again by every process as look-up tables are.

Pictures are bytes here; who encodes them decodes them, once, and on the rank that they belong to.
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
from livectr.ingest.language.streams import Table
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.sources.source import open_source
from livectr.kernels.errors import ConfigError

MAX_PICTURE_BYTES = 32 << 20
"""A longer record of a picture is a dead letter."""
QUEUE_BYTES = 16 << 20
"""Pictures that may wait to be encoded; reading rests while there are more."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picture:
    """One record of the topic. digest: of its bytes, as a ContentStore keeps it."""

    id: int
    value: bytes
    digest: int
    partition: int
    offset: int
    index: int


class ContentTopic:
    """Reads the pictures of a content's topic from its beginning, and goes on with those that come later.

    Args:
        wanted: ids int64[n] → bool[n]: whose pictures are returned; the others are read, but not looked at.
        until_end: end at the end that the topic has at the start; else follow it.
        letters: for records that hold no picture (bad JSON, no id); every rank reads them all, so only one of
            them should keep letters. own_letters: for `refuse`. limits: of its records; a picture may have
            MAX_PICTURE_BYTES at least.

    Records without a picture (null), and deletes, say nothing: features that were made stay.
    Raises ConfigError, ConnectError.
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
        # As plain bytes: the decoder would look at every picture, on every rank.
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
        """The wanted pictures among what has been read, in the order of their partition; waits up to
        `max_wait_s` for some."""
        return [picture for chunk in self._source.poll(max_wait_s) for picture in self._pictures(chunk)]

    @property
    def at_end(self) -> bool:
        """Whether `poll` has returned everything that is there so far."""
        return all(self._source.at_end(*place) for place in self._places)

    @property
    def behind(self) -> int:
        """About how many records of the topic `poll` has not returned yet."""
        return sum(self._source.lag().values())

    def refuse(self, picture: Picture, why: str) -> None:
        """A picture that cannot be encoded becomes a dead letter."""
        place = self.topic, picture.partition, picture.offset, picture.index
        detail = f"column {self._column} of {self._key} {picture.id}: {why}"
        self._own_letters.write(place, Reason.BAD_IMAGE, detail, picture.value)

    def close(self) -> None:
        """Stop reading; calling it twice is fine."""
        self._source.close()

    def _pictures(self, chunk: Chunk) -> Iterator[Picture]:
        ids, values = key_of(chunk.batch.column(self._key)), chunk.batch.column(self._column)
        for row in np.flatnonzero(self._wanted(ids)).tolist():
            if values[row].is_valid:
                value = values[row].as_py()
                place = chunk.partition, int(chunk.offset[row]), int(chunk.index[row])
                yield Picture(int(ids[row]), value, digest_of(value), *place)
