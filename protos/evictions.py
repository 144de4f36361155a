"""Evictions: what Redis says of the keys that it has thrown away to save memory.

A sentinel cannot show that a single key was evicted, so readers and the trainer compare a count. INFO has it,
and the policy as well, also on a managed Redis that refuses CONFIG GET.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Evictions:
    """One look at INFO.

    run: the Redis process that counts ("": INFO was refused). policy: its `maxmemory-policy`.
    keys: evicted since it was started.
    """

    run: str = ""
    policy: str = ""
    keys: int = 0

    @staticmethod
    def of(info: Mapping[str, object]) -> "Evictions":
        """Out of INFO, as redis-py parses it."""
        return Evictions(
            str(info.get("run_id", "")),
            str(info.get("maxmemory_policy", "")),
            int(str(info.get("evicted_keys", 0))),
        )

    @property
    def spares_ours(self) -> bool:
        """Whether the policy evicts only keys that expire; published keys do not."""
        return self.policy.startswith("volatile-")

    @property
    def risky(self) -> bool:
        """Whether the policy may evict published keys."""
        return self.policy not in ("", "noeviction") and not self.spares_ours

    def lost_since(self, before: "Evictions") -> bool:
        """Whether published keys may have been evicted after `before`, an earlier look.

        Of another Redis process (it was restarted, or replaced by a replica) every eviction counts.
        """
        if not self.run or self.spares_ours:
            return False
        if self.run != before.run:
            return self.keys > 0
        return self.keys > before.keys or 0 < self.keys < before.keys  # CONFIG RESETSTAT begins anew
