"""Dashboards: what is committed is what the programs write, and the rules of dashboard-linter hold.

The rules are those of grafana/dashboard-linter, which is no package here: templated data source, job,
namespace and pod; titles, descriptions and units; $__rate_interval; rates before sums; nothing to edit.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

import livectr.ingest.metrics
import livectr.serving.metrics
import livectr.store.measured_redis
import livectr.system.build_info
import livectr.trainer.build
from k8s.dashboards import __main__ as dashboards
from k8s.dashboards.marks import MARKS
from k8s.rules import __main__ as rules
from k8s.rules.alerts import bound_s
from tests.promtool import promtool
from tests.watch.expressions import DASHBOARDS, FOREIGN, panels

METRICS = DASHBOARDS.parents[1] / "docs" / "metrics.md"
FILES = sorted(DASHBOARDS.glob("*.json"))
DECLARE_METRICS = (
    livectr.ingest.metrics,
    livectr.system.build_info,
    livectr.store.measured_redis,
    livectr.serving.metrics,
    livectr.trainer.build,
)
OTHERS = ("process_", "up", "ALERTS", *FOREIGN)
"""Begin of the names of metrics that are not LiveCTR's."""
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
RANGE = re.compile(r"(\w+)\(([a-zA-Z_:][\w:]*)\{[^}]*\}\[([^\]]+)\]")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LONG_RANGE = {"changes": "1h"}
"""Functions that look at a range of their own, since a shorter one would miss what they count."""


def each() -> list[object]:
    return [pytest.param(json.loads(file.read_text()), id=file.stem) for file in FILES]


def expressions(dashboard: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(p["title"], t["expr"]) for p in panels(dashboard) for t in p["targets"]]


def test_the_committed_files_are_what_the_programs_write() -> None:
    written = dashboards.files()
    assert [file.name for file in FILES] == sorted(written)
    for name, text in written.items():
        assert (DASHBOARDS / name).read_text() == text, f"{name} is old: run `python -m k8s.dashboards`"


def test_all_boards_are_delivered() -> None:
    names = (
        "overview",
        "freshness",
        "ingest",
        "learning",
        "training",
        "tables",
        "images",
        "serving",
        "platform",
    )
    wanted = [f"livectr-{name}.json" for name in names]
    assert {file.name for file in FILES} == set(wanted)
    generators = yaml.safe_load((DASHBOARDS / "kustomization.yaml").read_text())["configMapGenerator"]
    assert [generator["files"] for generator in generators] == [[name] for name in wanted]
    assert all(file.stat().st_size < 100_000 for file in FILES), "too large for kubectl's annotation"
    boards = [json.loads(file.read_text()) for file in FILES]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 9


@pytest.mark.parametrize("dashboard", each())
def test_variables(dashboard: dict[str, Any]) -> None:
    source, *others = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [variable["name"] for variable in others] == ["namespace", "job", "pod"]
    for variable in others:
        assert variable["datasource"] == SOURCE and variable["multi"] and variable["includeAll"]
        assert variable["allValue"] == ".+" and variable["label"]
        assert variable["query"].startswith("label_values(livectr_build_info{")


@pytest.mark.parametrize("dashboard", each())
def test_panels_say_what_they_show(dashboard: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(dashboard)]
    assert titles and len(titles) == len(set(titles)), "two panels have the same title"
    for panel in panels(dashboard):
        title = panel["title"]
        assert title and len(panel["description"]) > 10 and panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], f"{title} has no unit"
        assert panel["datasource"] == SOURCE and panel["targets"], title
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE and target["legendFormat"], title
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("dashboard", each())
def test_every_series_is_chosen_by_the_variables(dashboard: dict[str, Any]) -> None:
    for title, expr in expressions(dashboard):
        found = SELECTOR.findall(expr)
        assert found, f"{title}: {expr}"
        for name, matchers in found:
            wanted = {'namespace=~"$namespace"'}
            if not (":" in name or name.startswith(("ALERTS", *FOREIGN))):
                wanted |= {'job=~"$job"', 'pod=~"$pod"'}
            if name == "livectr_published_version" and "scalar" in expr:
                wanted = {'namespace=~"$namespace"'}  # the trainer's, whatever server is chosen
            assert all(matcher in matchers for matcher in wanted), f"{title}: {name}{{{matchers}}}"


