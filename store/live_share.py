"""Live share of a canary: while its key is in Redis, servers give the canary this share of the requests.

Without the key the share is that of the servers' setting `canary`. Whoever sets the key may let it expire, so
that the share goes back by itself when nobody renews it (`livectr rollout`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from livectr.store.plain import read_json


@dataclass(frozen=True)
class LiveShare:
    """Value of `Keyspace.canary`.

    Attributes:
        ns: namespace of the canary that it is for; servers with another canary have their own share.
        share: of the requests, 0 to 1.
    """

    ns: str
    share: float

    def to_json(self) -> bytes:
        """Text in Redis."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of(text: bytes | str | None) -> LiveShare | None:
        """Share of a key's value; None without the key, and for a value that is no share."""
        if text is None:
            return None
        try:
            values = read_json(text)
            found = LiveShare(str(values["ns"]), float(values["share"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        return found if 0 <= found.share <= 1 else None
