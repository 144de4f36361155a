"""Folder of files that live for one input: in memory, where this machine has such a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

MEMORY = next(folder for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())) if folder.is_dir())
