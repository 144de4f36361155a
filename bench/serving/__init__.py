"""Servers: latency with features, and beside what a user would write or install instead.

alone        rank and pre-rank with features, one client
ids          the pipeline that the peers can compute, too
published    versions of random rows, in Redis for ours and for the peers
process      processes of servers
load         clients: one in turn, several at once
beside       the rows of the contest
peers        what runs on their side, in environments of their own
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench serving`."""
    from bench.serving import alone, beside

    return [*alone.rows(quick), *beside.rows(quick)]
