"""Findings of kube-score and checkov in rendered manifests, and the skips of skips.yaml.

Neither is a package of `make setup`: each is installed at its first use, below $LIVECTR_CACHE_DIR.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import yaml

from bench import environment
from tests.k8s_static.rendering import Manifest

HERE = Path(__file__).parent
KUBE_SCORE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
OLDEST = "v1.29"
"""Release of Kubernetes whose API versions must be stable."""


@dataclass(frozen=True)
class Finding:
    """Complaint of a tool.

    Args:
        overlay: name of the rendered overlay.
        item: "Kind/name".
        check: the tool's name of its check.
        detail: the tool's sentence.
    """

    overlay: str
    item: str
    check: str
    detail: str


@dataclass(frozen=True)
class Skip:
    """Entry of skips.yaml: patterns of findings that are no faults, and why they are none."""

    tool: str
    check: str
    reason: str
    item: str = "*"
    overlay: str = "*"
    detail: str = "*"

    def covers(self, finding: Finding) -> bool:
        """True if all patterns match."""
        return all(
            fnmatch(getattr(finding, name), getattr(self, name))
            for name in ("check", "item", "overlay", "detail")
        )


@cache
def skips(tool: str) -> tuple[Skip, ...]:
    """Skips of a tool. Raises TypeError for an unknown or missing key."""
    entries = yaml.safe_load((HERE / "skips.yaml").read_text())
    return tuple(skip for skip in (Skip(**entry) for entry in entries) if skip.tool == tool)


def kube_score(overlays: Mapping[str, Sequence[Manifest]], folder: Path) -> Iterator[Finding]:
    """Findings of kube-score; each overlay is looked at alone, since its objects refer to each other."""
    program = _kube_score()
    for overlay, file in _files(overlays, folder).items():
        flags = [f"--kubernetes-version={OLDEST}", "--disable-ignore-checks-annotations", "-o", "json"]
        done = subprocess.run([program, "score", *flags, file], capture_output=True, text=True)
        assert done.returncode in (0, 1) and done.stdout, done.stderr
        for scored in json.loads(done.stdout):
            item = f"{scored['type_meta']['kind']}/{scored['object_meta']['name']}"
            for check in scored["checks"]:
                for comment in check["comments"] or []:
                    if check["grade"] < 10 and not check["skipped"]:
                        yield Finding(overlay, item, check["check"]["id"], comment["summary"])


def checkov(overlays: Mapping[str, Sequence[Manifest]], folder: Path) -> Iterator[Finding]:
    """Findings of checkov, of one run for all overlays: importing it takes most of the time."""
    program = environment.python(HERE / "checkov.txt", program="checkov").with_name("checkov")
    files = _files(overlays, folder)
    foreign = ("BC_", "CKV_", "PYTHON")
    done = subprocess.run(
        [program, "--directory=.", "--framework=kubernetes", "--skip-download", "--output=json", "--compact"],
        cwd=folder, capture_output=True, text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith(foreign)},
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert not report["summary"]["parsing_errors"] and not report["summary"]["skipped"], report["summary"]
    seen = {Path(passed["file_path"]).stem for passed in report["results"]["passed_checks"]}
    assert seen == set(files), f"checkov has looked at {seen}"
    for failed in report["results"]["failed_checks"]:
        overlay = Path(failed["file_path"]).stem
        kind, _, name = failed["resource"].split(".", 2)
        yield Finding(overlay, f"{kind}/{name}", failed["check_id"], failed["check_name"])


Tool = Callable[[Mapping[str, Sequence[Manifest]], Path], Iterator[Finding]]
TOOLS: dict[str, Tool] = {"kube-score": kube_score, "checkov": checkov}


def _files(overlays: Mapping[str, Sequence[Manifest]], folder: Path) -> dict[str, Path]:
    """Overlay → its manifests as a file."""
    found = {name: folder / f"{name}.yaml" for name in overlays}
    for name, file in found.items():
        file.write_text(yaml.safe_dump_all(overlays[name], sort_keys=False))
    return found


def _kube_score() -> Path:
    """Path of kube-score, compiled at the first use from its Go module."""
    folder = environment.cache() / KUBE_SCORE.rpartition("/")[2]
    if not (folder / "kube-score").exists():
        go = shutil.which("go")
        assert go, "kube-score is compiled from its Go module: install Go 1.23 or newer"
        variables = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        done = subprocess.run([go, "install", KUBE_SCORE], env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder / "kube-score"
