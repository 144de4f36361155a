"""Ways to learn labels that come late."""

from __future__ import annotations

from typing import Literal, get_args

from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

Delayed = Literal["wait", "vanilla", "fnw", "es_dfm"]
"""See `ingest.language.streams.label_join`."""
WAIT = "10s"


def wait_ms(delayed: Delayed, wait: str | int | None, window_ms: int, what: str = "label_join") -> int:
    """Check how late labels are learned; returns `View.wait_ms`.

    Args:
        delayed: the way.
        wait: time after which an impression leaves; None: not given.
        window_ms: window of the label.
        what: names the declaration in messages.

    Raises:
        ConfigError: there is no such way, or the wait does not fit it.
    """
    if delayed not in get_args(Delayed):
        ways = " or ".join(map(repr, get_args(Delayed)))
        raise ConfigError(f"{what}: delayed is {delayed!r}; it must be {ways}")
    if delayed == "wait":
        if wait is not None:
            raise ConfigError(
                f'{what}: with delayed="wait" an impression waits for the whole window; leave '
                f'wait={wait!r} out, or say delayed="fnw"'
            )
        return 0
    if delayed == "es_dfm" and wait is None:
        raise ConfigError(
            f'{what}: delayed="es_dfm" needs a wait, for it learns which clicks come after it; '
            'say wait="10s", or less than the freshness that you need'
        )
    length_ms = duration_ms(WAIT if wait is None else wait, f"{what} wait")
    if length_ms >= window_ms:
        raise ConfigError(
            f"{what}: the wait of {length_ms / 1000:g} s must be shorter than the window of "
            f'{window_ms / 1000:g} s; for labels at the window\'s end say delayed="wait"'
        )
    return length_ms
