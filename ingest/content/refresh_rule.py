"""Settings of the vectors of content and items that a version computes again (trainer.content)."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class RefreshRule:
    """Settings `content_refresh_s` and `content_tolerance`.

    Args:
        period_ms: event time after which a vector is computed again; 0: with every version.
        tolerance: movement beyond which it is computed again before; 0: never.

    Raises:
        ConfigError: a value cannot work.
    """

    period_ms: int = 0
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.period_ms < 0:
            raise ConfigError(
                f"content_refresh_s is {self.period_ms / 1000:g}; it must be at least 0 (0: every version)"
            )
        if not 0 <= self.tolerance < float("inf"):
            raise ConfigError(
                f"content_tolerance is {self.tolerance}; it must be a share, such as 0.05 (0: none)"
            )
        if self.tolerance and not self.period_ms:
            raise ConfigError(
                "content_tolerance needs content_refresh_s: without it every version computes all vectors; "
                'say content_refresh_s = "1h", or leave content_tolerance out'
            )
