"""One table of what redis-py raises, and of what it means to a process that asks Redis.

    Redis cannot be asked at the moment   ─► DEGRADED     answer from what is held, marked; ask again
    Redis refuses this process            ─► UNAVAILABLE  an operator mends it while the process goes on
    the process talks to Redis wrongly    ─► EXIT         only another start can mend it

Every class of `redis.exceptions` has its own line, so that a class that a new redis-py brings is looked at
before it is met (a test compares). An error without a class of its own is told by its first word.
"""

from enum import StrEnum

from redis import exceptions as redis


class Outcome(StrEnum):
    """What an error of Redis means."""

    DEGRADED = "degraded"
    """It passes by itself: Redis is away, restarting, loading, busy, failing over or full."""
    UNAVAILABLE = "unavailable"
    """It stays until somebody changes Redis or its users: a password, a permission, a key of another type."""
    EXIT = "exit"
    """It stays as long as the process lives: a cluster where one server was expected, or a wrong call."""


OUTCOMES: dict[type[BaseException], Outcome] = {
    redis.RedisError: Outcome.DEGRADED,
    # away
    redis.ConnectionError: Outcome.DEGRADED,
    redis.TimeoutError: Outcome.DEGRADED,
    redis.MaxConnectionsError: Outcome.DEGRADED,
    redis.InvalidResponse: Outcome.DEGRADED,
    # there, but busy with itself
    redis.BusyLoadingError: Outcome.DEGRADED,
    redis.MasterDownError: Outcome.DEGRADED,
    redis.ClusterDownError: Outcome.DEGRADED,
    redis.TryAgainError: Outcome.DEGRADED,
    redis.ReadOnlyError: Outcome.DEGRADED,
    redis.OutOfMemoryError: Outcome.DEGRADED,
    redis.NoScriptError: Outcome.DEGRADED,
    redis.ExecAbortError: Outcome.DEGRADED,
    redis.WatchError: Outcome.DEGRADED,
    redis.LockError: Outcome.DEGRADED,
    redis.LockNotOwnedError: Outcome.DEGRADED,
    # refuses
    redis.ResponseError: Outcome.UNAVAILABLE,
    redis.AuthenticationError: Outcome.UNAVAILABLE,
    redis.AuthenticationWrongNumberOfArgsError: Outcome.UNAVAILABLE,
    redis.AuthorizationError: Outcome.UNAVAILABLE,
    redis.ExternalAuthProviderError: Outcome.UNAVAILABLE,
    redis.NoPermissionError: Outcome.UNAVAILABLE,
    redis.ModuleError: Outcome.UNAVAILABLE,
    # another kind of Redis than the process was made for
    redis.MovedError: Outcome.EXIT,
    redis.AskError: Outcome.EXIT,
    redis.ClusterError: Outcome.EXIT,
    redis.ClusterCrossSlotError: Outcome.EXIT,
    redis.RedisClusterException: Outcome.EXIT,
    redis.CrossSlotTransactionError: Outcome.EXIT,
    redis.SlotNotCoveredError: Outcome.EXIT,
    # calls that no correct program makes
    redis.DataError: Outcome.EXIT,
    redis.PubSubError: Outcome.EXIT,
    redis.InvalidPipelineStack: Outcome.EXIT,
    redis.ChildDeadlockedError: Outcome.EXIT,
}
"""By class; a class that is not here (of a newer redis-py) counts as its nearest base."""
for _name in ("NoSuchFieldsetError", "IncorrectPolicyType"):  # of newer versions of redis-py only
    if hasattr(redis, _name):
        OUTCOMES[getattr(redis, _name)] = Outcome.EXIT

WORDS: dict[str, Outcome] = {
    "BUSY": Outcome.DEGRADED,
    "LOADING": Outcome.DEGRADED,
    "MASTERDOWN": Outcome.DEGRADED,
    "CLUSTERDOWN": Outcome.DEGRADED,
    "TRYAGAIN": Outcome.DEGRADED,
    "READONLY": Outcome.DEGRADED,
    "OOM": Outcome.DEGRADED,
    "MISCONF": Outcome.DEGRADED,
    "NOREPLICAS": Outcome.DEGRADED,
    "NOAUTH": Outcome.UNAVAILABLE,
    "WRONGPASS": Outcome.UNAVAILABLE,
    "NOPERM": Outcome.UNAVAILABLE,
    "CROSSSLOT": Outcome.EXIT,
    "MOVED": Outcome.EXIT,
    "ASK": Outcome.EXIT,
}
"""By the first word of a ResponseError that redis-py knows no class for."""

REDIS_ERRORS = (
    redis.RedisError,
    redis.RedisClusterException,
    redis.ChildDeadlockedError,
)
"""The roots: what a call of redis-py may raise because of Redis."""


def outcome_of(error: BaseException) -> Outcome:
    """The meaning of what redis-py raised; an error that is none of Redis's is EXIT."""
    if type(error) is redis.ResponseError:
        return WORDS.get(str(error).partition(" ")[0], Outcome.UNAVAILABLE)
    return next((OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES), Outcome.EXIT)


def is_forbidden(error: redis.ResponseError) -> bool:
    """Whether a command is not for this user, as some are not on a managed Redis."""
    return isinstance(error, redis.NoPermissionError) or "unknown command" in str(error).lower()
