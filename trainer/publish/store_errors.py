"""Errors of writes to the namespace of a trainer."""

from __future__ import annotations

from livectr.store.redis_errors import OUTCOMES
from livectr.system.errors import InternalError, UserError

STORE_ERRORS: tuple[type[BaseException], ...] = (*OUTCOMES, OSError)
"""Errors of redis-py; after each of them it is unknown if a command was carried out."""


class FencedError(UserError):
    """Another trainer has claimed this namespace."""


class LostError(InternalError):
    """Redis no longer holds what was published: it was emptied, or another run's version stands there."""


class GivenUpError(InternalError):
    """Another rank could not begin its share of the version, so that none writes it."""


class HeldError(InternalError):
    """The namespace is held (store.hold): Redis has refused a flip, or a new epoch."""
