"""The 200 features of the benchmark, once, in a language that each contestant speaks.

80 are ids, buckets and numbers; 120 are strings, lists and crosses. A contestant implements `Language`; ours
passes on to `ingest.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

DAY_MS = 86_400_000


class Language(Protocol):
    """Features of a contestant. Terms know + - * / and >; nulls are 0, "" or an empty list."""

    def column(self, name: str, /) -> Any: ...
    def floor_divide(self, x: Any, by: int, /) -> Any: ...
    def bucketize(self, x: Any, bounds: Sequence[float], /) -> Any: ...
    def log1p(self, x: Any, /) -> Any: ...
    def normalise(self, x: Any, mean: float, std: float, /) -> Any: ...
    def clip(self, x: Any, lo: float | None, hi: float | None, /) -> Any: ...
    def where(self, condition: Any, a: Any, b: Any, /) -> Any: ...
    def hour(self, ts_ms: Any, /) -> Any: ...
    def weekday(self, ts_ms: Any, /) -> Any: ...
    def lower(self, text: Any, /) -> Any: ...
    def trim(self, text: Any, /) -> Any: ...
    def substring(self, text: Any, size: int, /) -> Any:
        """The first characters."""

    def contains(self, text: Any, part: str, /) -> Any: ...
    def head(self, items: Any, n: int, /) -> Any: ...
    def unique(self, items: Any, /) -> Any:
        """Each item once, where it is first."""

    def words(self, text: Any, /) -> Any:
        """Pieces between spaces; empty ones are left out."""

    def bigrams(self, words: Any, /) -> Any:
        """A value per pair of neighbours."""

    def trigrams(self, text: Any, /) -> Any:
        """A value per three neighbouring characters."""

    def length(self, x: Any, /) -> Any:
        """Items of a list, characters of a string."""

    def cross(self, *inputs: Any) -> Any:
        """A value per combination, the last input running fastest."""


def features(o: Language) -> tuple[dict[str, Any], dict[str, Any]]:
    """(sparse, dense): name → term."""
    c = {name: o.column(f"impressions.{name}") for name in _LOG}
    c |= {name: o.column(path) for name, path in _LOOKED_UP.items()}
    numbers = _numbers(o, c)
    ids: dict[str, Any] = {name: c[name] for name in _IDS}
    ids |= dict(hour=o.hour(c["ts"]), weekday=o.weekday(c["ts"]), recent_ads=o.head(c["recent_ads"], 6))
    ids |= {f"{name}_b": o.bucketize(numbers[name], bounds) for name, bounds in _BUCKETS.items()}
    texts = {name: c[name] for name in _TEXTS}
    texts["referrer"] = o.substring(c["referrer"], 24)
    texts |= dict(query=o.lower(o.trim(c["query"])), title=o.lower(c["title"]), name=o.lower(c["name"]))
    lists = {f"{name}_words": o.words(texts[name]) for name in ("query", "title", "name")}
    lists |= {f"{name}_bigrams": o.bigrams(lists[f"{name}_words"]) for name in ("query", "title", "name")}
    lists |= {f"{name}_trigrams": o.trigrams(texts[name]) for name in ("query", "site")}
    lists["tags"] = o.unique(c["tags"])
    known = {**ids, **texts, **lists}
    crosses = {"_x_".join(inputs): o.cross(*(known[name] for name in inputs)) for inputs in _crosses()}
    dense = _dense(o, numbers)
    dense |= {f"{name}_n": o.length(known[name]) for name in _LENGTHS}
    dense["title_has_an"] = o.contains(texts["title"], "an")
    return {**ids, **texts, **lists, **crosses}, dense


def _numbers(o: Language, c: dict[str, Any]) -> dict[str, Any]:
    """Terms that are bucketed, and terms that become dense."""
    columns = names(
        """
        age income price quality bid floor scroll dwell_ms depth seen_today clicked_today advertiser_budget
        campaign_budget rating page_words ctr position
        """
    )
    found = {name: c[name] for name in columns}
    found["area"] = c["width"] * c["height"]
    found["margin"] = c["bid"] - c["floor"]
    found["ad_days"] = o.floor_divide(c["ts"] - c["created"], DAY_MS)
    found["user_days"] = o.floor_divide(c["ts"] - c["registered"], DAY_MS)
    found["campaign_days"] = o.floor_divide(c["ts"] - c["started"], DAY_MS)
    found["dwell_s"] = o.floor_divide(o.clip(c["dwell_ms"], 0, 600_000), 1000)
    return found


def _dense(o: Language, n: dict[str, Any]) -> dict[str, Any]:
    """39 numbers: 14 logarithms, 15 normalised, 10 of arithmetic and choice."""
    logs = names(
        """
        income price bid floor dwell_ms advertiser_budget campaign_budget page_words area seen_today
        clicked_today depth dwell_s position
        """
    )
    found = {f"{name}_log": o.log1p(o.clip(n[name], 0, None)) for name in logs}
    found |= {f"{name}_z": o.normalise(n[name], mean, std) for name, (mean, std) in _MOMENTS.items()}
    return found | dict(
        age_known=o.where(n["age"] > 0, n["age"], 40),
        click_rate=o.clip(n["clicked_today"], 0, 5) / o.clip(n["seen_today"], 1, None),
        bid_per_price=n["bid"] / o.clip(n["price"], 1.0, None),
        margin_share=n["margin"] / o.clip(n["bid"], 0.125, None),
        quality_rating=n["quality"] * n["rating"],
        ctr_quality=n["ctr"] * n["quality"],
        scroll_per_depth=n["scroll"] / o.clip(n["depth"], 1, None),
        long_dwell=o.where(n["dwell_s"] > 30, 1, 0),
        bid_above=o.where(n["margin"] > 0, n["margin"], 0.0),
        spent_days=o.clip(n["campaign_days"], 0, 365) / 365,
    )


def names(text: str) -> list[str]:
    """Names between blanks."""
    return text.split()


def _crosses() -> list[tuple[str, ...]]:
    """92 crosses: 66 of scalars (8 of them of three, 4 of four), 22 of a list and scalars, 4 of two lists."""
    return [tuple(names(line)) for line in _CROSSES.strip().splitlines()]


_LOG = names(
    """
    user_id ad_id advertiser_id campaign_id page_id ts dwell_ms position width height depth seen_today
    clicked_today connection bid floor scroll mobile query title site referrer device os browser language
    recent_ads tags
    """
)
_LOOKED_UP = {
    **{name: f"users.{name}" for name in ("age", "gender", "interest", "city", "income", "registered")},
    **{name: f"ads.{name}" for name in ("category", "price", "quality", "name", "brand", "created")},
    **{name: f"advertisers.{name}" for name in ("industry", "country", "rating")},
    **{name: f"campaigns.{name}" for name in ("objective", "pricing", "started")},
    **{name: f"pages.{name}" for name in ("section", "topic", "ctr")},
    "advertiser_budget": "advertisers.budget",
    "campaign_budget": "campaigns.budget",
    "page_words": "pages.words",
}
_IDS = names(
    """
    user_id ad_id advertiser_id campaign_id page_id position connection mobile gender interest category
    industry objective pricing section width height
    """
)
_TEXTS = names("site referrer device os browser language city brand country topic")
_MONEY = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_UNIT = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
_DAYS = (1, 3, 7, 14, 30, 90, 180, 365)
_BUCKETS: dict[str, Sequence[float]] = dict(
    age=(18, 25, 35, 45, 55, 65), income=(5_000, 10_000, 20_000, 40_000, 80_000), price=_MONEY, quality=_UNIT,
    bid=_UNIT, floor=_UNIT, scroll=_UNIT, dwell_s=(1, 3, 10, 30, 60, 120, 300), depth=(2, 4, 8, 16, 32),
    seen_today=(1, 3, 10, 30), clicked_today=(1, 2, 4), advertiser_budget=_MONEY, campaign_budget=_MONEY,
    rating=_UNIT, page_words=(100, 300, 1_000, 3_000), ctr=_UNIT, area=(10_000, 50_000, 100_000, 300_000),
    margin=(-1, -0.25, 0, 0.25, 1), ad_days=_DAYS, user_days=_DAYS, campaign_days=_DAYS,
)  # fmt: skip
_MOMENTS = dict(
    age=(50, 22), income=(25_000, 18_000), price=(60, 200), quality=(0.5, 0.3), bid=(1.6, 2.2),
    scroll=(0.5, 0.3), depth=(10, 11), seen_today=(14, 16), advertiser_budget=(60, 200), rating=(0.5, 0.3),
    page_words=(2_500, 1_400), ctr=(0.5, 0.3), ad_days=(450, 260), user_days=(450, 260), margin=(1, 2),
)  # fmt: skip
_LENGTHS = names("query title query_words title_words name_words")
_CROSSES = """
age_b gender
age_b category
age_b interest
age_b hour
gender category
gender interest
gender hour
interest category
interest industry
interest section
hour weekday
hour category
position category
position mobile
width height
user_id category
user_id advertiser_id
user_id section
user_id hour
page_id ad_id
page_id category
campaign_id page_id
campaign_id hour
objective pricing
income_b price_b
price_b category
quality_b bid_b
dwell_s_b depth_b
user_days_b ad_days_b
city category
city hour
city brand
brand age_b
brand gender
country city
topic category
topic brand
topic interest
device os
os browser
device category
browser language
language country
site category
site ad_id
site advertiser_id
site device
referrer ad_id
referrer category
query ad_id
query category
title gender
title topic
name city
age_b gender category
age_b gender hour
city device category
site position category
interest topic brand
os browser language
user_id topic hour
query device city
age_b gender city category
hour weekday section category
device os browser language
interest topic category position
query_words category
query_words age_b
query_words gender
query_words city
query_words topic
query_words ad_id
query_words brand
query_words advertiser_id
title_words age_b
title_words interest
title_words user_id
name_words topic
name_words section
query_bigrams category
title_bigrams gender
tags category
tags interest
tags brand
tags hour
recent_ads ad_id
recent_ads category
query_words age_b gender
query_words title_words
query_words tags
tags recent_ads
query_words name_words
"""
