"""Call of a client while it is answered: its deadline, its stages, and what is observed of it, once.

began ─► wait ─► parse ─► … ─► respond ─► observe
          └── ends: the instant at which each stage ended; a stage that is repeated counts each time
"""

from __future__ import annotations

import time
from collections.abc import Callable

from livectr.serving import metrics, tracing
from livectr.serving.canary import SIDE
from livectr.serving.deadlines import Call
from livectr.system.counters import LabelledCounter, count_each
from livectr.system.histograms import I64, LabelledHistogram, observe_each


class RequestCall(Call):
    """Call of a method that answers requests. For one thread.

    Args:
        role: of the method.
        deadline, is_active: as of `Call`.
        began: instant of time.perf_counter() at which the server got the request.

    Attributes:
        ends: pairs of a stage and the instant of time.perf_counter() at which it ended. Stages that have not
            waited are added as they are; `ended` looks at the deadline, too.
        counts: amounts that are added to counters in the end, with their labels besides the side.
        pctr: click probabilities of a reply, counted by `SERVED_PCTR.bounds`, i64[n + 1], and their sum.
    """

    __slots__ = ("began", "counts", "ends", "pctr", "role", "values")

    def __init__(
        self,
        role: str,
        deadline: float | None = None,
        is_active: Callable[[], bool] = lambda: True,
        began: float = 0.0,
    ) -> None:
        self.role, self.deadline, self.is_active, self.began = role, deadline, is_active, began
        self.ends: list[tuple[str, float]] = []
        self.values: list[tuple[LabelledHistogram, tuple[str, ...], float]] = []
        self.counts: list[tuple[LabelledCounter, tuple[str, ...], float]] = []
        self.pctr: tuple[I64, float] | None = None

    def ended(self, stage: str) -> float:
        """Take the end of a stage, which is now; return the seconds since the end of the stage before.

        Raises:
            DeadlineError: the deadline has passed; the error names the stage in which it did.
            CancelledError: the client went.
        """
        since, now = self.ends[-1][1] if self.ends else self.began, time.perf_counter()
        self.ends.append((stage, now))
        self.check(stage, self.ends)
        return now - since

    def passed(self, *ends: tuple[str, float]) -> None:
        """Take the ends of several stages. Raises as `ended`."""
        self.ends += ends
        self.check(ends[-1][0], self.ends)

    def inner(self, role: str) -> RequestCall:
        """Call for a part of the answer, as another role: its stages are in none of this call's."""
        part = RequestCall(role, self.deadline, self.is_active, time.perf_counter())
        part.values, part.counts = self.values, self.counts
        return part

    def read_live(self, read_at: float | None, created_ms: int) -> None:
        """Take the time by which the live inputs differ from the version that answers.

        Args:
            read_at: instant of time.monotonic() at which the oldest was read; None: the request has none.
            created_ms: time at which the version was created, ms since 1970.
        """
        if read_at is None:
            return
        age_s, labels = time.monotonic() - read_at, (self.role, SIDE.get())
        skew_s = max(0.0, time.time() - age_s - created_ms / 1000)
        self.values += (metrics.LIVE_AGE, labels, age_s), (metrics.LIVE_SKEW, labels, skew_s)

    def observe(self, code: str) -> None:
        """Observe the call, which is over.

        Args:
            code: name of its gRPC status.
        """
        role, side, values = self.role, SIDE.get(), self.values
        since = self.began
        for stage, end in self.ends:
            values.append((metrics.STAGE_SECONDS, (role, stage, side), end - since))
            if tracing.TRACER is not None:
                tracing.TRACER.stage_ended(stage, since, end)
            since = end
        values.append((metrics.REQUEST_SECONDS, (role, code, side), time.perf_counter() - self.began))
        self.counts.append((metrics.REQUESTS, (role, code, side), 1))
        observe_each(values)
        count_each(self.counts)
        if self.pctr is not None:
            metrics.SERVED_PCTR.add((role, side), *self.pctr)
