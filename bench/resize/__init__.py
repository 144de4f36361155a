"""Resize of a trainer under traffic: from SIGTERM until a version of the new ranks is served.

A producer writes impressions and clicks into a real broker, a client asks a rank server all the time, and the
trainer goes from one rank to three, to two and back to one. It commits and ends when it is told to stop, and
`livectr train` with another `--ranks` resumes from its checkpoint, as pods do. Tables have a million rows.

log       what is written
pipeline  what is learned
play      the processes, the resizes and their times
"""


def run(quick: bool = False) -> dict[str, object]:
    """Rows of `livectr bench resize`, and the course of each resize.

    Raises:
        PartError: a process ended that should not.
    """
    from bench.resize.play import play, report

    return report(play(20_000 if quick else 1_000_000))
