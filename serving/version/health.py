"""Health of a server: its current issue, the reason, and the time since when.

An issue that outlasts the grace time makes the server NOT_SERVING, so that load balancers send requests to
other servers. It is SERVING again as soon as the issue is gone. A server that has long not known if it serves
the newest version (`serving.version.staleness`) is NOT_SERVING, too. The log, the metrics and `Describe` give
the reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from livectr.serving import metrics
from livectr.serving.canary import SIDE, STABLE
from livectr.serving.version.staleness import Staleness

log = logging.getLogger(__name__)


class HealthIssue(StrEnum):
    """Kinds of issues; values of the metric's label `kind`."""

    MANIFEST = "manifest"
    """Redis lost the manifest: it was emptied."""
    FOREIGN = "foreign"
    """The namespace holds a version of another pipeline."""
    ROWS = "rows"
    """Sentinels of the served version's rows are gone."""
    VALUES = "values"
    """Sentinels of look-up rows and histories are gone."""
    EVICTED = "evicted"
    """Redis has evicted keys since the row set was published."""
    REFUSED = "refused"
    """Redis refuses this server: wrong password, missing permission, wrong type of a key."""
    MISUSED = "misused"
    """Redis is of a kind that this server does not support, such as a cluster."""
    BROKEN = "broken"
    """The check for versions fails with an error that Redis did not cause."""


class ServingHealth:
    """Current issue of a server, if any. Thread-safe.

    Args:
        role: "rank" or "prerank".
        grace_s: seconds for which an issue may last before the server is NOT_SERVING.
        staleness: for how long the server has not been known to serve the newest version.
    """

    def __init__(self, role: str, grace_s: float, staleness: Staleness | None = None) -> None:
        self._role = role
        self._name = role if SIDE.get() == STABLE else f"{role} {SIDE.get()}"
        self._grace_s = grace_s
        self.staleness = staleness or Staleness(0)
        self._lock = threading.Lock()
        self._issue: HealthIssue | None = None
        self._reason = ""
        self._since = 0.0
        self._callback: Callable[[bool], None] | None = None
        self._reported: bool | None = None
        self._fatal = ""

    @property
    def reason(self) -> str:
        """Sentence that describes the issue; empty: there is no issue."""
        stale = self._stale_reason() if self.staleness.stale else ""
        return self._fatal or self._reason or stale

    @property
    def fatal(self) -> str:
        """Reason for which the process must end; empty: it can continue."""
        return self._fatal

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(healthy)` at once and at every change."""
        self._callback, self._reported = callback, None
        self.tick()

    def clear(self) -> None:
        """End the current issue."""
        self._set(None, "")

    def report(self, issue: HealthIssue, reason: str) -> None:
        """Report an issue. The grace time runs from the first of several issues in a row."""
        self._set(issue, reason)

    def fail(self, reason: str) -> None:
        """Make the server unhealthy at once and for good: the process cannot continue."""
        log.critical("%s: %s", self._name, reason)
        self._fatal = self._fatal or reason
        self.tick()

    def tick(self) -> None:
        """Update the health; it changes when the grace time is over."""
        with self._lock:
            over = self._issue is not None and time.monotonic() - self._since >= self._grace_s
            if over and self._issue is HealthIssue.MISUSED:
                self._fatal = self._fatal or self._reason
            stale = self.staleness.stale
            healthy = not (over or stale or self._fatal)
            if self._callback is None or healthy == self._reported:
                return
            first, self._reported = self._reported is None, healthy
            self._callback(healthy)
        if not healthy:
            why = self._fatal or (self._reason if over else self._stale_reason())
            log.error("%s is NOT_SERVING: %s", self._name, why)
        elif not first:
            log.warning("%s is SERVING again", self._name)

    def _stale_reason(self) -> str:
        age_s = self.staleness.age_s
        return f"for {age_s:.0f} s it could not be known that the newest published version is served"

    def _set(self, issue: HealthIssue | None, reason: str) -> None:
        with self._lock:
            before = self._issue
            if before is None:
                self._since = time.monotonic()
            self._issue, self._reason = issue, reason
            for each in HealthIssue:
                metrics.HEALTH_ISSUE.labels(self._role, each).set(int(each is issue))
        if issue is not before:
            if issue is not None:
                log.error("%s: %s", self._name, reason)
            else:
                log.warning("%s: the served version is complete in Redis again", self._name)
        self.tick()
