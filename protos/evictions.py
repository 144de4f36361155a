"""Evictions: Redis' count of keys that it removed to save memory.

A sentinel cannot show that a single key was evicted, so servers and the trainer compare counts. INFO holds
the count and the policy, also on a managed Redis that refuses CONFIG GET.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Evictions:
    """Evictions in a reply to INFO.

    Args:
        run_id: of the Redis process that counts; "": INFO was refused.
        policy: its `maxmemory-policy`.
        keys: keys evicted since the process started.
    """

    run_id: str = ""
    policy: str = ""
    keys: int = 0

    @staticmethod
    def of(info: Mapping[str, object]) -> "Evictions":
        """Read the count from INFO, as redis-py parses it."""
        return Evictions(
            str(info.get("run_id", "")),
            str(info.get("maxmemory_policy", "")),
            int(str(info.get("evicted_keys", 0))),
        )

    @property
    def spares_persistent_keys(self) -> bool:
        """True if the policy evicts only keys with a time to live; published keys have none."""
        return self.policy.startswith("volatile-")

    @property
    def risky(self) -> bool:
        """True if the policy may evict published keys."""
        return self.policy not in ("", "noeviction") and not self.spares_persistent_keys

    def lost_since(self, before: "Evictions") -> bool:
        """True if published keys may have been evicted after `before`.

        In another Redis process (a restart, or a replica took over) every eviction counts.
        """
        if not self.run_id or self.spares_persistent_keys:
            return False
        if self.run_id != before.run_id:
            return self.keys > 0
        return self.keys > before.keys or 0 < self.keys < before.keys  # CONFIG RESETSTAT restarts the count
