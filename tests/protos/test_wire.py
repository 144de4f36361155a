"""Old clients and servers keep working: livectr.proto changes nothing of the last release's wire."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[2] / "protos"
BUF = Path(sys.executable).with_name("buf")


def broken(folder: Path) -> list[str]:
    """Changes of a folder's livectr.proto that break readers of protos/released.binpb, one sentence each."""
    command = [str(BUF), "breaking", "--against", str(PROTOS / "released.binpb"), "--error-format=text"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    found = done.stdout.splitlines()
    assert (done.returncode == 0) == (not found)
    return found


def test_the_wire_is_compatible_with_the_last_release() -> None:
    assert broken(PROTOS) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("float logit = 2;", "double logit = 2;", '"logit"'),
        ("uint32 top_k = 8;", "uint32 top_k = 12;", '"8"'),
        ("  string run_id = 21;", "", '"run_id"'),
        ("rpc Describe(", "rpc Explain(", '"Describe"'),
        ("PLACEMENT_EITHER = 3;", "PLACEMENT_EITHER = 4;", '"3"'),
        ("string namespace = 2;", "string redis_namespace = 2;", '"redis_namespace"'),
    ],
    ids=["type", "number", "removed", "call", "enum", "json name"],
)
def test_a_break_is_found(before: str, after: str, words: str, tmp_path: Path) -> None:
    text = (PROTOS / "livectr.proto").read_text()
    assert text.count(before) == 1
    shutil.copy(PROTOS / "buf.yaml", tmp_path)
    (tmp_path / "livectr.proto").write_text(text.replace(before, after))
    found = broken(tmp_path)
    assert found and all(words in sentence for sentence in found), found


def test_new_fields_and_reserved_ones_are_no_break(tmp_path: Path) -> None:
    text = (PROTOS / "livectr.proto").read_text()
    removed = "  string run_id = 21;"
    assert removed in text and "message DescribeRequest {}" in text
    text = text.replace(removed, '  reserved 21;\n  reserved "run_id";')
    text = text.replace("message DescribeRequest {}", "message DescribeRequest {\n  bool brief = 1;\n}")
    shutil.copy(PROTOS / "buf.yaml", tmp_path)
    (tmp_path / "livectr.proto").write_text(text)
    assert broken(tmp_path) == []
