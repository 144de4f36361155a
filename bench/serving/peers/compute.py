"""The network alone: vectors in process, ONNX Runtime, no server and no Redis.

    python -m bench.serving.peers.compute MODEL.npz

Reads requests as JSON lines; answers with the ranked ads and the milliseconds that it took: `ms` from ids to
ranked ads, `run_ms` of the session alone, whose arrays are ready.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from bench.serving.peers.network import Network

network = Network(sys.argv[1])
print("ready on stdin", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    started = time.perf_counter()
    visit = request["context"]
    ads = network.ads[np.array(request["ads"])]
    ranked = network.rank(visit, network.users[visit["user_id"]], ads, request["bids"])
    ms = (time.perf_counter() - started) * 1000
    arrays = network.arrays(visit, network.users[visit["user_id"]], ads)
    started = time.perf_counter()
    network.probabilities(arrays)
    run_ms = (time.perf_counter() - started) * 1000
    print(json.dumps({**ranked, "ms": ms, "run_ms": run_ms}), flush=True)
