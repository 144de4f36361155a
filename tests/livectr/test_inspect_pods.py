"""`livectr inspect` in pods: settings before a rollout, and a checkpoint on a read-only mount."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from livectr.cli import main
from tests.livectr.nodes import ROOT
from tests.trainer.ad_logs import write_files
from tests.waiting import left_s

IMPORTED = {"kafka-python": "kafka", "python-snappy": "snappy"}
"""Package → its module, where the names differ."""
PIPELINE = ROOT / "examples" / "display_ads" / "pipeline.py"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("batch_sise = 1", "did you mean 'batch_size'?"),
        ('drain_s = "soon"', "must be a number or a duration"),
        ('spill = "/x"', "spill needs dram_bytes"),
        ('tls_cert = "/tls/tls.crt"', "set tls_cert and tls_key"),
        ('listen = "50051"', "must be HOST:PORT"),
        ("max_active_bytes = 1", "raise the first or lower the second"),
        ("until_stopped = true", "say --checkpoint DIR too"),
        ('until_stopped = true\ncheckpoint = "c"\nmax_steps = 3', "leave max_steps out"),
        ("nodes = 3", "set rendezvous to HOST:PORT"),
        ('nodes = 3\nnode = "auto"\nrendezvous = "trainer-0.trainer"', "must be HOST:PORT"),
        ('source = "kafka://kafka"', "is not kafka://HOST:PORT"),
        ('source = "kafka://kafka:9093?cafile=x"', "there is no option 'cafile'"),
        ('field_exchange = "everything"', "field_exchange"),
    ],
)
def test_wrong_settings_of_any_process_are_found_before_it_starts(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`livectr inspect` as an init container: what train or serve would refuse, it refuses."""
    toml = tmp_path / "livectr.toml"
    toml.write_text(line + "\n")
    assert main(["inspect", "--pipeline", str(PIPELINE), "--config", str(toml)]) == 2
    assert says in capsys.readouterr().err


CHECK = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # importing it fails
from pathlib import Path
from livectr.config.sources import resolve
from livectr.inspection.check import check_settings
check_settings(resolve({}, toml=sys.argv[1], pipeline={}))
"""


def test_the_serve_image_checks_settings_without_the_trainers_packages(tmp_path: Path) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())
    serve = packages["dependency-groups"]["serve"]
    others = [name for name in packages["project"]["dependencies"] if name not in serve]
    modules = [IMPORTED.get(name, name) for name in (re.split("[<>=]", each)[0] for each in others)]
    assert "matplotlib" in modules
    toml = tmp_path / "livectr.toml"
    toml.write_text('source = "kafka://kafka:9092"\npublish = "redis://redis:6379"\n')
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(toml), *modules], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_settings_of_all_processes_in_one_file_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file or address that they name has to be there."""
    toml = tmp_path / "livectr.toml"
    toml.write_text(
        'source = "kafka://kafka:9093?ca=/tls/ca.crt&user=ads&password_file=/run/kafka"\n'
        'publish = "rediss://trainer@redis:6379"\nredis = "rediss://server@redis:6379"\n'
        'nodes = 3\nnode = "auto"\nrendezvous = "trainer-0.trainer:29400"\nuntil_stopped = true\n'
        'checkpoint = "/checkpoint/run"\ntls_cert = "/tls/tls.crt"\ntls_key = "/tls/tls.key"\n'
        'listen = "0.0.0.0:50051"\nhealth_listen = "0.0.0.0:8081"\nlog_format = "json"\n'
    )
    assert main(["inspect", "--pipeline", str(PIPELINE), "--config", str(toml)]) == 0
    assert "fingerprint" in capsys.readouterr().out


READ_ONLY = """
import sys

def refuse(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.truncate", "os.utime"):
        path, flags = str(arguments[0]), arguments[2] if event == "open" else 1
        if path.startswith(sys.argv[1]) and (flags & 3 or event != "open"):
            raise OSError(30, "Read-only file system", path)

sys.addaudithook(refuse)
from livectr.cli import main
sys.exit(main(["inspect", "--checkpoint", sys.argv[1]]))
"""


def test_a_checkpoint_is_shown_on_a_read_only_mount(tmp_path: Path) -> None:
    """Nothing in its folder is opened for writing."""
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"
    )
    source, root = write_files(tmp_path / "logs", 300), tmp_path / "checkpoint"
    flags = ["--pipeline", str(tmp_path / "pipeline.py"), "--source", source, "--checkpoint", str(root)]
    assert main(["train", *flags, "--until-end", "--set", "batch_size=64", "threads=1"]) == 0
    before = {path: path.stat() for path in root.rglob("*")}
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(root)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=left_s(),
    )
    assert done.returncode == 0 and "whole" in done.stdout, done.stderr
    after = {path: path.stat() for path in root.rglob("*")}
    assert {p: (s.st_mtime_ns, s.st_size) for p, s in before.items()} == {
        p: (s.st_mtime_ns, s.st_size) for p, s in after.items()
    }
