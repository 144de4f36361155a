"""Writes a day of a site whose users and ads come and go, as Parquet, a file an hour: a function of the seed.

Half of an hour's users are those of the hour before; ads live LIFE_H hours, some are new each hour, and each
changes its price once. An impression is clicked the more likely the better ad and user fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.zipf import zipf_ids

HOURS = 24
HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000
LIFE_H = 6
GROUP_ROWS = 1 << 17
DELAY_MS = 60_000.0
"""Mean time from an impression to its click."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """Impressions, users and ads of an hour."""

    impressions: int
    users: int
    ads: int


FULL = Sizes(impressions=850_000, users=100_000, ads=5_000)
QUICK = Sizes(impressions=8_000, users=1_000, ads=100)


def write(folder: Path, sizes: Sizes, seed: int = 1) -> tuple[int, int]:
    """Write the day. Returns the numbers of events, and of different users."""
    _write(folder / "ads" / "0-00000.parquet", _ads(sizes, seed))
    events, users, clicks = 0, [], pa.table({})
    for hour in range(HOURS):
        rng = np.random.default_rng([seed, hour])
        shown = _impressions(rng, sizes, hour)
        clicks, waiting = _clicks(rng, shown, clicks, (hour + 1) * HOUR_MS + START_MS)
        _write(folder / "impressions" / f"0-{hour:05}.parquet", shown)
        _write(folder / "clicks" / f"0-{hour:05}.parquet", clicks)
        events += len(shown) + len(clicks)
        users.append(np.unique(shown["user_id"].to_numpy()))
        clicks = waiting
    return events, len(np.unique(np.concatenate(users)))


def _ads(sizes: Sizes, seed: int) -> pa.Table:
    """All ads of the day: each once when it is born, and once with its second price."""
    rng = np.random.default_rng([seed, HOURS])
    new = sizes.ads // LIFE_H
    number = np.arange((HOURS + LIFE_H) * new)
    born = START_MS + (number // new - LIFE_H) * HOUR_MS
    price, category = rng.lognormal(3, 1, len(number)), rng.integers(0, 40, len(number))
    twice = np.tile(number, 2)
    ts = np.concatenate([born, born + LIFE_H * HOUR_MS // 2])
    values = np.concatenate([price, price * rng.uniform(0.7, 1.3, len(number))])
    first = np.argsort(ts, kind="stable")
    return pa.table(
        {
            "ad_id": twice[first],
            "ts": ts[first],
            "category": category[twice[first]].astype(np.int32),
            "price": values[first].astype(np.float32),
        }
    )


def _impressions(rng: np.random.Generator, sizes: Sizes, hour: int) -> pa.Table:
    n, new = sizes.impressions, sizes.ads // LIFE_H
    user = hour * sizes.users // 2 + zipf_ids(rng, sizes.users, n)
    ad = hour * new + zipf_ids(rng, new * LIFE_H, n)
    return pa.table(
        {
            "request_id": hour * n + np.arange(n),
            "user_id": user,
            "ad_id": ad,
            "ts": START_MS + hour * HOUR_MS + np.sort(rng.integers(0, HOUR_MS, n)),
            "position": rng.integers(0, 8, n).astype(np.int32),
        }
    )


def _clicks(
    rng: np.random.Generator, shown: pa.Table, waiting: pa.Table, end_ms: int
) -> tuple[pa.Table, pa.Table]:
    """(clicks of the hour, those of the next hour), by time."""
    user, ad = shown["user_id"].to_numpy(), shown["ad_id"].to_numpy()
    fit = 0.02 + 0.1 * ((user * 7 + ad * 3) % 5 == 0) + 0.03 * (shown["position"].to_numpy() == 0)
    chosen = np.flatnonzero(rng.random(len(shown)) < fit)
    delay = rng.exponential(DELAY_MS, len(chosen)).astype(np.int64)
    clicks = shown.select(["request_id", "user_id", "ad_id", "ts"]).take(chosen)
    clicks = clicks.set_column(3, "ts", pa.array(clicks["ts"].to_numpy() + delay))
    clicks = pa.concat_tables([waiting, clicks]) if len(waiting) else clicks
    clicks = clicks.sort_by("ts")
    due = clicks["ts"].to_numpy() < end_ms
    return clicks.filter(pa.array(due)), clicks.filter(pa.array(~due))


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=GROUP_ROWS, compression="zstd", compression_level=1)
