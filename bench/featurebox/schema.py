"""The display-ads view of the benchmark: a log of 30 columns (8 strings, 2 lists) and 5 tables.

Plain Python, so that the peers' environments can import it too.
"""

from collections.abc import Mapping
from typing import Final

LOG: Final = "impressions"
LABEL: Final = "click"

LOG_COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("request_id", "user_id", "ad_id", "advertiser_id", "campaign_id", "page_id"), "int64"),
    **dict.fromkeys(("ts", "dwell_ms"), "int64"),
    **dict.fromkeys(("position", "width", "height", "depth", "seen_today", "clicked_today"), "int32"),
    **dict.fromkeys(("connection", LABEL), "int32"),
    **dict.fromkeys(("bid", "floor", "scroll"), "float32"),
    "mobile": "bool",
    **dict.fromkeys(("query", "title", "site", "referrer"), "string"),
    **dict.fromkeys(("device", "os", "browser", "language"), "string"),
    "recent_ads": "list<int64>",
    "tags": "list<string>",
}

TABLES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "users": (
        "user_id",
        {
            "user_id": "int64",
            **dict.fromkeys(("age", "gender", "interest"), "int32"),
            "city": "string",
            "income": "float32",
            "registered": "int64",
        },
    ),
    "ads": (
        "ad_id",
        {
            "ad_id": "int64",
            "category": "int32",
            "price": "float32",
            "quality": "float32",
            "name": "string",
            "brand": "string",
            "created": "int64",
        },
    ),
    "advertisers": (
        "advertiser_id",
        {
            "advertiser_id": "int64",
            "industry": "int32",
            "country": "string",
            "budget": "float32",
            "rating": "float32",
        },
    ),
    "campaigns": (
        "campaign_id",
        {
            "campaign_id": "int64",
            "objective": "int32",
            "pricing": "int32",
            "budget": "float32",
            "started": "int64",
        },
    ),
    "pages": (
        "page_id",
        {"page_id": "int64", "section": "int32", "topic": "string", "words": "int32", "ctr": "float32"},
    ),
}
"""Table → (key, column → type). A log's row knows each table by the column that is named like its key."""


def files(folder: str, table: str) -> str:
    """The Parquet files of the log or a table."""
    return f"{folder}/{table}/*.parquet"
