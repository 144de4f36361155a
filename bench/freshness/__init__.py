"""Freshness under load: from an event to the first version that has learned it and is served.

The simulator writes impressions and clicks as JSON, an event a message, into a real broker; one trainer rank
learns and publishes, one rank server follows, all on this machine.

play      the processes, and a run at a rate
search    the largest rate that holds, by runs of its own
pipeline  what is learned

A rate holds when the 99th percentile is within the label window and 3 seconds, the trainer's lag does not
grow, and every impression is learned once. `--rate` events a second for `--seconds` are the run whose figures
are shown; the search starts from there.
"""


def run(quick: bool = False, rate: float | None = None, seconds: float | None = None) -> dict[str, object]:
    """Rows of `livectr bench freshness`, and its course over time.

    Args:
        quick: a small rate, a short run and a search of a step.
        rate: impressions and clicks a second; None: 50,000.
        seconds: of the run; None: 300.

    Raises:
        PartError: a process ended that should not.
    """
    from bench.freshness.play import play
    from bench.freshness.report import report
    from bench.freshness.search import largest

    rate = rate or (2_000.0 if quick else 50_000.0)
    seconds = seconds or (12.0 if quick else 300.0)
    found = play(rate, seconds)
    held = largest(rate, found.holds, seconds=8.0 if quick else 45.0, steps=1 if quick else 6)
    return report(found, held)
