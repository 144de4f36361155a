"""Modules that a server does not need are not in its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from livectr.local.parts import descendants
from livectr.local.ports import free_ports
from livectr.system.children import with_parent

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "examples" / "display_ads" / "pipeline.py"
UNNEEDED = ("matplotlib", "sympy", "torch._dynamo", "torch._inductor", "kafka", "livectr.trainer")
IMPORTS = """
import sys
from livectr.ingest.pipeline import load_pipeline
from livectr.serving.app import App
from livectr.serving.options import ServeOptions

App("rank", load_pipeline(sys.argv[1]), ServeOptions("redis://127.0.0.1:1", "127.0.0.1:0"))
print(*sys.modules)
"""
CONVERTS = """
from livectr.system.lean_pyarrow import keep_pandas_out
keep_pandas_out()
import pandas as pd
import pyarrow as pa
frame = pd.DataFrame({"x": [1.0, None], "name": ["a", "b"]})
table = pa.Table.from_pandas(frame)
assert table.column("x").null_count == 1
assert table.to_pandas().equals(frame)
print("equal")
"""


def output(*words: str) -> str:
    done = subprocess.run([sys.executable, "-c", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_has_not_imported_what_it_does_not_need() -> None:
    imported = output(IMPORTS, str(PIPELINE)).split()
    assert "pyarrow" in imported and "torch" in imported
    assert not [name for name in UNNEEDED if name in imported]


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
def test_no_process_of_a_server_has_pandas(workers: int) -> None:
    """PyArrow would import it, where it is installed: 30 MiB of each process."""
    redis = f"redis://127.0.0.1:{free_ports(1)}"  # nobody listens: the server waits
    command = [
        sys.executable,
        "-m",
        "livectr",
        "serve",
        "rank",
        "--pipeline",
        str(PIPELINE),
        "--redis",
        redis,
    ]
    options = ["--listen", "127.0.0.1:0", "--workers", str(workers), "--set", "start_wait_s=60"]
    with subprocess.Popen(with_parent([*command, *options]), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            waiting = 0
            while waiting < workers:
                line = server.stderr.readline()
                assert line, "the server ended"
                waiting += "server waits" in line
            processes = [server.pid, *descendants(server.pid)]
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in processes]
        finally:
            server.terminate()
    loaded = [text for text in maps if "libarrow" in text]
    assert len(loaded) >= workers
    assert not [text for text in loaded if "/pandas/" in text]


def test_pandas_still_converts() -> None:
    assert output(CONVERTS).strip() == "equal"
