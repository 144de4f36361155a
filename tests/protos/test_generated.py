"""The committed wire modules equal the output of protoc for livectr.proto."""

from __future__ import annotations

from pathlib import Path

from livectr.protos import generate

ROOT = Path(generate.__file__).resolve().parent


def test_modules_are_up_to_date(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    for name in ("livectr_pb2.py", "livectr_pb2.pyi", "livectr_pb2_grpc.py"):
        fresh = (tmp_path / "livectr" / "protos" / name).read_text()
        assert fresh == (ROOT / name).read_text(), f"protos/{name} is stale: run `python protos/generate.py`"
