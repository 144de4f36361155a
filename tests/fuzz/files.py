"""Files of a log: as people have them (CSV, JSON lines), and as a source reads them (Arrow, JSON lines)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from livectr.ingest.sources.part_file import SUFFIXES, UnreadableError, open_part
from livectr.logs.account import Account
from livectr.logs.files import log_rows
from livectr.logs.formats import LAYOUTS
from livectr.logs.replay import typed_rows
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
                for rows in log_rows(Account(path)):
                    rows.batch.validate(full=True)
                    assert len(rows.places) == rows.batch.num_rows
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
    layout, account = LAYOUTS[kind], Account(path)
    for rows in typed_rows(log_rows(account, "csv", layout), layout.columns or {}, layout.time, account):
        rows.batch.validate(full=True)
