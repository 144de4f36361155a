"""JSON messages of a topic: each is read by the first of some readers that accepts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from livectr.ingest.decode.clean import Cleaner
from livectr.ingest.decode.json_rows import Bad, JsonRows
from livectr.ingest.decode.pending import PendingLetters
from livectr.ingest.decode.rows import Parsed
from livectr.ingest.decode.texts import Texts

I64 = npt.NDArray[np.int64]


class JsonMessages:
    """Reads the JSON messages of a topic.

    A JSON field is read through its origin, a column of text. JSON producers often send the origin as an
    object inside the event instead of as text; a second reader takes that form. The reader that fits the log
    is tried first next time.

    Args:
        cleaner: of the topic.
        depth: deepest nesting of objects and lists.
        pending: receives the letters of messages that no reader accepts.
    """

    def __init__(self, cleaner: Cleaner, depth: int, pending: PendingLetters) -> None:
        self._pending = pending
        fields, wire = cleaner.json_fields, cleaner.wire.columns
        origins = dict.fromkeys(path[0] for path in fields.values())
        plain = {name: dtype for name, dtype in cleaner.columns.items() if name not in fields}
        required = [name for name in wire if name not in cleaner.declared_fill and name not in origins]
        text: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in wire.items()}
        self._readers = [JsonRows(text, required, depth=depth)]
        if origins and not set(origins) & set(plain):
            nested: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in plain.items()}
            nested.update({path: cleaner.columns[name] for name, path in fields.items()})
            self._readers.append(JsonRows(nested, required, depth=depth))
        self._about_origins = tuple(f"column `{name}{mark}" for name in origins for mark in "`.")
        self._renames = {".".join(path): name for name, path in fields.items()}

    def read(
        self, partition: int, offsets: I64, block: Texts, raw: Callable[[int], bytes]
    ) -> Iterator[Parsed]:
        """Read n messages; those that cannot be read become letters behind the last rows.

        Args:
            partition: of the messages.
            offsets: int64[n].
            block: their values without surrounding space.
            raw: value of a message, for its dead letter.
        """
        left = np.arange(len(block), dtype=np.int64)
        complaints: dict[int, list[Bad]] = {}
        for number, reader in enumerate(list(self._readers)):
            batch, parsed, bad = reader.parse(block if number == 0 else block.take(left))
            rows = left[parsed]
            left = left[[item.row for item in bad]]
            for row, item in zip(left.tolist(), bad, strict=True):
                complaints.setdefault(row, []).append(item)
            if number and len(rows) > len(left):
                self._readers.insert(0, self._readers.pop(number))
            if len(rows):
                batch = batch.rename_columns([self._renames.get(name, name) for name in batch.schema.names])
                index = np.zeros(len(rows), np.int32)
                yield Parsed(batch, offsets[rows], index, partial(_raw_text, raw, rows))
            if not len(left):
                break
        for row in left.tolist():
            item = self._complaint(complaints[row])
            self._pending.add(partition, int(offsets[row]), 0, item.reason, item.detail, raw(row))

    def _complaint(self, found: Sequence[Bad]) -> Bad:
        """Complaint to tell: not of a reader that expects the other form of a JSON field's origin."""
        return next((item for item in found if not item.detail.startswith(self._about_origins)), found[0])


def _raw_text(raw: Callable[[int], bytes], rows: I64, row: int) -> bytes:
    return raw(int(rows[row]))