@pytest.mark.parametrize("dashboard", each())
def test_rates_come_before_sums_and_take_their_interval_from_grafana(dashboard: dict[str, Any]) -> None:
    for title, expr in expressions(dashboard):
        for function, name, interval in RANGE.findall(expr):
            assert interval == LONG_RANGE.get(function, "$__rate_interval"), f"{title}: {name}[{interval}]"
        assert not re.search(r"rate\(\s*(sum|avg|max|min)", expr), f"{title}: a sum before its rate"
        for name in re.findall(r"(\w+(?:_total|_bucket|_sum|_count))\{", expr):
            counted = [function for function, counter, _ in RANGE.findall(expr) if counter == name]
            assert set(counted) <= {"rate", "increase"} and counted, f"{title}: {name} without a rate"


@pytest.mark.parametrize("dashboard", each())
def test_nothing_can_be_edited(dashboard: dict[str, Any]) -> None:
    assert dashboard["editable"] is False
    assert "id" not in dashboard or dashboard["id"] is None


def known_names() -> set[str]:
    """Names of series that LiveCTR exports, and those that its rules record."""
    names = set()
    for family in REGISTRY.collect():
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + end for end in ends}
    return names | {rule["record"] for group in rules.groups() for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("dashboard", each())
def test_every_metric_exists(dashboard: dict[str, Any]) -> None:
    known = known_names()
    for title, expr in expressions(dashboard):
        for name, _ in SELECTOR.findall(expr):
            assert name in known or name.startswith(OTHERS), f"{title} reads {name}, which nobody exports"


def test_every_metric_has_a_panel() -> None:
    """All that docs/metrics.md names, to look at it without PromQL."""
    rows = [line for line in METRICS.read_text().splitlines() if line.startswith("| `livectr_")]
    named = {name for row in rows for name in re.findall(r"`(livectr_\w+)", row.split("|")[1])}
    shown = "".join(expr for file in FILES for _, expr in expressions(json.loads(file.read_text())))
    assert len(named) > 100 and not sorted(name for name in named if name not in shown)


def test_lines_of_alerts_have_their_bounds() -> None:
    """A dashed line is where an alert begins; a line without a bound is on no panel."""
    found = {}
    for file in FILES:
        for panel in panels(json.loads(file.read_text())):
            defaults = panel["fieldConfig"]["defaults"]
            if "thresholdsStyle" in defaults.get("custom", {}):
                assert defaults["custom"]["thresholdsStyle"] == {"mode": "dashed"}
                steps = defaults["thresholds"]["steps"]
                found[f"{file.stem} {panel['title']}"] = [s["value"] for s in steps[1:]]
    assert found["livectr-training Age of the checkpoint"] == [bound_s("CheckpointOld")]
    assert found["livectr-learning Calibration"] == [0.9, 1.1]
    assert found["livectr-overview Burn rate over 1h"] == [14.4]
    assert len(found) >= 15 and all(found.values())


@pytest.mark.parametrize("dashboard", each())
def test_marks_explain_changes(dashboard: dict[str, Any]) -> None:
    """Starts, roll-outs and versions, of what the variables choose."""
    marks = dashboard["annotations"]["list"]
    assert {"Starts", "Roll-outs", "Complete versions", "Versions held"} <= {mark["name"] for mark in marks}
    for mark in marks:
        assert mark["datasource"] == SOURCE and mark["enable"] and mark["titleFormat"] and mark["textFormat"]
        for name, matchers in SELECTOR.findall(mark["expr"]):
            assert all(f'{each}=~"${each}"' in matchers for each in ("namespace", "job", "pod"))
            assert name in known_names() or name.startswith(OTHERS)


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    asked = {
        re.sub(r'"\$\w+"', '".+"', re.sub(r"\$__(rate_)?interval", "1m", expr))
        for file in FILES
        for expr in [
            *(text for _, text in expressions(json.loads(file.read_text()))),
            *(mark.expr for mark in MARKS),
        ]
    }
    group = {
        "name": "panels",
        "rules": [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(sorted(asked))],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=none", str(tmp_path / "rules.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and f"{len(asked)} rules found" in done.stdout, done.stdout + done.stderr


def test_provisioning_reads_addresses_from_the_environment() -> None:
    folder = DASHBOARDS / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "$LIVECTR_PROMETHEUS" and source["type"] == "prometheus"
    (provider,) = yaml.safe_load((folder / "dashboards" / "livectr.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "$LIVECTR_DASHBOARDS" and not provider["allowUiUpdates"]


def test_a_typo_is_found(tmp_path: Path) -> None:
    """The checks above can fail."""
    board = json.loads(FILES[0].read_text())
    panel = next(iter(panels(board)))
    panel["targets"][0]["expr"] = "rate(sum(livectr_evnts_total{}))"
    for check in (test_every_metric_exists, test_every_series_is_chosen_by_the_variables):
        with pytest.raises(AssertionError):
            check(board)
    with pytest.raises(AssertionError):
        test_rates_come_before_sums_and_take_their_interval_from_grafana(board)
