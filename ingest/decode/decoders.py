"""Decoders of the topics that a source reads, and how they decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.decode.clean import Mask
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.registered import RegisteredRows
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS, RecordLimits


@dataclass(frozen=True)
class Decoding:
    """Options of decoding the records of topics; see `ingest.decode.clean.Cleaner`.

    Args:
        columns: topic → columns to decode; None: every declared column.
        required: topic → columns that may not be null, besides key and time.
        labels: topic → label column.
        masks: topic → filter in place of the declaration's compiled `where`.
        limits: records beyond them become dead letters.
        registered: reads messages of a schema registry; None: the source's address names none.
    """

    columns: Mapping[str, Sequence[str]] | None = None
    required: Mapping[str, Collection[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)
    limits: RecordLimits = LIMITS
    registered: RegisteredRows | None = None

    def decoders(self, streams: Sequence[Stream | Table], letters: DeadLetters) -> dict[str, Decoder]:
        """Topic → its decoder."""
        return {
            stream.topic: Decoder(
                stream,
                letters,
                columns=(self.columns or {}).get(stream.topic),
                required=self.required.get(stream.topic, ()),
                label=self.labels.get(stream.topic),
                mask=self.masks.get(stream.topic),
                limits=self.limits,
                registered=self.registered,
            )
            for stream in streams
        }
