"""A rank worker that becomes one step by step, for its private memory.

    python -m bench.serving.memory_stages PIPELINE REDIS_URL

takes a step for each line of standard input, and prints it as JSON: the step's name, MiB of private pages by
kind, and for the last step the server's address. Run two of them in step: pages of libraries that only one
process maps would count as its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.serving.private_pages import private_mib

STEPS = {
    "Python": (),
    "NumPy, PyArrow": ("numpy", "pyarrow"),
    "PyTorch": ("torch",),
    "gRPC, Redis, Prometheus": ("grpc", "google.protobuf", "redis", "prometheus_client"),
    "LiveCTR's modules": ("livectr.serving.app",),
}
"""Step → modules."""


def steps(pipeline_file: str, url: str) -> Iterator[tuple[str, str]]:
    """Names of the steps, each when it is done, and the server's address."""
    for name, modules in STEPS.items():
        for module in modules:
            importlib.import_module(module)
        yield name, ""
    import torch

    from livectr.ingest.pipeline import load_pipeline
    from livectr.kernels.process.heap import tune_malloc
    from livectr.kernels.process.lean_pyarrow import keep_pandas_out
    from livectr.serving.app import App
    from livectr.serving.options import ServeOptions

    torch.set_num_threads(1)
    tune_malloc()
    keep_pandas_out()
    pipeline = load_pipeline(Path(pipeline_file))
    app = App("rank", pipeline, ServeOptions(url, "127.0.0.1:0"))
    yield "pipeline, compiled features", ""
    app.start()
    try:
        if not app.wait_ready(60.0):
            raise RuntimeError("no version is published")
        yield "first version", app.server.address
        yield "requests", ""
    finally:
        app.stop()


def main() -> None:
    taken = steps(*sys.argv[1:])
    print("ready on stdin", flush=True)
    for _ in sys.stdin:
        try:
            name, address = next(taken)
        except StopIteration:
            break
        print(json.dumps({"step": name, "mib": private_mib(), "address": address}), flush=True)


if __name__ == "__main__":
    main()
