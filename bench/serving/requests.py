"""Requests of the contest: ids by Zipf's law, the same for every contestant."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace

import numpy as np

from bench.serving.sizes import AD, USER, VISIT
from bench.zipf import zipf
from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb

CANDIDATES = 400
EXPONENT = 1.05
WARM_UPS = 10


@dataclass(frozen=True)
class Request:
    """A user's visit and the ads that may be shown, with their bids."""

    context: dict[str, int]
    ads: list[int]
    bids: list[float]

    def message(self) -> pb.RankRequest:
        """As our RankRequest."""
        columns = {**self.context, "ts": 1_700_000_000_000}
        return pb.RankRequest(
            context=[column_of(name, [value], "int64") for name, value in columns.items()],
            candidates=[column_of("ad_id", self.ads, "int64")],
            bids=self.bids,
        )

    def json(self) -> bytes:
        """As a JSON line."""
        return json.dumps({"context": self.context, "ads": self.ads, "bids": self.bids}).encode()


def warm_up() -> list[Request]:
    """Requests that ask for every ad WARM_UPS times, and for every value of a visit."""
    drawn = requests(WARM_UPS * AD["ad_id"] // CANDIDATES, seed=1)
    ads = itertools.cycle(range(AD["ad_id"]))
    visits = [{n: (i + k) % size for k, (n, size) in enumerate(VISIT.items())} for i in range(len(drawn))]
    return [
        replace(r, context=r.context | visit, ads=list(itertools.islice(ads, CANDIDATES)))
        for r, visit in zip(drawn, visits, strict=True)
    ]


def requests(count: int, seed: int = 0) -> list[Request]:
    """Draw requests of CANDIDATES different ads."""
    rng = np.random.default_rng(seed)
    users, ads = (zipf(fields[key], EXPONENT) for fields, key in ((USER, "user_id"), (AD, "ad_id")))
    weight = np.diff(ads, prepend=0.0)
    drawn = []
    for _ in range(count):
        user = int(np.searchsorted(users, rng.random()))
        context = {"user_id": user, **{name: int(rng.integers(size)) for name, size in VISIT.items()}}
        chosen = rng.choice(len(weight), CANDIDATES, replace=False, p=weight / weight.sum())
        drawn.append(Request(context, chosen.tolist(), rng.random(CANDIDATES).tolist()))
    return drawn
