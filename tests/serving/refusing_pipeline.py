"""Pipeline of a canary that refuses the requests of the stable side."""

from __future__ import annotations

from pathlib import Path

SWAP_PIPELINE = Path(__file__).with_name("swap_pipeline.py")


def refusing() -> str:
    """Pipeline file that takes other requests than the server's."""
    return SWAP_PIPELINE.read_text().replace('"ad_id": "int64"', '"ad_id": "string"')
