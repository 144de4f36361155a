"""Logs of the display pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.display_world import NOW_MS, World


def write_logs(root: Path, world: World, impressions: int) -> dict[int, list[int]]:
    """Write a folder of JSON lines for each topic; return each user's clicked ads, oldest first."""
    rng = np.random.default_rng(4)
    shown, clicked = [], []
    clicks: dict[int, list[int]] = {}
    for i in range(impressions):
        user, ad = int(rng.choice(list(world.users))), int(rng.choice(list(world.ads)))
        event: dict[str, Any] = {"request_id": f"r{i}", "user_id": user, "ad_id": ad, "ts": NOW_MS + i * 1000}
        words = " ".join(rng.choice(["Blue", "shoe", "ÖL"], 2))
        shown.append({**event, "position": int(rng.integers(5)), "query": words, "tags": ["x"] * (i % 3)})
        if rng.random() < 0.3:
            clicked.append({**event, "ts": event["ts"] + 500})
            clicks.setdefault(user, []).append(ad)
    tables = {
        "users": [dict(zip(("user_id", "age", "city"), row, strict=True)) for row in world.users.values()],
        "ads": [dict(zip(("ad_id", "category", "price"), row, strict=True)) for row in world.ads.values()],
    }
    for topic, events in {"impressions": shown, "clicks": clicked, **tables}.items():
        (root / topic).mkdir(parents=True)
        (root / topic / "00000.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return clicks
