"""Table of the errors of redis-py and their meaning for a process that uses Redis.

    Redis cannot be used at the moment    ─► DEGRADED     answer from memory, marked; try again
    Redis refuses this process            ─► UNAVAILABLE  an operator mends it while the process continues
    the process uses Redis wrongly        ─► EXIT         only a restart can mend it

Every class of `redis.exceptions` has its own line, and a test compares: somebody classifies the errors of a
new redis-py before they occur. An error without its own class is known by its first word.

A single server that answers MOVED is part of a cluster: the address is wrong. To a client of clusters the
same answer means that slots move or a node fails over. So such a client raises `of_cluster` of what it met.
"""

from enum import StrEnum

from redis import exceptions as redis
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError


class Outcome(StrEnum):
    """Meaning of an error of Redis."""

    DEGRADED = "degraded"
    """Temporary: Redis is down, restarting, loading, busy, failing over or full."""
    UNAVAILABLE = "unavailable"
    """Lasts until an operator changes Redis or its users: a password, a permission, a key of another type."""
    EXIT = "exit"
    """Lasts as long as the process: a cluster where a single server was expected, or a wrong call."""


OUTCOMES: dict[type[BaseException], Outcome] = {
    redis.RedisError: Outcome.DEGRADED,
    # unreachable
    redis.ConnectionError: Outcome.DEGRADED,
    redis.TimeoutError: Outcome.DEGRADED,
    redis.MaxConnectionsError: Outcome.DEGRADED,
    redis.InvalidResponse: Outcome.DEGRADED,
    MasterNotFoundError: Outcome.DEGRADED,
    SlaveNotFoundError: Outcome.DEGRADED,
    # reachable, but busy
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
    redis.NoPermissionError: Outcome.UNAVAILABLE,
    redis.ModuleError: Outcome.UNAVAILABLE,
    # a kind of Redis that is not supported
    redis.MovedError: Outcome.EXIT,
    redis.AskError: Outcome.EXIT,
    redis.ClusterError: Outcome.EXIT,
    redis.ClusterCrossSlotError: Outcome.EXIT,
    redis.RedisClusterException: Outcome.EXIT,
    redis.CrossSlotTransactionError: Outcome.EXIT,
    redis.SlotNotCoveredError: Outcome.EXIT,
    # wrong calls
    redis.DataError: Outcome.EXIT,
    redis.PubSubError: Outcome.EXIT,
    redis.InvalidPipelineStack: Outcome.EXIT,
    redis.ChildDeadlockedError: Outcome.EXIT,
}
"""Meaning by class; an unknown class (of a newer redis-py) counts as its nearest base."""
for _name, _outcome in {  # only in newer versions of redis-py
    "ExternalAuthProviderError": Outcome.UNAVAILABLE,
    "NoSuchFieldsetError": Outcome.EXIT,
    "IncorrectPolicyType": Outcome.EXIT,
}.items():
    if hasattr(redis, _name):
        OUTCOMES[getattr(redis, _name)] = _outcome

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
"""Meaning by the first word of a ResponseError without its own class."""

REDIS_ERRORS = (
    redis.RedisError,
    redis.RedisClusterException,
    redis.ChildDeadlockedError,
)
"""Base classes of all errors that redis-py raises because of Redis."""


def of_cluster(error: BaseException) -> BaseException:
    """Error that a client of clusters raises for an error of redis-py; the error itself where it fits."""
    if isinstance(error, redis.RedisClusterException) and "connected" in str(error):
        reason = error.__cause__
        if isinstance(reason, redis.RedisClusterException):  # no node answers CLUSTER SLOTS
            refusal = reason.__context__
            if isinstance(refusal, redis.ResponseError) and "cluster support disabled" not in str(refusal):
                return refusal
            return redis.ClusterCrossSlotError("the server is no node of a cluster; say redis://HOST:PORT")
        if isinstance(reason, redis.ResponseError | redis.AuthenticationError):
            return reason
        return redis.ConnectionError(str(reason or error))
    if isinstance(error, redis.ClusterCrossSlotError | redis.CrossSlotTransactionError):
        return error
    if isinstance(error, redis.ClusterDownError | redis.TryAgainError):
        return error
    if isinstance(error, redis.AskError | redis.ClusterError | redis.RedisClusterException):
        return redis.ClusterDownError(f"slots of the cluster move or are not served: {error}")
    return error


def outcome_of(error: BaseException) -> Outcome:
    """Classify an error of redis-py; any other error is EXIT."""
    if type(error) is redis.ResponseError:
        return WORDS.get(str(error).partition(" ")[0], Outcome.UNAVAILABLE)
    return next((OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES), Outcome.EXIT)


def refusal(url: str, error: BaseException, flag: str) -> str:
    """Sentence on a Redis that does not answer, or refuses the user.

    Args:
        url: without its password.
        error: of the client.
        flag: option that names the server.
    """
    if isinstance(error, redis.AuthenticationError | redis.NoPermissionError):
        return f"Redis at {url} refuses ({error}); correct its user and password (redis_password_file)"
    return f"Redis at {url} does not answer ({error}); start it or change {flag}"


def is_forbidden(error: redis.ResponseError) -> bool:
    """True if the user may not run the command, as with some commands of a managed Redis."""
    return isinstance(error, redis.NoPermissionError) or "unknown command" in str(error).lower()
