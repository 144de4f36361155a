"""docs/upgrade.md has the formats, sentences and names that the programs have."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from livectr.commands.moved import MOVED
from livectr.ingest.materialized import store as materialized
from livectr.store import manifest as published
from livectr.system.errors import MismatchError
from livectr.trainer.checkpoint import manifest as checkpoint

PAGE = (Path(__file__).parent.parent.parent / "docs" / "upgrade.md").read_text()


def row(begin: str) -> list[str]:
    """Cells of the only line of a table that begins with this text."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {begin}")]
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def test_formats_are_those_of_the_programs() -> None:
    assert row("[checkpoint]")[1:3] == [
        f"`format` {checkpoint.FORMAT}, in `MANIFEST.json`",
        " and ".join(map(str, checkpoint.READ)),
    ]
    assert row("published version")[1:3] == [f"`format` {published.FORMAT}", str(published.FORMAT)]
    assert row("[materialized")[1:3] == [f"`format` {materialized.FORMAT}", str(materialized.FORMAT)]


def quoted(begin: str) -> str:
    """The only sentence between backticks that begins so."""
    (found,) = re.findall(rf"^\| `({begin}[^`]*)` \|", PAGE, re.MULTILINE)
    return str(found)


def test_errors_are_those_of_the_programs() -> None:
    body = json.dumps({"format": 3})
    torn = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    with pytest.raises(MismatchError, match=re.escape(quoted("has format"))):
        checkpoint.Manifest.from_json(torn.encode())
    with pytest.raises(MismatchError, match=re.escape(quoted("holds a version"))):
        published.VersionManifest.from_json(json.dumps({"format": 4, "fingerprint": "f"}))
    with pytest.raises(MismatchError, match=re.escape(quoted("belongs to another").rstrip("…"))):
        checkpoint.check_identity("c", {"seed": 0}, {"seed": 1})
    (sentence,) = re.findall(r"^livectr: (the checkpoint in OLD .*)$", PAGE, re.MULTILINE)
    there, here = {"fingerprint": "1"}, {"fingerprint": "2", "features": {"hour": "3"}}
    with pytest.raises(MismatchError, match=re.escape(sentence)):
        checkpoint.check_identity("OLD", there, here)


def test_every_command_that_moved_has_a_line() -> None:
    lines = re.findall(r"^\| `livectr (\w+)` \| `livectr ([^`]+)` \|$", PAGE, re.MULTILINE)
    assert dict(lines) == MOVED
