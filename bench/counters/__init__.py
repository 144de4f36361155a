"""Counters: what they cost, whether DuckDB counts the same, and what they are worth where popularity drifts.

log          a log whose ads' click rates drift
speed        updates a second and bytes of a key
agreement    windows beside those of DuckDB over the finished log (duckdb_peer, in its own environment)
worth        AUC with counters, beside embeddings alone
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench counters`."""
    from bench.counters import agreement, speed, worth

    return [*speed.rows(quick), *agreement.rows(quick), *worth.rows(quick)]
