"""A user's own server: Python gRPC, rows by MGET, ONNX Runtime.

    python -m bench.serving.peers.lines MODEL.npz REDIS_URL PORT redis|process

It answers our RankRequest, so that the client is the same. Ad rows come from Redis, or from memory
("process"). Several processes may share the port.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
import numpy as np
import redis

from bench.serving.peers.network import FLOATS, Network
from livectr.protos import livectr_pb2 as pb
from livectr.protos import livectr_pb2_grpc as rpc


class Servicer(rpc.RankServicer):
    """Scores and sorts the ads of a request."""

    def __init__(self, file: str, url: str, ads: str) -> None:
        self._network = Network(file)
        self._in_process = ads == "process"
        self._redis = redis.Redis.from_url(url)

    def Rank(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        visit = {column.name: column.ints.values[0] for column in request.context}
        ids = request.candidates[0].ints.values
        keys = [f"u{visit['user_id']}", *(() if self._in_process else (f"a{ad}" for ad in ids))]
        user, *rows = (np.frombuffer(cast(bytes, row), np.float32) for row in self._redis.mget(keys))
        ads = self._network.ads[np.array(ids)] if self._in_process else np.stack(rows)
        ranked = self._network.rank(visit, user, ads.reshape(len(ids), -1, FLOATS), request.bids)
        return pb.RankResponse(request_id=request.request_id, **ranked)


def main() -> None:
    file, url, port, ads = sys.argv[1:]
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_RankServicer_to_server(Servicer(file, url, ads), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print(f"ready on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
