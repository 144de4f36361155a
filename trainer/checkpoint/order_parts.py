"""Order log of a checkpoint (trainer.stream.order_log): a generation adds what was decided since the last.

A part is gzipped. It is written together with parts before it that are no larger, up to PART_BYTES. So a
line is written O(log n) times, and a manifest names few parts. Beyond MOST_BYTES the oldest parts are left
out: a replay from the first step on is not possible any more then, and says so.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from livectr.trainer.checkpoint.manifest import FileEntry, Manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.writer import File, Writer

LOG = logging.getLogger(__name__)
ORDER = "order"
"""Kind of the files."""
PART_BYTES = 1 << 20
"""Most bytes of a part that is written again, unpacked."""
MOST_BYTES = 256 << 20
"""Most bytes of all parts, packed."""
LEVEL = 3
"""Level of gzip: lines are much alike, and higher levels take longer than the disk."""


MERGED = 32
"""Parts of a restored log that may be written again: the newest ones."""


def unpacked(part: bytes) -> bytes:
    """Lines of a part."""
    return gzip.decompress(part)


def lines_of(restored: Restored) -> list[bytes]:
    """Lines of a generation's order log, part by part. Other files of the generation are not read."""
    return [unpacked(path.read_bytes()) for path in restored.paths(ORDER)]


@dataclass(frozen=True)
class _Part:
    """File of the log; `data` is None once it is not written again; `size` is that of the file."""

    size: int
    file: File
    data: bytes | None


class OrderParts:
    """Parts of the order log; rank 0's.

    Args:
        writer: writes them.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._parts: list[_Part] = []
        self._since = 0

    def resume(self, manifest: Manifest, read: Callable[[FileEntry], bytes]) -> None:
        """Take the parts of a generation that was restored; an older program's has none."""
        self._since = manifest.step
        for entry in manifest.files:
            if entry.kind == ORDER:
                settled: Future[FileEntry] = Future()
                settled.set_result(entry)
                self._parts.append(_Part(entry.bytes, File(0, settled), None))
        for place, part in enumerate(self._parts[-MERGED:], max(0, len(self._parts) - MERGED)):
            data = unpacked(read(part.file.entry))
            self._parts[place] = replace(part, data=data if len(data) < PART_BYTES else None)

    def write(self, folder: Path, step: int, new: bytes) -> list[File]:
        """Store new lines; return all parts, in order.

        Args:
            folder: of the generation.
            step: steps of the generation.
            new: lines since the part before; empty: nothing was decided.
        """
        if new or not self._parts:
            data = json.dumps(["from", self._since]).encode() + b"\n" + new
            while self._parts and (last := self._parts[-1]).data is not None:
                if len(last.data) > len(data) or len(last.data) + len(data) > PART_BYTES:
                    break
                self._parts.pop()
                data = last.data + data
            packed = gzip.compress(data, LEVEL, mtime=0)
            # A name that ends with .gz makes some stores and clients unpack it on the way.
            file = self._writer.file(folder / "order.bin", ORDER, packed)
            self._parts.append(_Part(len(packed), file, data if len(data) < PART_BYTES else None))
        self._since = step
        while sum(part.size for part in self._parts) > MOST_BYTES:
            LOG.warning("the order log is full: its oldest %d bytes are left out", self._parts[0].size)
            self._parts.pop(0)
        return [part.file for part in self._parts]
