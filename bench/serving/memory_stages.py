"""A supervisor of rank workers that becomes one step by step, for its private memory.

    python -m bench.serving.memory_stages PIPELINE

takes a step for each line of standard input, and prints it as JSON: the step's name, and MiB of private pages
by kind. Run two of them in step: pages of libraries that only one process maps would count as its own.
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


LAST_STEP = "pipeline"


def steps(pipeline_file: str) -> Iterator[str]:
    """Names of the steps, each when it is done."""
    for name, modules in STEPS.items():
        for module in modules:
            importlib.import_module(module)
        yield name
    from livectr.ingest.pipeline import load_pipeline
    from livectr.system.lean_pyarrow import keep_pandas_out

    keep_pandas_out()
    pipeline = load_pipeline(Path(pipeline_file))
    yield LAST_STEP
    del pipeline


def main() -> None:
    taken = steps(*sys.argv[1:])
    print("ready on stdin", flush=True)
    for _ in sys.stdin:
        name = next(taken, None)
        if name is None:
            break
        print(json.dumps({"step": name, "mib": private_mib()}), flush=True)


if __name__ == "__main__":
    main()
