"""JSON readers of a topic, to try in turn."""

from __future__ import annotations

from livectr.ingest.decode.clean import Cleaner
from livectr.ingest.decode.json_rows import JsonRows
from livectr.ingest.language.streams import Stream, Table


def readers_of(cleaner: Cleaner, stream: Stream | Table, depth: int) -> tuple[dict[str, str], list[JsonRows]]:
    """Columns that are read (name → type), and the JSON readers to try in turn.

    A JSON field is read through its origin, a column of text. JSON producers often send the origin as an
    object inside the event instead of as text; a second reader takes that form.
    """
    origins = dict.fromkeys(path[0] for path in cleaner.json_fields.values())
    plain = {name: dtype for name, dtype in cleaner.columns.items() if name not in cleaner.json_fields}
    wire = {**plain, **{name: stream.columns[name] for name in origins}}
    required = [name for name in wire if name not in cleaner.declared_fill and name not in origins]
    text: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in wire.items()}
    readers = [JsonRows(text, required, depth=depth)]
    if origins and not set(origins) & set(plain):
        nested: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in plain.items()}
        nested.update({path: cleaner.columns[name] for name, path in cleaner.json_fields.items()})
        readers.append(JsonRows(nested, required, depth=depth))
    return wire, readers
