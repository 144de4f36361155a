"""Training beside other open systems, in the peers' environment (packages.txt).

workloads    P and W, and their batches
tables       FBGEMM's and TorchRec's embeddings, and DeepFM on top of them
ours         our side
contest      rank of a contest, in turns
compare      the rows of `livectr bench peers`
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench peers`."""
    from bench.peers.compare import rows

    return rows(quick)
