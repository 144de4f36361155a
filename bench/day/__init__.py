"""Memory over an emulated day: users and ads that come and go, with expiry on.

log        writes the day: impressions, clicks, the ads with their changes of price
pipeline   what learns it
compare    the rows of `livectr bench day`
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench day`."""
    from bench.day.compare import rows

    return rows(quick)
