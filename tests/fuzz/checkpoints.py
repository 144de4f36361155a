"""Checkpoints on a disk that others can write: manifests and files of tables."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.native import table_library
from livectr.kernels.table.table import DynamicTable
from livectr.system.errors import LiveCTRError
from livectr.trainer.checkpoint.manifest import FileEntry, Manifest, path_of
from livectr.trainer.checkpoint.restored import Restored
from tests.fuzz.memory import MEMORY

LAYOUT = RowLayout((Segment("v", 2, SGD(), 0.1),))
table_library()  # loaded here, and not within the time of an input


def checkpoint_manifest(data: bytes) -> None:
    """A manifest, or the body of one that gets its right digest. What is read is written as it was."""
    text = data
    if data[:1] != b"\0":
        body = data.decode("utf-8", "replace")
        digest = hashlib.sha256(body.encode()).hexdigest()
        text = json.dumps({"sha256": digest, "body": body}).encode()
    try:
        manifest = Manifest.from_json(text)
    except LiveCTRError:
        return
    text = manifest.to_json()
    assert Manifest.from_json(text).to_json() == text
    for entry in manifest.files:
        try:
            path = path_of(Path("/checkpoint"), entry)
        except LiveCTRError:
            continue
        assert path.resolve().is_relative_to("/checkpoint"), path


def checkpoint_tables(data: bytes) -> None:
    """A file of tables whose digest its manifest names: a table is filled, or the checkpoint is refused."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        Path(folder, "tables.safetensors").write_bytes(data)
        entry = FileEntry("tables.safetensors", "tables", len(data), hashlib.sha256(data).hexdigest())
        manifest = Manifest(1, 1, 1, 1, 0, {}, None, (entry,), (), {"a": 1}, {}, {}, "")
        table = DynamicTable(LAYOUT, name="a", seed=1, track=True)
        try:
            Restored(Path(folder), manifest).load_tables({"a": table})
        except LiveCTRError:
            return
        for keys, rows in table.chunks():
            assert rows.shape == (len(keys), LAYOUT.stride)
