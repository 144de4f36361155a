"""Limits of one request: its memory and time are bounded by its bytes on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from livectr.ingest.limits import FeatureLimits

_POOL_BYTES = 16
"""Pool bytes of extraction for each allowed value of a request."""
_READ = 64
"""Bytes and values of the context that candidates may read, for each allowed value of a request."""
_PAIRS = 8
"""Pairs of a candidate and a context vector that a model may read, for each allowed value of a request."""


class _Options(Protocol):
    @property
    def max_candidates(self) -> int: ...
    @property
    def max_list(self) -> int: ...
    @property
    def max_string_bytes(self) -> int: ...
    @property
    def max_top_k(self) -> int: ...
    @property
    def max_values(self) -> int: ...


@dataclass(frozen=True)
class RequestLimits:
    """Upper bounds of one request; the settings `max_…` of the same names.

    Args:
        candidates: candidates of a request.
        list: values of one list.
        string_bytes: bytes of one string.
        top_k: items that a pre-rank request may ask for.
        values: values of list features, over all candidates.
    """

    candidates: int = 10_000
    list: int = 8_192
    string_bytes: int = 16_384
    top_k: int = 10_000
    values: int = 1 << 19

    @staticmethod
    def of(options: _Options) -> RequestLimits:
        """Read the limits from a server's settings."""
        return RequestLimits(
            options.max_candidates,
            options.max_list,
            options.max_string_bytes,
            options.max_top_k,
            options.max_values,
        )

    @property
    def features(self) -> FeatureLimits:
        """Limits of extraction."""
        return FeatureLimits(self.values, _POOL_BYTES * self.values, _READ * self.values)

    @property
    def pairs(self) -> int:
        """Limit of the vectors of a shared list times candidates."""
        return _PAIRS * self.values


DEFAULT = RequestLimits()
