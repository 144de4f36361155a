"""Requests of the display pipeline, and their replies."""

from __future__ import annotations

import numpy as np

from livectr.client.clients import RankClient
from tests.serving.display_world import NOW_MS


def rank(client: RankClient) -> int:
    return len(client.rank({"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]}).pctr)


CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "Hello Wörld", "tags": ["x", "y"]}
ADS = list(range(100, 140))
POSITIONS = [i % 5 for i in range(40)]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def in_request_order(response: object) -> np.ndarray:
    """pctr by position in the request."""
    pctr = np.empty(len(response.index))  # type: ignore[attr-defined]
    pctr[list(response.index)] = list(response.pctr)  # type: ignore[attr-defined]
    return pctr
