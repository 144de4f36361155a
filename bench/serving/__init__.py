"""Servers: latency with features, and beside what a user would write or install instead.

alone        rank and pre-rank with features, one client
swaps        rank while versions swap, beside quiet
catalogue    pre-rank of a million items
ids          the pipeline that the peers can compute, too; sizes: its fields
published    versions of random rows, in Redis for ours and for the peers
process      processes of servers
load         clients: one in turn, several at once
open_loop    the most requests a second whose p99 is within a limit
beside       the rows of the contest
in_process   ours without gRPC: bytes to bytes
threads      a worker with one thread and with two
fronts       the native front beside Python's server
memory       memory of one more worker, by stages
version_memory  memory of a served version
cpu          CPU seconds of processes
peers        what runs on their side, in environments of their own
profile      time of a request by stage beside the machine's limits (probes), and a flame graph
page         the tables of docs/serving.md

The rank request with images is that of `bench.images.request`.
"""


def run(quick: bool = False) -> dict[str, object]:
    """Rows of `livectr bench serving`."""
    from bench.images import request
    from bench.serving import alone, beside, catalogue, fronts, memory, swaps, version_memory

    parts = (alone, request, swaps, catalogue, version_memory, fronts)
    rows = [row for part in parts for row in part.rows(quick)]
    tables = []
    for more, of_part in (beside.result(quick), memory.result(quick)):
        rows += more
        tables += of_part
    return {"rows": rows, "tables": tables}
