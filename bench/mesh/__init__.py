"""A mesh parameter server, the baseline of the DES paper (§3.2.3, §6; DiFacto, Li et al., WSDM 2016).

Every rank is a worker with examples of its own, and a server with a share of the keys. A worker asks the
servers for the rows of its batch's unique keys, computes the whole model, and sends gradients back.

shard            a server's share of rows, and the network's parameters
worker           the whole model on a rank's own examples
synchronous      all ranks step together, over Gloo: equal to one process
asynchronous     no rank waits for another, over torch's RPC: weights are stale
contest          one rank of a contest beside ours
compare          the rows of `livectr bench mesh`
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench mesh`."""
    from bench.mesh.compare import rows

    return rows(quick)
