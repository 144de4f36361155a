"""Constants of the learner for logs of a thousand examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from livectr.trainer import ramp, step_settings


@contextmanager
def constants(*, slope: int = ramp.SLOPE, online: int = step_settings.ONLINE) -> Iterator[None]:
    """Change constants while this is entered.

    Args:
        slope: examples seen for each example of a batch of a ramp.
        online: largest batch whose examples are learned one after another.
    """
    with patch.object(ramp, "SLOPE", slope), patch.object(step_settings, "ONLINE", online):
        yield
