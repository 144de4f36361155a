"""Logs of the pipeline with images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.content_world import ADS, NOW_MS, USERS


def write_logs(root: Path, impressions: int) -> dict[int, list[int]]:
    """Write a folder of JSON lines for each topic; return each user's clicked images, oldest first."""
    rng = np.random.default_rng(4)
    shown, clicked = [], []
    clicks: dict[int, list[int]] = {}
    for i in range(impressions):
        user, ad = int(rng.choice(USERS)), int(rng.choice(ADS))
        event: dict[str, Any] = {"request_id": f"r{i}", "user_id": user, "ad_id": ad, "ts": NOW_MS + i * 1000}
        shown.append(event)
        if rng.random() < 0.3:
            clicked.append({**event, "ts": event["ts"] + 500, "image_id": ad + 5000})
            clicks.setdefault(user, []).append(ad + 5000)
    ads = [{"ad_id": ad, "image_id": ad + 5000, "category": f"cat{ad % 4}"} for ad in ADS]
    for topic, events in {"impressions": shown, "clicks": clicked, "ads": ads}.items():
        (root / topic).mkdir(parents=True)
        (root / topic / "00000.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return clicks
