"""Memory of a served version beyond its tables: what is freed when the version is replaced.

    python -m bench.serving.version_memory REDIS_URL ADS

follows versions as a server does. For each line it waits for as many more versions, has all ads ranked at
each, keeps the versions and the partial results of their items, and prints the MiB of its private pages. Rows
of tables are kept once for all versions.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from bench.rows import bounded
from bench.serving.alone import RANK_CANDIDATES, visit_of
from bench.serving.load import told
from bench.serving.pipeline import pipeline
from bench.serving.private_pages import private_mib
from bench.serving.process import talking
from livectr.client.clients import column_of
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.protos import livectr_pb2 as pb
from livectr.serving.calls import RequestCall
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.rank import Ranker
from livectr.system.heap import tune_malloc

GOAL_MIB = 30.0
WAIT_S = 60.0


def rows(quick: bool) -> list[dict[str, object]]:
    """MiB of a version, the mean of some."""
    versions, users, ads = (2, 500, 2_000) if quick else (5, 2_000, 20_000)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        swaps = [sys.executable, "-m", "bench.serving.swaps", url, str(users), str(ads)]
        keeps = [sys.executable, "-m", "bench.serving.version_memory", url, str(ads)]
        with talking(swaps) as publisher, talking(keeps) as server_like:
            assert publisher.stdin is not None
            first = told(server_like, "0")
            publisher.stdin.write(f"{versions}\n")
            publisher.stdin.flush()
            last = told(server_like, str(versions))
    workload = f"rank, {len(pipeline.fields)} fields, DeepFM 256-128, partial results of {ads:,} ads"
    mib = (last - first) / versions
    return [bounded("memory of a version beyond its tables", workload, "MiB", mib, goal=GOAL_MIB)]


def main() -> None:
    torch.set_num_threads(1)
    tune_malloc()
    url, ads = sys.argv[1], int(sys.argv[2])
    follower = version_follower("rank", pipeline, ServeOptions(url))
    follower.start()
    assert follower.wait_ready(WAIT_S)
    ranker = Ranker(pipeline, follower, ServeOptions(url))
    rng, kept = np.random.default_rng(0), []

    def rank_all() -> None:
        """Rank every ad at the served version, and keep what it has."""
        for first in range(0, ads, RANK_CANDIDATES):
            visit = {**visit_of(0, rng), "position": 1}
            chosen = list(range(first, min(first + RANK_CANDIDATES, ads)))
            message = pb.RankRequest(
                context=[column_of(name, [value]) for name, value in visit.items()],
                candidates=[column_of("ad_id", chosen)],
            )
            request = ranker.schema.reader.read(message.SerializeToString())
            ranker.rank(request, RequestCall("rank")).serialized()
        version, cache = follower.served()
        assert ranker._items is not None
        kept.append((version, ranker._items.partials(VersionLookup(version, cache, follower.reader))))

    rank_all()
    print("ready on stdin", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            follower.wait_newer(kept[-1][0].number, None)
            rank_all()
        print(json.dumps(sum(private_mib().values())), flush=True)
    follower.close()


if __name__ == "__main__":
    main()
