"""Ask a rank server for the impressions of a log, as the ad server that showed them would have asked.

    python examples/replay_requests.py HOST:PORT LOGS [--requests 1000]

LOGS is a folder of `livectr logs simulate`. Each request has the id of its impression, the impression's
columns as context, and as candidates the ad that was shown and some others.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from livectr import RankClient

CANDIDATES = 20


def impressions(logs: Path) -> Iterator[dict[str, Any]]:
    """Impressions of a log, without the broken ones that the simulator adds."""
    for path in sorted((logs / "impressions").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("ts"), int):
                yield row


def main() -> None:
    """Send the requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", metavar="HOST:PORT")
    parser.add_argument("logs", metavar="LOGS", type=Path)
    parser.add_argument("--requests", type=int, default=1000, help="number of requests [1000]")
    given = parser.parse_args()
    rows = list(impressions(given.logs))
    ads = sorted({row["ad_id"] for row in rows})
    with RankClient(given.server) as client:
        for row in rows[: given.requests]:
            others = random.sample(ads, min(CANDIDATES - 1, len(ads)))
            # A server refuses a missing column; the trainer reads null as "".
            context = {name: "" if value is None else value for name, value in row.items()}
            del context["request_id"], context["ad_id"]
            candidates = {"ad_id": [row["ad_id"], *(ad for ad in others if ad != row["ad_id"])]}
            client.rank(context, candidates, request_id=str(row["request_id"]))
    print(f"{min(given.requests, len(rows)):,} requests answered")


if __name__ == "__main__":
    main()
