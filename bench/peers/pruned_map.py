"""Look-ups and inserts beside FBGEMM's PrunedMap, in turns in one process: runs in the peers' python.

PrunedMapCPU maps ids of 32 bits to row numbers and keeps no rows; ours takes keys of 64 bits, and "insert"
also makes the rows' initial values and optimiser state. Both insert the same ids into an empty map in one
call, and find all of them in another order, each with its default threads.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fbgemm_gpu  # noqa: F401  (registers the class)
import numpy as np
import torch

from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

LAYOUT = RowLayout((Segment("v", 16, AdaGrad(), 0.01),))


def measure(count: int, rounds: int) -> dict[str, dict[str, float]]:
    """figure → who → median Mkeys/s, for `count` random keys."""
    rng = np.random.default_rng(0)
    known = np.unique(rng.integers(0, 2**31 - 1, count))
    rng.shuffle(known)
    requested = rng.permutation(known)
    count = len(known)
    keys, wanted = torch.from_numpy(known).int(), torch.from_numpy(requested).int()
    numbers, offsets = torch.arange(count).int(), torch.tensor([0, count]).int()
    seconds: dict[str, dict[str, list[float]]] = {f: {"ours": [], "peer": []} for f in ("insert", "find")}

    def timed(figure: str, who: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        seconds[figure][who].append(time.perf_counter() - start)
        return result

    for _ in range(rounds + 1):
        table = DynamicTable(LAYOUT, name="bench", seed=1)
        rows = timed("insert", "ours", partial(table.find_or_insert, known))
        peer = torch.classes.fbgemm.PrunedMapCPU()
        timed("insert", "peer", partial(peer.insert, keys, numbers, offsets, 1))
        found = timed("find", "ours", partial(table.find, requested))
        reported = timed("find", "peer", partial(peer.lookup, wanted, offsets))
        if not np.array_equal(rows[reported.numpy()], found):
            raise RuntimeError("the two maps do not agree")
    return {
        figure: {who: count / statistics.median(spent[1:]) / 1e6 for who, spent in sides.items()}
        for figure, sides in seconds.items()
    }


def main() -> None:
    """`OUT [--quick]`: writes `measure`'s result."""
    quick = "--quick" in sys.argv
    found = measure(200_000 if quick else 1_000_000, 3 if quick else 7)
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
