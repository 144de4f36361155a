"""Mixed load on a server under trouble: what a day of production does to it, in ten minutes.

A trainer learns a live log and publishes about every two seconds. Two servers (`livectr serve recommend`)
answer Rank, PreRank and Recommend on 200 connections. One is killed and starts again, and Redis is restarted
without its data, so that the trainer publishes everything again. `livectr query verify` checks replies
meanwhile. The clients make calls again as those of users do: at most three times, within the deadline.

cast         processes, and what is done to them
clients      200 connections of one process; counts of replies by code
memory       resident memory of the servers

Rows: errors of codes that a client need not expect (0), replies that `livectr query verify` found to differ
(0), the servers' memory in the last tenth beside the second, requests, the median and 99th percentile.
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench mixed-load`."""
    from bench.mixed_load.cast import rows

    return rows(60.0 if quick else 600.0)
