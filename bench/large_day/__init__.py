"""A day that fills two tables of 10 million rows each: publish, checkpoint, restart, new Redis.

log        writes the day, the first half at once, the rest as it is asked for
pipeline   what learns it
watch      the trainer's process, and its metrics over time
play       the day: growth, an afternoon, a kill, a new Redis
report     the rows of `livectr bench large-day`
"""


def run(quick: bool = False) -> dict[str, object]:
    """Result of `livectr bench large-day`."""
    from bench.large_day.play import FULL, QUICK, play
    from bench.large_day.report import report

    sizes = QUICK if quick else FULL
    return report(play(sizes), sizes, quick=quick)
