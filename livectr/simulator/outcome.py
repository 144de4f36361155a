"""Outcome of a closed loop: what each arm earned, and by how much two arms differ.

A user is the unit: all visits of a user go to one arm. Where both arms were asked of one server before the
test, a user's own earnings then explain a part of the later ones: CUPED (Deng et al. 2013, §3.1)

    y' = y − θ (x − mean x),   θ = cov(x, y) / var(x)   over the users of both arms

has the same difference of means and less variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from livectr.simulator.truth import F64, I64

MEASURES = ("pages", "impressions", "clicks", "revenue", "welfare", "best_welfare")
"""Sums of a user: pages seen, ads on them, clicks, prices of the clicks, Σ bid · true P(click) of what was
shown, and of what an oracle shows of the same candidates."""
Z = 1.96


class Account:
    """Sums of each user, f64[users, measures], before the test and in it."""

    def __init__(self, users: int) -> None:
        self.before = np.zeros((users, len(MEASURES)))
        self.tested = np.zeros((users, len(MEASURES)))

    def add(self, user: I64, values: F64, *, tested: bool) -> None:
        """Add the sums of n pages: user i64[n], values f64[n, measures]."""
        np.add.at(self.tested if tested else self.before, user, values)


@dataclass(frozen=True)
class Difference:
    """Mean of arm B minus that of arm A, a user.

    Args:
        mean: the difference.
        half: half the width of its interval of 95 %.
    """

    mean: float
    half: float


def difference(y: F64, arm: I64, x: F64 | None = None) -> Difference:
    """Difference of the means of two arms.

    Args:
        y: f64[users], measure of each user.
        arm: i64[users], 0 or 1.
        x: f64[users], covariate that no arm can have changed (CUPED); None: none.

    Raises:
        ValueError: an arm has fewer than two users.
    """
    if x is not None and (spread := float(np.var(x))) > 0:
        y = y - float(np.mean((x - x.mean()) * (y - y.mean()))) / spread * (x - x.mean())
    sides = [y[arm == one] for one in (0, 1)]
    if min(map(len, sides)) < 2:
        raise ValueError("an arm needs two users")
    variance = sum(float(np.var(side, ddof=1)) / len(side) for side in sides)
    return Difference(float(sides[1].mean() - sides[0].mean()), Z * variance**0.5)


def outcome(account: Account, arm: I64, names: Sequence[str]) -> dict[str, Any]:
    """Sums and rates of each arm, JSON-able; of two arms their differences, too.

    Args:
        account: of all users.
        arm: i64[users], index in `names`.
        names: of one arm or two.
    """
    arms = {}
    for number, name in enumerate(names):
        mine = account.tested[arm == number]
        sums = dict(zip(MEASURES, mine.sum(0).tolist(), strict=True))
        pages, shown, best = sums["pages"] or 1.0, sums["impressions"] or 1.0, sums["best_welfare"] or 1.0
        arms[name] = {
            "users": len(mine),
            **{name: int(sums[name]) for name in ("pages", "impressions", "clicks")},
            "revenue": round(sums["revenue"], 4),
            "ctr": sums["clicks"] / shown,
            "revenue_per_1000_pages": 1000 * sums["revenue"] / pages,
            "welfare_per_1000_pages": 1000 * sums["welfare"] / pages,
            "regret": 1 - sums["welfare"] / best,
        }
    found: dict[str, Any] = {"arms": arms}
    if len(names) > 1:
        found["differences"] = {
            name: {
                "relative": plain.mean / base,
                "interval": [(plain.mean + sign * plain.half) / base for sign in (-1, 1)],
                "cuped": cuped.mean / base,
                "cuped_interval": [(cuped.mean + sign * cuped.half) / base for sign in (-1, 1)],
            }
            for name in ("clicks", "revenue", "welfare")
            for place in (MEASURES.index(name),)
            for y in (account.tested[:, place],)
            for plain in (difference(y, arm),)
            for cuped in (difference(y, arm, account.before[:, place]),)
            for base in (float(y[arm == 0].mean()) or 1.0,)
        }
    return found


def show_outcome(found: dict[str, Any]) -> None:
    """Print the tables of an outcome on standard error."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    arms = Table(title="closed loop", title_justify="left")
    for name in (
        "arm",
        "users",
        "pages",
        "clicks",
        "CTR",
        "revenue / 1000 pages",
        "welfare / 1000 pages",
        "regret",
    ):
        arms.add_column(name, justify="left" if name == "arm" else "right")
    for name, one in found["arms"].items():
        counts = (f"{one[key]:,}" for key in ("users", "pages", "clicks"))
        money = (f"{one[f'{key}_per_1000_pages']:,.1f}" for key in ("revenue", "welfare"))
        arms.add_row(name, *counts, f"{one['ctr']:.2%}", *money, f"{one['regret']:.2%}")
    console.print(arms)
    if "differences" in found:
        table = Table(title="second arm against the first, a user", title_justify="left")
        for name in ("", "plain", "with CUPED"):
            table.add_column(name)
        for name, one in found["differences"].items():
            table.add_row(name, *(_interval(one[a], one[b]) for a, b in _KINDS))
        console.print(table)


_KINDS = (("relative", "interval"), ("cuped", "cuped_interval"))


def _interval(mean: float, ends: Sequence[float]) -> str:
    return f"{mean:+.2%} [{ends[0]:+.2%}, {ends[1]:+.2%}]"
