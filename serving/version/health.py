"""A server's standing: whether what it serves is sound, why it is not, and since when.

Trouble that lasts longer than the grace time makes the server's health NOT_SERVING, so that balancers send
requests elsewhere; it is SERVING again as soon as the trouble has gone. One line of the log, the metrics and
`Describe` say why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from livectr.serving import metrics

log = logging.getLogger(__name__)


class HealthIssue(StrEnum):
    """Kinds of trouble; the label of the metric."""

    MANIFEST = "manifest"
    """Redis has no manifest any more: it was emptied."""
    FOREIGN = "foreign"
    """Another pipeline's version stands in the namespace."""
    ROWS = "rows"
    """Sentinels of the served version's rows are gone."""
    VALUES = "values"
    """Sentinels of look-up rows and histories are gone."""
    EVICTED = "evicted"
    """Redis has evicted keys since the name space was published."""
    REFUSED = "refused"
    """Redis refuses this server: password, permission, type of a key."""
    MISUSED = "misused"
    """Redis is of a kind that this server cannot talk to, such as a cluster."""
    BROKEN = "broken"
    """The look for versions fails by an error that is none of Redis's."""


class ServingHealth:
    """One server's trouble, if any. grace_s: how long trouble may last before the health says so."""

    def __init__(self, role: str, grace_s: float) -> None:
        self._role = role
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._kind: HealthIssue | None = None
        self._reason = ""
        self._since = 0.0
        self._tell: Callable[[bool], None] | None = None
        self._told: bool | None = None
        self._fatal = ""

    @property
    def reason(self) -> str:
        """The trouble in a sentence; empty: there is none."""
        return self._fatal or self._reason

    @property
    def fatal(self) -> str:
        """Why the process should end; empty: it should not."""
        return self._fatal

    def follow(self, tell: Callable[[bool], None]) -> None:
        """Calls `tell` with whether the server is healthy, at once and at every change."""
        self._tell, self._told = tell, None
        self.tick()

    def well(self) -> None:
        """There is no trouble."""
        self._set(None, "")

    def trouble(self, kind: HealthIssue, reason: str) -> None:
        """There is trouble of this kind; it began when the first kind in a row was reported."""
        self._set(kind, reason)

    def die(self, reason: str) -> None:
        """The process cannot go on: unhealthy at once, and for good."""
        log.critical("%s: %s", self._role, reason)
        self._fatal = self._fatal or reason
        self.tick()

    def tick(self) -> None:
        """Lets time pass: health changes when the grace is over."""
        with self._lock:
            over = self._kind is not None and time.monotonic() - self._since >= self._grace_s
            if over and self._kind is HealthIssue.MISUSED:
                self._fatal = self._fatal or self._reason
            healthy = not over and not self._fatal
            if self._tell is None or healthy == self._told:
                return
            first, self._told = self._told is None, healthy
            self._tell(healthy)
        if not healthy:
            log.error("%s is NOT_SERVING: %s", self._role, self._fatal or self._reason)
        elif not first:
            log.warning("%s is SERVING again", self._role)

    def _set(self, kind: HealthIssue | None, reason: str) -> None:
        with self._lock:
            before = self._kind
            if before is None:
                self._since = time.monotonic()
            self._kind, self._reason = kind, reason
            for each in HealthIssue:
                metrics.HEALTH_ISSUE.labels(self._role, each).set(int(each is kind))
        if kind is not before:
            if kind is not None:
                log.error("%s: %s", self._role, reason)
            else:
                log.warning("%s: what is served is known to be whole again", self._role)
        self.tick()
