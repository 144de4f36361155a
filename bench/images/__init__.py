"""Images in training and serving: bytes as in DICM's Table 2, time of a step, of a request, of a sweep.

workload, store   examples and image features, made up
baselines         store-in-worker and store-in-server (DICM §7.3), on our own step
table_2           bytes stored and sent by them and by ours, as the paper's Table 2
step_time         a training step with images, and without
scaling           cost of a sample on 1, 2 and 4 ranks, and Table 1's model
request           a rank request with images, and without
sweep             vectors of all images, against the limit by FLOPs and by memory
"""


def run(quick: bool = False) -> dict[str, object]:
    """Rows and tables of `livectr bench images`."""
    from bench.images.compare import result

    return result(quick)
