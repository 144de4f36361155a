"""Log of a day as Parquet, a function of seed and calls: each impression names many ids.

An impression has a list of IDS products that its user has seen. Products are the user's own, so a user's
cross with them has as many keys. Until noon nearly all are new, afterwards few; the others are more likely
recent than old, and users that come back are more likely a few than all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.zipf import zipf_ids

HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000
IDS = 24
"""Products of an impression."""
NEW_EARLY, NEW_LATE = 22, 2
"""New products of an impression until noon, and afterwards."""
DELAY_MS = 60_000.0
"""Mean time from an impression to its click."""
GROUP_ROWS = 1 << 14

I64 = npt.NDArray[np.int64]


class DayLog:
    """Writer of the log; a call continues where the one before ended.

    Args:
        folder: of the logs.
        users: who may come.

    Attributes:
        now_ms: event time that is reached.
        impressions: written so far.
    """

    def __init__(self, folder: Path, users: int, seed: int = 1) -> None:
        self.now_ms, self.impressions = START_MS, 0
        self._folder, self._users = folder, users
        self._rng = np.random.default_rng(seed)
        self._products = np.zeros(users, np.int64)
        """Products that each user has seen."""
        self._waiting: pa.Table | None = None
        self._files = 0

    def write(self, count: int, span_ms: int, *, new: int) -> None:
        """Append `count` impressions of the next `span_ms`, and the clicks of that time.

        Args:
            new: products of each that nobody has seen.
        """
        rng, end_ms = self._rng, self.now_ms + span_ms
        # As many new products as ids: the first visits of the day; users come alike until all have some.
        users = rng.integers(0, self._users, count) if new > IDS // 2 else zipf_ids(rng, self._users, count)
        table = pa.table(
            {
                "request_id": self.impressions + np.arange(count),
                "user_id": users,
                "ts": self.now_ms + np.sort(rng.integers(0, span_ms, count)),
                "position": rng.integers(0, 8, count).astype(np.int32),
                "seen": self._seen(users, new),
            }
        )
        self._append("impressions", table)
        self._append("clicks", self._clicks(table, end_ms))
        self._files += 1
        self.impressions += count
        self.now_ms = end_ms

    def _seen(self, users: I64, new: int) -> pa.ListArray:
        """list<int64>[count]: numbers of the user's products, `new` of them unseen."""
        rng, count = self._rng, len(users)
        order = np.argsort(users, kind="stable")
        ordered = users[order]
        visit = np.empty(count, np.int64)  # how often the user has come before in this call
        visit[order] = np.arange(count) - np.searchsorted(ordered, ordered)
        begin = self._products[users] + new * visit
        fresh = begin[:, None] + np.arange(new)
        back = zipf_ids(rng, np.maximum(begin, 1)[:, None], (count, IDS - new))
        numbers = np.concatenate([fresh, np.maximum(begin[:, None] - 1 - back, 0)], axis=1)
        np.add.at(self._products, users, new)
        ids = (users[:, None] << 24 | numbers).reshape(-1)
        return pa.ListArray.from_arrays(np.arange(0, count * IDS + 1, IDS, dtype=np.int32), ids)

    def _clicks(self, shown: pa.Table, end_ms: int) -> pa.Table:
        """Clicks until `end_ms`, by time; later ones wait for the next call."""
        user, position = shown["user_id"].to_numpy(), shown["position"].to_numpy()
        chosen = np.flatnonzero(self._rng.random(len(shown)) < 0.02 + 0.1 * (user % 5 == 0) / (1 + position))
        clicks = shown.select(["request_id", "user_id", "ts"]).take(chosen)
        delay = self._rng.exponential(DELAY_MS, len(chosen)).astype(np.int64)
        clicks = clicks.set_column(2, "ts", pa.array(clicks["ts"].to_numpy() + delay))
        if self._waiting is not None:
            clicks = pa.concat_tables([self._waiting, clicks])
        clicks = clicks.sort_by("ts")
        due = clicks["ts"].to_numpy() < end_ms
        self._waiting = clicks.filter(pa.array(~due))
        return clicks.filter(pa.array(due))

    def _append(self, topic: str, table: pa.Table) -> None:
        """Let a whole file appear at once: a reader follows the folder."""
        path = self._folder / topic / f"0-{self._files:06}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        pq.write_table(table, hidden, row_group_size=GROUP_ROWS, compression="zstd", compression_level=1)
        hidden.rename(path)
