"""The label join's rules by scanning lists: what the tests compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from livectr.kernels.stream.join import (
    ACCEPTED,
    CLICK,
    DELAYED,
    DUPLICATE,
    FINAL_LATE,
    FINAL_NEGATIVE,
    FINAL_POSITIVE,
    IMPRESSION,
    LATE,
    LATE_POSITIVE,
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
    seen: list[int] = field(default_factory=list)
    """Time up to which each event sees clicks."""
    unmatched: int = 0
    matched: int = 0
    behind: int = 0
    ahead: list[int] = field(default_factory=list)


@dataclass
class Impression:
    slot: int
    ts: int
    deadline: int
    clicks: list[int] = field(default_factory=list)
    late: bool = False
    leaves: int = 0
    """First deadline; the deadline if there is no wait."""


def brute_force(
    events: Sequence[Event],
    window: int,
    dedup: int,
    wait: int | None = None,
    finals: bool = False,
    slack: int = 0,
    marks: Sequence[int] | None = None,
) -> Outcome:
    """The rules of JoinIndex's docstring; without marks the watermark is the greatest time so far."""
    wait = window if wait is None else wait
    late_positives: list[tuple[int, int, int, int]] = []
    out = Outcome()
    impressions: dict[int, Impression] = {}
    waiting: dict[int, tuple[list[int], int]] = {}
    everyone: list[Impression] = []
    wm = 0
    for number, (kind, key, ts) in enumerate(events):
        wm = max(wm, ts) if marks is None else marks[number]
        for known in [k for k, i in impressions.items() if i.deadline + dedup < wm]:
            del impressions[known]
        for known in [k for k, (_, until) in waiting.items() if until + dedup < wm]:
            del waiting[known]
            out.unmatched += 1
        seen = impressions.get(key)
        status, slot, sees = DUPLICATE, -1, ts
        if kind == IMPRESSION and seen is None:
            clicks, _ = waiting.pop(key, ([], 0))
            inside = [t for t in clicks if ts - slack <= t <= ts + window]
            out.unmatched += bool(clicks) and not inside
            out.matched += bool(inside)
            if not inside and clicks and min(clicks) < ts:
                out.ahead.append(ts - min(clicks))
            if inside and min(inside) < ts:
                out.behind += 1
                sees = min(inside) - 1
            seen = Impression(len(everyone), ts, max(ts + window, wm), inside, leaves=max(ts + wait, wm))
            everyone.append(seen)
            impressions[key] = seen
            status, slot = ACCEPTED, seen.slot
        elif kind == CLICK and seen is None:
            clicks, until = waiting.get(key, ([], 0))
            status = DUPLICATE if clicks else UNMATCHED
            waiting[key] = ([*clicks, ts], until if clicks else max(ts + window, wm))
        elif kind == CLICK and seen is not None and not seen.clicks:
            waits = wm <= seen.deadline
            if waits and seen.ts - slack <= ts <= seen.ts + window:
                out.matched += 1
                out.behind += ts < seen.ts
                status = ACCEPTED if wm <= seen.leaves else DELAYED
                seen.clicks.append(ts)
                if status == DELAYED:
                    late_positives.append((seen.slot, LATE_POSITIVE, ts, wm))
            elif seen.late:
                pass
            elif ts < seen.ts - slack:
                status = OUTSIDE
                out.unmatched += 1
                out.ahead.append(seen.ts - ts)
            else:
                status = LATE
                seen.late = True
        out.status.append(status)
        out.seen.append(sees)
        out.slot.append(slot)
    rows = []
    delayed = {slot for slot, *_ in late_positives}
    for i in everyone:
        known = bool(i.clicks) and i.slot not in delayed
        rows.append((i.slot, int(known), min(i.clicks) if known else -1, i.leaves))
    rows.sort(key=lambda row: (row[3], row[0]))
    ends = []
    for i in everyone if finals else ():
        label = FINAL_NEGATIVE if not i.clicks else FINAL_LATE if i.slot in delayed else FINAL_POSITIVE
        ends.append((i.slot, label, min(i.clicks, default=-1), i.deadline))
    ends.sort(key=lambda row: (row[3], row[0]))
    # A click comes before all that leaves at its watermark, and finals come last; clicks keep their order.
    stage = {LATE_POSITIVE: 0, FINAL_NEGATIVE: 2, FINAL_POSITIVE: 2, FINAL_LATE: 2}
    out.released = sorted([*late_positives, *rows, *ends], key=lambda row: (row[3], stage.get(row[1], 1)))
    out.unmatched += len(waiting)
    return out
