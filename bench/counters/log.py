"""Log whose ads' click rates drift: each ad's logit is a random walk that forgets itself in some hours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from livectr import Stream, counts, labelled

COLUMNS = {"id": "int64", "user": "int64", "ad": "int64", "ts": "int64", "clicked": "int32"}
STREAM = Stream("shown", key="user", time="ts", columns=COLUMNS)
LOG = labelled(STREAM, label="clicked")
OVER = ("10m", "1h", "6h", "1d")
BY_AD = counts(LOG, by="ad", over=OVER)

ADS, USERS, HOURS = 300, 2_000, 48
FORGETS_H = 6.0
"""Hours after which an ad's logit is correlated to itself by 1/e."""
START_MS, STEP_MS = 1_700_000_000_000, 600_000
BASE = -2.2
Columns = dict[str, npt.NDArray[np.int64] | npt.NDArray[np.int32]]


def drifting(seed: int, rows: int) -> tuple[Columns, npt.NDArray[np.float64]]:
    """Columns of a log, in the order of time, and the true logit float64[rows] of each row."""
    rng = np.random.default_rng(seed)
    ts = np.sort(rng.integers(0, HOURS * 3_600_000, rows))
    kept = np.exp(-STEP_MS / (FORGETS_H * 3_600_000))
    walk = np.empty((HOURS * 3_600_000 // STEP_MS, ADS))
    walk[0] = rng.normal(0, 1, ADS)
    for step in range(1, len(walk)):
        walk[step] = kept * walk[step - 1] + np.sqrt(1 - kept**2) * rng.normal(0, 1, ADS)
    user, taste = rng.integers(0, USERS, rows), rng.normal(0, 0.5, USERS)
    ad = (ADS * rng.random(rows) ** 2).astype(np.int64)
    logit = BASE + walk[ts // STEP_MS, ad] + taste[user]
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int32)
    columns: Columns = {"id": np.arange(rows), "user": user, "ad": ad, "ts": START_MS + ts}
    return {**columns, "clicked": clicked}, logit
