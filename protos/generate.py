"""Generate the Python modules of `livectr.proto`: `python protos/generate.py`.

The modules are committed, so an installed LiveCTR needs no protoc. A test runs this script and compares.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def generate(out_dir: Path) -> None:
    """Write livectr/protos/livectr_pb2.py, livectr_pb2.pyi and livectr_pb2_grpc.py under `out_dir`.

    Raises:
        RuntimeError: protoc refuses the file and has printed the reason.
    """
    from grpc_tools import protoc  # type: ignore[import-untyped]  # a dependency of developers only

    include = resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--proto_path={include}",
            f"--python_out={out_dir}",
            f"--pyi_out={out_dir}",
            f"--grpc_python_out={out_dir}",
            "livectr/protos/livectr.proto",
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
