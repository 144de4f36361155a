"""Hold of a namespace: while its key is in Redis, no trainer makes another version the served one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from livectr.store.plain import read_json

NO_REASON = "no reason was given"


@dataclass(frozen=True)
class Hold:
    """Hold that an operator or a rollback has set (`Keyspace.hold`).

    Attributes:
        reason: sentence for whoever finds it.
        since_ms: time at which it was set, ms since 1970.
    """

    reason: str = NO_REASON
    since_ms: int = 0

    @staticmethod
    def at_once(reason: str) -> Hold:
        """Hold from this moment on."""
        return Hold(reason or NO_REASON, time.time_ns() // 1_000_000)

    def to_json(self) -> bytes:
        """Text in Redis."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of(text: bytes | str | None) -> Hold | None:
        """Hold of a key's value; None without the key. A value that is no JSON holds, too."""
        if text is None:
            return None
        try:
            values = read_json(text)
            return Hold(str(values["reason"]), int(values["since_ms"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            return Hold()
