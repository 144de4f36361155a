"""Write a shop's logs with known probabilities: impressions, clicks, carts, orders, and the table of ads.

    python examples/shop/simulate.py DIR [IMPRESSIONS]

The same number of impressions gives the same logs.
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ADS, USERS, IMPRESSIONS, START_MS = 40, 500, 20_000, 1_760_000_000_000
EVERY_MS = 500  # event time from one impression to the next
SEEN = np.array([1.0, 0.7, 0.5, 0.35])
CATEGORIES = ("books", "fashion", "games", "garden")
SWING, SWING_MS = 1.0, 7_200_000
SPREAD = 0.4  # deviation of the logarithm of an order's amount
Rows = list[dict[str, int | float | str]]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def sigmoid(log_odds: F64) -> F64:
    """Probabilities of log odds, of the same shape."""
    return np.asarray(1 / (1 + np.exp(-log_odds)))


class Shop:
    """Truth of the simulated shop.

    An ad has log odds of a click, which swing within two hours, and of an order after a click. An order
    amounts to the price times what a basket holds, which is lognormal around a mean of the ad. A user likes
    ads more or less. A place lower on the page is seen less: the probability of a click is that at the top
    times `SEEN`.

    Args:
        rng: draws the ads and the users.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._click, self._order = rng.normal(-1.2, 0.8, ADS), rng.normal(-1.5, 0.8, ADS)
        self.bids, self.prices = rng.uniform(0.1, 1.0, ADS).round(2), rng.lognormal(3.3, 0.8, ADS).round(2)
        self._taste, self._phase = rng.normal(0, 0.4, USERS), rng.uniform(0, 2 * np.pi, ADS)
        self._basket = np.random.default_rng(3).normal(0.3, 0.6, ADS)

    def click(self, user: I64, ad: I64, ts: I64) -> F64:
        """Probabilities f64[n] of a click at the top of the page, at event times in ms."""
        swing = SWING * np.sin(2 * np.pi * (ts % SWING_MS) / SWING_MS + self._phase[ad])
        return sigmoid(self._click[ad] + swing + self._taste[user])

    def cart(self, ad: I64) -> F64:
        """Probabilities f64[n] of a cart after a click."""
        return sigmoid(self._order[ad] + 1)

    def order(self, ad: I64) -> F64:
        """Probabilities f64[n] of an order after a click."""
        return sigmoid(self._order[ad])

    def amount(self, ad: I64) -> F64:
        """Expected amounts f64[n] of orders."""
        return np.asarray(self.prices[ad] * np.exp(self._basket[ad] + SPREAD**2 / 2))

    @property
    def table(self) -> Rows:
        """Rows of the table of ads."""
        worths = zip(self.bids.tolist(), self.prices.tolist(), strict=True)
        return [
            {"ad_id": i, "category": CATEGORIES[i % 4], "bid": bid, "price": price}
            for i, (bid, price) in enumerate(worths)
        ]


def write(root: Path, topic: str, rows: Rows) -> None:
    """Write a topic as JSON lines, in one partition."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    (root / topic / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{topic}: {len(rows):,} rows")


def simulate(root: Path, impressions: int) -> None:
    """Write all topics to a folder.

    Args:
        root: folder of the topics.
        impressions: number of impressions.
    """
    rng = np.random.default_rng(1)
    shop = Shop(rng)
    user, ad = rng.integers(0, USERS, impressions), rng.integers(0, ADS, impressions)
    place = rng.integers(0, len(SEEN), impressions)
    ts = START_MS + EVERY_MS * np.arange(impressions)
    clicked = rng.random(impressions) < SEEN[place] * shop.click(user, ad, ts)
    carted = clicked & (rng.random(impressions) < shop.cart(ad))
    ordered = clicked & (rng.random(impressions) < shop.order(ad))
    noise = np.random.default_rng(4).normal(0, SPREAD, impressions)
    amount = (shop.amount(ad) * np.exp(noise - SPREAD**2 / 2)).round(2)

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
        if topic == "orders":
            events = [{**row, "amount": float(amount[int(row["request_id"])])} for row in events]
        write(root, topic, sorted(events, key=lambda row: row["ts"]))
    write(root, "ads", shop.table)


def main() -> None:
    """Write the logs to the folder that the command line names."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/shop/simulate.py DIR [IMPRESSIONS]")
    simulate(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else IMPRESSIONS)


if __name__ == "__main__":
    main()
