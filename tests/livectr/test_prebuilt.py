"""`livectr features compile`: afterwards training, servers and queries run where there is no compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from livectr.system.cpu import own_levels
from tests.commands import run
from tests.serving.processes import ready, server

ROOT = Path(__file__).parents[2]
CONTEXT = ["user_id=42", "page=search", "position=1", "query=new books", 'context={"device": {"os": "ios"}}']
RANKED = ["--candidates", "ad_id=1,2,3"]
PIPELINE = ROOT / "examples" / "display_ads" / "pipeline.py"


def livectr(*words: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "livectr", *words], cwd=ROOT, capture_output=True, text=True)


def test_the_loop_runs_without_a_compiler(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = own_levels()[0].name
    cache = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")
    kernels = cache / "prebuilt-tests"  # kept: a later run compiles what has changed
    done = livectr("features", "compile", "--pipeline", str(PIPELINE), "--to", str(kernels), "--cpu", level)
    assert done.returncode == 0, done.stderr
    assert f"kernel libraries for {level} in {kernels}" in done.stdout
    logs = f"file:{tmp_path / 'logs'}"
    assert livectr("logs", "simulate", "--to", logs, "--seconds", "20", "--fast").returncode == 0
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LIVECTR_KERNELS", str(kernels))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    trained = livectr(
        *("train", "--pipeline", str(PIPELINE), "--source", logs, "--until-end", "--set", "min_examples=1"),
        *("--publish", redis_url, "--namespace", "prebuilt"),
    )
    assert trained.returncode == 0, trained.stderr
    for role, flags in (("rank", RANKED), ("prerank", ["--top-k", "5"])):
        with server(role, redis_url, "--namespace", "prebuilt", pipeline=PIPELINE) as process:
            address, _ = ready(process)
            asked = livectr("query", role, "--server", address, "--context", *CONTEXT, *flags)
            assert asked.returncode == 0, asked.stderr
    assert not (tmp_path / "cache").exists()


def test_a_level_that_this_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = livectr("features", "compile", "--to", str(tmp_path), "--cpu", "pentium")
    assert done.returncode == 2
    assert done.stderr.startswith("livectr: 'pentium' is no level of this machine's CPUs; the levels are ")


def test_wrong_settings_are_told_before_anything_is_compiled(tmp_path: Path) -> None:
    settings = tmp_path / "livectr.toml"
    words = ("features", "compile", "--servers", "--to", str(tmp_path / "kernels"), "--config", str(settings))
    settings.write_text("batch_sise = 3")
    done = livectr(*words, "--pipeline", str(PIPELINE))
    assert done.returncode == 2 and "batch_sise" in done.stderr and "batch_size" in done.stderr
    settings.write_text('source = "kafka:9092"')  # a known name; the address has no scheme
    done = livectr(*words, "--pipeline", str(PIPELINE))
    assert done.returncode == 2 and "kafka:9092" in done.stderr
    done = livectr(*words)
    assert done.returncode == 2 and "say --pipeline FILE.py" in done.stderr
    assert not (tmp_path / "kernels").exists()
