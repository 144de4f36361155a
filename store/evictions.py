"""Evictions: Redis' count of keys that it removed to save memory.

A sentinel cannot show that a single key was evicted, so servers and the trainer compare counts. INFO holds
the count and the policy, also on a managed Redis that refuses CONFIG GET.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Evictions:
    """Evictions in a reply to INFO.

    Args:
        run_id: of the Redis process that counts, or a digest of those of a cluster; "": INFO was refused.
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

    @staticmethod
    def of_all(infos: Sequence[Mapping[str, object]]) -> "Evictions":
        """Read the count from INFO of all nodes of a cluster, which count together.

        The policy is one that may evict published keys, if any node has such a policy.
        """
        each = [Evictions.of(info) for info in infos]
        if len(each) == 1:
            return each[0]
        ids = "".join(sorted(one.run_id for one in each))
        risky = next((one for one in each if one.risky), each[0])
        return Evictions(hashlib.sha1(ids.encode()).hexdigest(), risky.policy, sum(one.keys for one in each))

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
