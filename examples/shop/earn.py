"""Compare what pages earn by the simulated truth: the four best of ten ads by clicks, and by value.

    python examples/shop/earn.py CHECKPOINT [IMPRESSIONS]

Pages are those of the time at which the logs of `simulate.py` end, of as many impressions.
"""

import sys
from pathlib import Path

import numpy as np
from pipeline import COMMISSION, pipeline
from simulate import ADS, EVERY_MS, IMPRESSIONS, SEEN, START_MS, USERS, Shop

import livectr

CANDIDATES = 10


def compare(checkpoint: Path, impressions: int) -> None:
    """Print a line for each order.

    Args:
        checkpoint: of the pipeline.
        impressions: of the logs that it has learned.
    """
    shop = Shop(np.random.default_rng(1))
    rng = np.random.default_rng(2)
    pages = np.array([rng.choice(ADS, CANDIDATES, replace=False) for _ in range(USERS)])
    ad, user = pages.ravel(), np.repeat(np.arange(USERS), CANDIDATES)
    now = START_MS + EVERY_MS * impressions
    rows = [{"user_id": u, "ad_id": a, "ts": now} for u, a in zip(user.tolist(), ad.tolist(), strict=True)]
    tables = {"ads": shop.table}
    clicks = shop.click(user, ad, np.full(len(ad), now))
    earned = clicks * (shop.bids[ad] + COMMISSION * shop.amount(ad) * shop.order(ad))
    pctr = livectr.score(pipeline, checkpoint, rows, tables=tables)
    p_order = livectr.score(pipeline, checkpoint, rows, tables=tables, target="order")
    orders = {
        "click probability": pctr,
        "value at list price": shop.bids[ad] * pctr + COMMISSION * shop.prices[ad] * p_order,
        "value": livectr.score(pipeline, checkpoint, rows, tables=tables, value=True),
        "true value": earned,
    }
    for name, scores in orders.items():
        best = np.argsort(-scores.reshape(pages.shape), axis=1)[:, : len(SEEN)]
        of_pages = [np.take_along_axis(each.reshape(pages.shape), best, axis=1) for each in (clicks, earned)]
        clicked, got = ((1000 * each @ SEEN).mean() for each in of_pages)
        print(f"by {name}: 1,000 pages have {clicked:,.0f} clicks and earn {got:,.0f}")


def main() -> None:
    """Compare by the checkpoint that the command line names."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/shop/earn.py CHECKPOINT [IMPRESSIONS]")
    compare(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else IMPRESSIONS)


if __name__ == "__main__":
    main()
