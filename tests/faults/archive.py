"""Hard links of every generation of a checkpoint, whose trainer keeps only the newest two."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from livectr.system.errors import CheckpointError
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest

PERIOD_S = 0.1


class Archive:
    """Follows `checkpoint` from a thread while it is open, and links its files into `folder`."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.checkpoint, self.folder = checkpoint, folder
        self._held: dict[int, Manifest] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="archive")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def generation(self, step: int) -> Manifest | None:
        """The generation that was committed at `step`."""
        with self._lock:
            return self._held.get(step)

    def forget(self, step: int) -> None:
        """Removes what only generations before `step` need."""
        with self._lock:
            self._held = {s: m for s, m in self._held.items() if s >= step}
            named = {self.folder / f.path for m in self._held.values() for f in m.files}
            for path in self.folder.rglob("*.safetensors"):  # with the lock: a new generation may be coming
                if path not in named:
                    path.unlink()

    def _follow(self) -> None:
        while not self._stop.wait(PERIOD_S):
            for path in sorted(self.checkpoint.glob(f"gen-*/{MANIFEST}")):
                if path.parent.name not in self._seen:
                    self._take(path)

    def _take(self, path: Path) -> None:
        try:
            manifest = Manifest.from_json(path.read_bytes())
            with self._lock:
                for entry in manifest.files:
                    target = self.folder / entry.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if not target.exists():
                        os.link(self.checkpoint / entry.path, target)
                self._held[manifest.step] = manifest
        except (FileNotFoundError, CheckpointError):
            return  # it was replaced meanwhile
        self._seen.add(path.parent.name)
