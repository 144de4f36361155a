"""BentoML: JSON over HTTP, the user's row by GET, ad rows in process, ONNX Runtime.

MODEL=model.npz REDIS=redis://… python -m bentoml serve bench.serving.peers.bento:Ranker --port PORT
"""

from __future__ import annotations

import os
from typing import Any, cast

import bentoml
import numpy as np
import redis

from bench.serving.peers.network import Network


@bentoml.service(workers=1)
class Ranker:
    """Scores and sorts the ads of a request."""

    def __init__(self) -> None:
        self._network = Network(os.environ["MODEL"])
        self._redis = redis.Redis.from_url(os.environ["REDIS"])

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, context: dict[str, Any], ads: list[int], bids: list[float]) -> dict[str, Any]:
        user = np.frombuffer(cast(bytes, self._redis.get(f"u{context['user_id']}")), np.float32)
        return dict(self._network.rank(context, user, self._network.ads[np.array(ads)], bids))
