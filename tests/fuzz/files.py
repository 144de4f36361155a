"""Files of a log: as people have them (CSV, JSON lines), and as a source reads them (Arrow, JSON lines)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from livectr.guess.rows import read_rows
from livectr.ingest.sources.part_file import SUFFIXES, UnreadableError, open_part
from livectr.logs.formats import LAYOUTS, BadRows, open_log, read_csv, with_time
from livectr.system.errors import LiveCTRError
from tests.fuzz.memory import MEMORY

_GUESSED = (".csv", ".tsv", ".jsonl", ".csv.gz")
_KINDS = (*_GUESSED, *(f"part{suffix}" for suffix in SUFFIXES if suffix != ".parquet"), "criteo", "avazu")


def log_files(data: bytes) -> None:
    """A file of the kind that the first byte names: rows, rows that are set aside, or a sentence."""
    if not data:
        return
    kind, content = _KINDS[data[0] % len(_KINDS)], data[1:]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, kind if kind[0] != "." else f"log{kind}")
        path.write_bytes(content)
        try:
            if kind in _GUESSED:
                bad = BadRows()
                for batch in read_rows(path, bad):
                    batch.validate(full=True)
            elif kind.startswith("part"):
                _part(path)
            else:
                _layout(path, kind)
        except LiveCTRError:
            return


def _part(path: Path) -> None:
    part = open_part(path, ["user_id", "ts", "query"], 100, None)
    try:
        while (piece := part.read(True)) is not None:
            assert len(piece) > 0
    except UnreadableError:
        return
    finally:
        part.close()


def _layout(path: Path, kind: str) -> None:
    layout = LAYOUTS[kind]
    bad = BadRows()
    content, raw = open_log(path)
    try:
        for batch in read_csv(content, layout, {}, bad):
            batch.validate(full=True)
            if layout.time is not None and layout.read_time is not None:
                with_time(batch, layout.time, layout.read_time, bad).validate(full=True)
    finally:
        raw.close()
