"""Dead letters of the chunk that is being decoded; bisection finds records that no decoder can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.decode.rows import Decoded
from livectr.system.errors import UserError

_Letter: TypeAlias = tuple[int, int, int, Reason, str, bytes, int]


class PendingLetters:
    """Collects the dead letters of one chunk and writes them when the chunk is complete.

    Args:
        topic: of the records.
        letters: receives the letters and the counts of rows.
    """

    def __init__(self, topic: str, letters: DeadLetters) -> None:
        self._topic, self._letters = topic, letters
        self._pending: list[_Letter] = []

    def add(
        self,
        partition: int,
        offset: int,
        index: int,
        reason: Reason,
        detail: str,
        value: bytes,
        *,
        rows: int = 1,
    ) -> None:
        """Add a letter about the record at a position; it stands for `rows` rows."""
        self._pending.append((partition, offset, index, reason, detail, value, rows))

    def bisect(
        self,
        decode: Callable[[int, int], Decoded],
        first: int,
        stop: int,
        refuse: Callable[[int, str], None],
    ) -> list[Decoded]:
        """Decode records `first` to `stop`; records for which `decode` raises are found by bisection.

        Args:
            decode: decodes the records from a first to a stop index.
            refuse: called with the index of a record that cannot be decoded, and the reason.

        Raises:
            UserError: from `decode`; it is no property of a record.
        """
        pending = len(self._pending)
        try:
            return [decode(first, stop)]
        except UserError:
            raise
        except Exception as error:  # the record decides what is raised
            del self._pending[pending:]
            if stop == first:
                raise
            if stop == first + 1:
                refuse(first, f"{type(error).__name__}: {error}")
                return []
        middle = (first + stop) // 2
        front = self.bisect(decode, first, middle, refuse)
        return front + self.bisect(decode, middle, stop, refuse)

    def write(self, rows: int) -> None:
        """Write the letters and count all rows that were read, usable or not."""
        complaints: Counter[str] = Counter()
        for partition, offset, index, reason, detail, value, count in self._pending:
            place = self._topic, partition, offset, index
            self._letters.write(place, reason, detail, value, rows=count)
            complaints[detail] += count
        self._pending.clear()
        self._letters.rows.add(self._topic, rows, complaints)
