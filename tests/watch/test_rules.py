"""Rules: what is committed is what the programs write, promtool accepts it, and every alert is tested."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import livectr.serving.metrics
from k8s.rules import __main__ as rules
from k8s.rules.alerts import ALERTS
from k8s.rules.objectives import FRESHNESS_S, LATENCY_S, OBJECTIVES
from tests.promtool import promtool
from tests.tiers import few
from tests.waiting import left_s
from tests.watch.drills import drilled

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s" / "rules"
TESTS = sorted(FOLDER.glob("tests*.yaml"))
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()


def test_the_committed_files_are_what_the_programs_write() -> None:
    for name, text in rules.files().items():
        assert (FOLDER / name).read_text() == text, f"{name} is old: run `python -m k8s.rules`"


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", "--lint-fatal", str(FOLDER / "livectr.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=left_s(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", few(TESTS, FOLDER / "tests-days.yaml"), ids=lambda file: file.stem)
def test_promtool_runs_their_tests(file: Path) -> None:
    """Fifty cases take promtool 38 CPU seconds, in the second tier."""
    done = subprocess.run(
        [promtool(), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=left_s(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_that_fires_and_one_that_does_not() -> None:
    fires: dict[str, set[bool]] = defaultdict(set)
    for file in TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            for rule in case["alert_rule_test"]:
                fires[rule["alertname"]].add(bool(rule["exp_alerts"]))
    assert fires == {alert.full_name: {True, False} for alert in ALERTS}


def sections(page: str) -> dict[str, str]:
    """Anchor of a heading of the third level → its section."""
    return {
        heading.lower(): body
        for heading, body in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    }


def test_the_runbook_says_what_to_do_about_every_alert() -> None:
    known = sections(RUNBOOK)
    named = set()
    for group in rules.groups():
        for rule in group["rules"]:
            if "alert" in rule:
                page, anchor = rule["annotations"]["runbook_url"].split("#")
                assert (ROOT / page).is_file()
                named.add(anchor)
                for part in ("**Means.**", "**Look.**", "**Do.**", "**Tested.**"):
                    assert part in known[anchor], f"{anchor} lacks {part}"
    assert known.keys() == named, "the runbook has a section for each alert, and no other"


def test_the_runbook_claims_the_drills_that_there_are() -> None:
    claimed = {anchor for anchor, section in sections(RUNBOOK).items() if "Drill:" in section}
    assert claimed == {alert.lower() for alert in drilled()}
    others = {anchor: section for anchor, section in sections(RUNBOOK).items() if anchor not in claimed}
    assert all("promtool alone:" in section for section in others.values()), "say why no fault fires it"


def test_links_lead_to_a_site_elsewhere() -> None:
    (_, alerts) = rules.groups("https://docs.example.org/livectr/")
    links = [rule["annotations"]["runbook_url"] for rule in alerts["rules"]]
    assert links[0] == "https://docs.example.org/livectr/runbook/#livectravailabilityburnsfast"


def test_bounds_of_the_objectives_are_buckets() -> None:
    assert LATENCY_S in livectr.serving.metrics.REQUEST_BOUNDS_S
    assert LATENCY_S in livectr.serving.metrics.DelayHistogram.bounds_s
    assert FRESHNESS_S in livectr.serving.metrics.DelayHistogram.bounds_s


def test_the_operators_resource_has_the_same_rules() -> None:
    plain: Any = yaml.safe_load((FOLDER / "livectr.yaml").read_text())
    resource: Any = yaml.safe_load((FOLDER / "operator" / "prometheusrule.yaml").read_text())
    assert resource["kind"] == "PrometheusRule" and resource["spec"] == plain
    recorded = {rule["record"] for rule in plain["groups"][0]["rules"]}
    assert recorded == {o.recorded(window) for o in OBJECTIVES for window in rules.WINDOWS}
