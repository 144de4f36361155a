"""Age of a checkpoint: the log of an old one may be gone, and its model is stale."""

from __future__ import annotations

import time
from pathlib import Path

from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.stored import placed

_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def check_age(address: str | Path, max_age_s: float, *, now_s: float | None = None) -> None:
    """Refuse a checkpoint whose newest generation is older than `max_age_s`.

    Args:
        address: folder or s3:// address of the checkpoint; it may be empty.
        max_age_s: bound in seconds.
        now_s: Unix time; None: the clock's.

    Raises:
        ConfigError: the checkpoint is older, or does not say when it was written.
        ConnectError: the object store is away.
    """
    manifest = newest_manifest(placed(address))
    if manifest is None:
        return
    age_s = (time.time() if now_s is None else now_s) - manifest.created_ms / 1000
    if age_s <= max_age_s:
        return
    age = f"is {in_words(age_s)} old" if manifest.created_ms else "does not say when it was written"
    raise ConfigError(
        f"the checkpoint {address} {age}; max_checkpoint_age_s allows {in_words(max_age_s)}. Its log may be "
        "gone, and its model is stale: set accept_stale to resume from it, or name another --checkpoint for "
        "a new run"
    )


def in_words(seconds: float) -> str:
    """Duration in the largest unit that it has two of: "3 days", "47 hours"."""
    unit_s, name = next((u for u in _UNITS if seconds >= 2 * u[0]), _UNITS[-1])
    return f"{seconds / unit_s:.0f} {name}"
