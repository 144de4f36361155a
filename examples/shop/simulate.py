"""Write a shop's logs with known probabilities: impressions, clicks, carts, orders, and the table of ads.

    python examples/shop/simulate.py DIR [IMPRESSIONS]

An ad has log odds of a click, and of an order after a click. A place lower on the page is seen less: the
probability of a click is that at the top times `SEEN`. The same number of impressions gives the same logs.
"""

import json
import sys
from pathlib import Path

import numpy as np

ADS, USERS, START_MS = 40, 500, 1_760_000_000_000
SEEN = np.array([1.0, 0.7, 0.5, 0.35])
CATEGORIES = ("books", "fashion", "games", "garden")
Rows = list[dict[str, int | float | str]]


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """Probabilities of log odds, of the same shape."""
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def write(root: Path, topic: str, rows: Rows) -> None:
    """Write a topic as JSON lines, in one partition."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    (root / topic / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{topic}: {len(rows):,} rows")


def simulate(root: Path, impressions: int) -> None:
    """Write all topics to a folder.

    Args:
        root: folder of the topics.
        impressions: number of impressions, one each 500 ms of event time.
    """
    rng = np.random.default_rng(1)
    click_odds, order_odds = rng.normal(-1.2, 0.8, ADS), rng.normal(-1.5, 0.8, ADS)
    bids, prices = rng.uniform(0.1, 1.0, ADS).round(2), rng.lognormal(3.3, 0.8, ADS).round(2)
    user, ad = rng.integers(0, USERS, impressions), rng.integers(0, ADS, impressions)
    place = rng.integers(0, len(SEEN), impressions)
    taste = rng.normal(0, 0.4, USERS)
    ts = START_MS + 500 * np.arange(impressions)
    clicked = rng.random(impressions) < SEEN[place] * sigmoid(click_odds[ad] + taste[user])
    carted = clicked & (rng.random(impressions) < sigmoid(order_odds[ad] + 1))
    ordered = clicked & (rng.random(impressions) < sigmoid(order_odds[ad]))

    def event(i: int, delay_ms: int = 0) -> dict[str, int | float | str]:
        return {"request_id": i, "user_id": int(user[i]), "ts": int(ts[i]) + delay_ms}

    shown = [{**event(i), "ad_id": int(ad[i]), "position": int(place[i]) + 1} for i in range(impressions)]
    write(root, "impressions", shown)
    for topic, came, most_ms in (
        ("clicks", clicked, 300_000),
        ("carts", carted, 1_200_000),
        ("orders", ordered, 6_000_000),
    ):
        delay = rng.integers(1, most_ms, impressions)
        events = [event(i, int(delay[i])) for i in np.flatnonzero(came).tolist()]
        write(root, topic, sorted(events, key=lambda row: row["ts"]))
    table: Rows = [
        {"ad_id": i, "category": CATEGORIES[i % 4], "bid": float(bids[i]), "price": float(prices[i])}
        for i in range(ADS)
    ]
    write(root, "ads", table)


def main() -> None:
    """Write the logs to the folder that the command line names."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/shop/simulate.py DIR [IMPRESSIONS]")
    simulate(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 20_000)


if __name__ == "__main__":
    main()
