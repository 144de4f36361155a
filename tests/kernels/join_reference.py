"""The label join's rules by scanning lists: what the tests compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from livectr.kernels.stream.join import (
    ACCEPTED,
    CLICK,
    CORRECTION,
    DUPLICATE,
    IMPRESSION,
    LATE,
    OUTSIDE,
    UNMATCHED,
)

Event = tuple[int, int, int]
"""kind, key, ts; the watermark of an event is the greatest ts so far."""


@dataclass
class Outcome:
    status: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    released: list[tuple[int, int, int, int]] = field(default_factory=list)
    unmatched: int = 0


@dataclass
class Impression:
    slot: int
    ts: int
    deadline: int
    clicks: list[int] = field(default_factory=list)
    late: bool = False
    late_while_waiting: int | None = None


def brute_force(events: Sequence[Event], window: int, dedup: int) -> Outcome:
    """The rules of JoinIndex's docstring."""
    out = Outcome()
    impressions: dict[int, Impression] = {}
    waiting: dict[int, tuple[list[int], int]] = {}
    everyone: list[Impression] = []
    wm = 0
    for kind, key, ts in events:
        wm = max(wm, ts)
        for known in [k for k, i in impressions.items() if i.deadline + dedup < wm]:
            del impressions[known]
        for known in [k for k, (_, until) in waiting.items() if until + dedup < wm]:
            del waiting[known]
            out.unmatched += 1
        seen = impressions.get(key)
        status, slot = DUPLICATE, -1
        if kind == IMPRESSION and seen is None:
            clicks, _ = waiting.pop(key, ([], 0))
            inside = [t for t in clicks if ts <= t <= ts + window]
            out.unmatched += bool(clicks) and not inside
            seen = Impression(len(everyone), ts, max(ts + window, wm), inside)
            everyone.append(seen)
            impressions[key] = seen
            status, slot = ACCEPTED, seen.slot
        elif kind == CLICK and seen is None:
            clicks, until = waiting.get(key, ([], 0))
            status = DUPLICATE if clicks else UNMATCHED
            waiting[key] = ([*clicks, ts], until if clicks else max(ts + window, wm))
        elif kind == CLICK and seen is not None and not seen.clicks:
            waits = wm <= seen.deadline
            if waits and seen.ts <= ts <= seen.ts + window:
                status = ACCEPTED
                seen.clicks.append(ts)
            elif seen.late:
                pass
            elif ts < seen.ts:
                status = OUTSIDE
                out.unmatched += 1
            else:
                status, slot = LATE, -1 if waits else seen.slot
                seen.late = True
                seen.late_while_waiting = ts if waits else None
        out.status.append(status)
        out.slot.append(slot)
    for i in sorted(everyone, key=lambda i: (i.deadline, i.slot)):
        out.released.append((i.slot, int(bool(i.clicks)), min(i.clicks, default=-1), i.deadline))
        if not i.clicks and i.late_while_waiting is not None:
            out.released.append((i.slot, CORRECTION, i.late_while_waiting, i.deadline))
    out.unmatched += len(waiting)
    return out
