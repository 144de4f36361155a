"""One-pass learning beside other systems: each example is scored, then learned.

logs      four logs: ratings and fashion ads, which are real, the simulator's market, and planted examples
ours      our models of all defaults
peers     Vowpal Wabbit, river and LightGBM, in their own environment (peers.txt)
compare   the rows of `livectr bench learning`
"""


def run(quick: bool = False) -> dict[str, object]:
    """Rows of `livectr bench learning`."""
    from bench.learning.compare import measured

    return measured(quick)
