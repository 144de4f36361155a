"""LitServe: JSON over HTTP, the user's row by GET, ad rows in process, ONNX Runtime.

python -m bench.serving.peers.lit MODEL.npz REDIS_URL PORT
"""

from __future__ import annotations

import sys
from typing import Any, cast

import litserve
import numpy as np
import redis

from bench.serving.peers.network import Network, Ranked


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Scores and sorts the ads of a request."""

    def setup(self, device: str) -> None:
        file, url, _ = sys.argv[1:]
        self._network = Network(file)
        self._redis = redis.Redis.from_url(url)

    def predict(self, request: dict[str, Any]) -> Ranked:
        visit = request["context"]
        user = np.frombuffer(cast(bytes, self._redis.get(f"u{visit['user_id']}")), np.float32)
        return self._network.rank(visit, user, self._network.ads[np.array(request["ads"])], request["bids"])


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[3]), generate_client_file=False, log_level="error")
