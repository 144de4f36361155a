"""Auction of the places of a page: a generalized second price for each click (Edelman et al. 2007, §I).

value of an ad     v = bid · pCTR, by which ads are ranked
price of a click   p_s = v_{s+1} / pCTR_s, at most the bid: what keeps place s from the ad below
"""

from __future__ import annotations

import numpy as np

from livectr.simulator.truth import F64, I64


def second_prices(bids: F64, pctr: F64, places: int) -> F64:
    """Prices of a click on the first `places` ads, f64[places].

    Args:
        bids: f64[n] of the ads, best value first; n ≥ places.
        pctr: f64[n] in (0, 1], as predicted.
        places: of the page.
    """
    values = bids * pctr
    below = np.append(values[1 : places + 1], 0.0)[:places]  # the last of all ads has nobody below
    return np.minimum(below / pctr[:places], bids[:places])


def best_welfare(bids: F64, probability: F64) -> tuple[I64, float]:
    """Ads that an oracle shows, i64[places], and Σ bid · P(click) of them.

    It fills the places from the first one on. That is the best assignment where each place multiplies the
    odds of all ads alike, up to the small curvature of P in its odds.

    Args:
        bids: f64[n].
        probability: f64[n, places], true P(click) of an ad at a place; places ≤ n.
    """
    values = bids[:, None] * probability
    taken = np.zeros(len(bids), np.bool_)
    chosen, welfare = [], 0.0
    for place in range(values.shape[1]):
        best = int(np.argmax(np.where(taken, -np.inf, values[:, place])))
        taken[best] = True
        chosen.append(best)
        welfare += float(values[best, place])
    return np.array(chosen, np.int64), welfare
