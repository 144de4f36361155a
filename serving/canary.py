"""Canary: a second side of a server, which answers a share of the requests from a namespace of its own.

The side that a thread works for is a context variable, as the request id is. Metrics are labelled by it, and
what is made for a side (follower, health, served log) remembers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path

from livectr.system.errors import ConfigError

STABLE, CANARY = "stable", "canary"
"""Sides, as replies, metrics and the served log name them."""
SIDE: ContextVar[str] = ContextVar("side", default=STABLE)
"""Side that this thread works for."""
USER, REQUEST = "user", "request"
"""Ways to draw a request."""
FORM = "ns=NAMESPACE,share=SHARE[,by=user|request][,pipeline=FILE.py]"
_SALT = b"livectr canary"


@contextmanager
def on_side(side: str) -> Iterator[None]:
    """Let this thread work for a side."""
    token = SIDE.set(side)
    try:
        yield
    finally:
        SIDE.reset(token)


@dataclass(frozen=True)
class CanaryOptions:
    """Setting `canary`.

    Args:
        ns: namespace that the canary serves.
        share: share of the requests that it answers, from 0 (those that name it) to 1, while the stable
            namespace has no live share (`store.live_share`).
        by: "user": a user stays on one side; "request": drawn by the request id.
        pipeline: file of its pipeline; None: the server's.
    """

    ns: str
    share: float
    by: str = USER
    pipeline: Path | None = None

    @staticmethod
    def parse(text: str, namespace: str) -> CanaryOptions:
        """Parse `ns=b,share=0.05,by=user,pipeline=new.py`.

        Args:
            text: of the setting.
            namespace: that the server itself serves.

        Raises:
            ConfigError: the text has another form, or a value cannot be used.
        """
        known = [field.name for field in fields(CanaryOptions)]
        values: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not (equals and value and name in known) or name in values:
                raise ConfigError(f"canary is {text!r}, but must be {FORM}; {part!r} is wrong")
            values[name] = value
        if missing := [name for name in ("ns", "share") if name not in values]:
            raise ConfigError(f"canary is {text!r}, but must be {FORM}; {missing[0]}= is missing")
        by, file = values.get("by", USER), values.get("pipeline")
        if by not in (USER, REQUEST):
            raise ConfigError(f"canary: by is {by!r}, but must be user or request")
        if values["ns"] == namespace:
            raise ConfigError(
                f"canary: ns is {namespace!r}, which the server serves already; name the namespace of the "
                "trainer of the new model"
            )
        return CanaryOptions(values["ns"], _share(values["share"]), by, None if file is None else Path(file))

    def draws(self, key: str) -> bool:
        """Tell if the canary answers the requests of a key: a function of namespace, key and share alone.

        A key that a share draws is drawn by every greater share.
        """
        word = blake2b(f"{self.ns}\n{key}".encode("utf-8", "replace"), digest_size=8, salt=_SALT).digest()
        return int.from_bytes(word, "little") < self.share * 2.0**64


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"canary: share is {text!r}, but must be a number from 0 to 1")
    return share
