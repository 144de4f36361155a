"""Evictions: counts of INFO that mean that published keys may be lost."""

import pytest
import redis

from livectr.store.evictions import Evictions
from livectr.store.redis_errors import is_forbidden


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        (Evictions("run", "allkeys-lru", 5), False),
        (Evictions("run", "allkeys-lru", 6), True),
        (Evictions("run", "noeviction", 6), True),  # the policy was another one meanwhile
        (Evictions("run", "volatile-ttl", 6), False),  # only keys that expire
        (Evictions("run", "allkeys-lru", 0), False),  # CONFIG RESETSTAT, and nothing since
        (Evictions("run", "allkeys-lru", 2), True),
        (Evictions("other", "noeviction", 0), False),  # Redis was restarted
        (Evictions("other", "noeviction", 1), True),
        (Evictions(), False),  # INFO is refused: nothing is known
    ],
)
def test_keys_lost_since_a_look(now: Evictions, lost: bool) -> None:
    assert now.lost_since(Evictions("run", "allkeys-lru", 5)) is lost


@pytest.mark.parametrize(
    ("policy", "risky"),
    [("noeviction", False), ("volatile-lru", False), ("allkeys-lfu", True), ("a-new-one", True), ("", False)],
)
def test_policies(policy: str, risky: bool) -> None:
    assert Evictions("run", policy, 0).risky is risky


def test_a_real_info_is_read(redis_url: str) -> None:
    look = Evictions.of(redis.Redis.from_url(redis_url).info())
    assert len(look.run_id) == 40 and look.policy == "noeviction"


def test_commands_that_are_forbidden() -> None:
    assert is_forbidden(redis.exceptions.NoPermissionError("this user has no permissions"))
    assert is_forbidden(redis.ResponseError("unknown command 'INFO'"))
    assert not is_forbidden(redis.ResponseError("BUSY Redis is busy"))
