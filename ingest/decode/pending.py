"""Dead letters of the chunk that is being decoded; bisection finds records that no decoder can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.decode.rows import Decoded
from livectr.system.errors import UserError


@dataclass(frozen=True, slots=True)
class _Letter:
    """Letter about a record at a position; it stands for `rows` rows."""

    partition: int
    offset: int
    index: int
    reason: Reason
    detail: str
    value: bytes
    rows: int


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
        self._pending.append(_Letter(partition, offset, index, reason, detail, value, rows))

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
            first: first record.
            stop: number behind the last record.
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
        for letter in self._pending:
            place = self._topic, letter.partition, letter.offset, letter.index
            self._letters.write(place, letter.reason, letter.detail, letter.value, rows=letter.rows)
            complaints[letter.detail] += letter.rows
        self._pending.clear()
        self._letters.rows.add(self._topic, rows, complaints)
