"""Prometheus beside the demo: reads every process and evaluates the rules; its data lie in the demo's folder.

The labels are those of a deployment: job (trainer, rank, prerank), namespace and pod. So the dashboards and
alerts of k8s/ show a demo as they show a cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from livectr.checkout import ROOT
from livectr.system.errors import ConfigError

NAMESPACE = "demo"
SCRAPE_S = 5
_RULES = ROOT / "k8s" / "rules" / "livectr.yaml"
_DASHBOARDS = ROOT / "k8s" / "dashboards"


@dataclass(frozen=True)
class Target:
    """Endpoint of a process: a port on loopback, and its labels."""

    job: str
    pod: str
    port: int


def prometheus_program() -> str:
    """Path of Prometheus: on the PATH, or beside this Python, where setup.sh puts it.

    Raises:
        ConfigError: not found.
    """
    folders = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("prometheus", path=folders)
    if found is None:
        raise ConfigError(
            "there is no Prometheus on this machine: run `make setup`, install Debian's package "
            "`prometheus`, or start the demo without --watch."
        )
    return found


def command(
    program: str, folder: Path, port: int, targets: Sequence[Target], rules: Path | None = None
) -> list[str]:
    """Command line of a Prometheus that reads the targets; its configuration is written into `folder`.

    Args:
        program: of Prometheus.
        folder: of its data.
        port: to listen on.
        targets: processes that it reads.
        rules: file of rules; None: those of the repository, if this is a checkout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "prometheus.json"  # Prometheus reads YAML, and JSON is YAML
    settings.write_text(json.dumps(_settings(targets, rules), indent=2) + "\n")
    return [
        program,
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]


def is_ready(port: int) -> bool:
    """Tell if Prometheus on loopback answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def directions(port: int, targets: Sequence[Target]) -> list[str]:
    """Lines that say where to look, and how to point a Grafana at this Prometheus."""
    url = f"http://127.0.0.1:{port}"
    lines = [
        f"Prometheus  {url}/targets, {url}/alerts and {url}/graph",
        "metrics     " + ", ".join(f"{t.pod} http://127.0.0.1:{t.port}/metrics" for t in targets),
    ]
    if _RULES.is_file():
        lines += [
            "Grafana     show all of it on the dashboards of LiveCTR with any Grafana on this machine:",
            f"    LIVECTR_PROMETHEUS={url} LIVECTR_DASHBOARDS={_DASHBOARDS} \\",
            f"    GF_PATHS_PROVISIONING={_DASHBOARDS / 'provisioning'} \\",
            "    grafana server --homepath /usr/share/grafana",
        ]
    else:
        lines.append("Grafana     dashboards and alerts are in the folder k8s/ of the repository")
    return [*lines, "Ctrl-C ends everything."]


def _settings(targets: Sequence[Target], rules: Path | None) -> dict[str, object]:
    rules = rules or (_RULES if _RULES.is_file() else None)
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(rules.absolute())] if rules is not None else [],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {
                        "targets": [f"127.0.0.1:{target.port}"],
                        "labels": {"namespace": NAMESPACE, "pod": target.pod},
                    }
                    for target in targets
                    if target.job == job
                ],
            }
            for job in sorted({target.job for target in targets})
        ],
    }
