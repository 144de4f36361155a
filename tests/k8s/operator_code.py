"""Operators that no lab runs: Go code of their webhooks and controllers, asked without a cluster.

Each program is compiled from its operator's Go module at its first use, below $LIVECTR_CACHE_DIR.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import environment

HERE = Path(__file__).parent / "operators"
MODULES = {"jobset": "sigs.k8s.io/jobset@v0.10.1", "keda": "github.com/kedacore/keda/v2@v2.18.1"}


def refusal(operator: str, folder: Path, *objects: object) -> str:
    """Reason of a webhook's refusal; empty where it accepts.

    Args:
        operator: key of MODULES.
        folder: place of files.
        objects: what the program takes, each as a file of JSON.
    """
    code, told = _told(operator, "ask", folder, objects)
    return "" if code == 0 else told


def jobs(folder: Path, jobset: object, services: object) -> dict[str, list[dict[str, Any]]]:
    """Jobs and Services that JobSet's controller makes of a JobSet, beside Services that are there."""
    code, told = _told("jobset", "run", folder, (jobset, services))
    assert code == 0, told
    found: dict[str, list[dict[str, Any]]] = json.loads(told)
    return found


def _told(operator: str, command: str, folder: Path, objects: Sequence[object]) -> tuple[int, str]:
    files = [folder / f"{operator}-{number}.json" for number in range(len(objects))]
    for file, content in zip(files, objects, strict=True):
        file.write_text(json.dumps(content))
    done = subprocess.run([_program(operator), command, *files], capture_output=True, text=True)
    told = done.stdout.strip()
    assert done.returncode in (0, 1) and told, done.stderr
    return done.returncode, told


def _program(operator: str) -> Path:
    """Path of a webhook's program, compiled where it is missing or older than its source."""
    source = HERE / operator / "main.go"
    home = environment.cache() / "operators" / operator
    program = home / operator
    if program.exists() and (home / "main.go").read_text() == source.read_text():
        return program
    home.mkdir(parents=True, exist_ok=True)
    module = MODULES[operator]
    told: dict[str, Any] = json.loads(_go(home, "mod", "download", "-json", module))
    theirs = Path(told["GoMod"]).read_text()
    path, _, version = module.partition("@")
    replaced = re.search(
        r"^replace \((?s:.*?)^\)", theirs, re.MULTILINE
    )  # they hold for the main module alone
    language = re.search(r"^go \S+", theirs, re.MULTILINE)
    lines = ["module webhook", language[0] if language else "", f"require {path} {version}"]
    (home / "go.mod").write_text("\n".join([*lines, replaced[0] if replaced else "", ""]))
    shutil.copy(source, home / "main.go")
    _go(home, "build", "-o", f"{operator}.new", ".")
    (home / f"{operator}.new").rename(program)
    return program


def _go(folder: Path, *words: str) -> str:
    go = shutil.which("go")
    assert go, "webhooks of operators are compiled from their Go modules: install Go 1.24 or newer"
    variables = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    done = subprocess.run(["nice", go, *words], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
