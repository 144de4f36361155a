"""Training over wires of 0.5 to 10 Gbit/s, in network namespaces of this machine; needs root.

namespaces   namespaces, veth pairs to a bridge, and their limits
launch       a torchrun in each namespace
measure      steps of all contestants at every bandwidth, in turns
contest      rank of a contest: ours with every exchange, TorchRec's DMP, the mesh in step
predict      seconds against bandwidth, and crossing points
compare      contests, rows, goals and tables of `livectr bench network`
page         the section and the picture of docs/scaling.md
"""

from typing import Any


def run(quick: bool = False) -> dict[str, Any]:
    """Rows and tables of `livectr bench network`."""
    from bench.network.compare import run_contests

    return run_contests(quick)
