"""The funnel of bench.funnel: a cut by value keeps more of the best ads than one by clicks."""

from __future__ import annotations

from bench.funnel import ADS, CUTS, Market, kept


def test_a_cut_by_value_keeps_more_revenue() -> None:
    found = kept(1, 4_000, 10)
    assert list(found) == list(CUTS)
    assert found["value"] > found["true click probability"] > 0
    assert all(0 <= share <= 1 for share in found.values())


def test_the_log_has_the_clicks_of_the_truth() -> None:
    market = Market(2, 3_000)
    assert len(market.shown["ad"]) == len(market.shown["clicked"]) == 3_000 and len(market.bids) == ADS
    (_, chance), *_ = market.pages(1)
    assert chance.shape == (ADS,) and 0.02 < chance.mean() < market.shown["clicked"].mean() + 0.1 < 0.4
