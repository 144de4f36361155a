"""Manifest of a content store: width, encoder and number of shards."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from livectr.system.errors import ConfigError

MANIFEST = "store.json"


def create_manifest(root: Path, manifest: dict[str, Any]) -> bool:
    """Write the manifest unless it exists; return true if this process wrote it."""
    scratch = root / f".{MANIFEST}.{os.getpid()}.{threading.get_ident()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(manifest) + "\n")
        try:
            (root / MANIFEST).hardlink_to(scratch)  # fails where a rename would replace
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
    except OSError as error:
        raise ConfigError(f"{root} cannot be written ({error.strerror}); name another folder") from error
    return True


def read_manifest(root: Path) -> tuple[int, str, int]:
    """(width, encoder, shards) of a store."""
    try:
        values = json.loads((root / MANIFEST).read_text())
        width, encoder, shards = values["width"], values["encoder"], values["shards"]
        if not (isinstance(width, int) and width > 0 and isinstance(shards, int) and shards > 0):
            raise ValueError
    except FileNotFoundError:
        raise ConfigError(
            f"{root} has no {MANIFEST}, so it is no content store; `livectr features encode … --out {root}` "
            "makes one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{root / MANIFEST} must name width, encoder and shards; delete {root} and encode again"
        ) from None
    return width, str(encoder), shards
