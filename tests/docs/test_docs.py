"""Tests of the pages: every ``bash`` and ``python`` block of README.md, docs/ and examples/ is run.

A page's bash blocks are one shell session, from top to bottom. It runs in a folder where the repository's
files are linked, so that new files stay out of the checkout. A page's python blocks share one namespace.
Other blocks (``text``, ``toml``, ``json``, ``promql``) are only shown.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

import bench.learning.page
import bench.network.page
import bench.page
import bench.plan.page
import bench.scaling_page
import bench.serving.page
import bench.serving.profile
import livectr.evaluation
import livectr.ingest.metrics
import livectr.ingest.operators
import livectr.serving.metrics
import livectr.store.measured_redis
import livectr.system.build_info
import livectr.trainer.build
from livectr import operator_page, values_page
from livectr.config.settings import SETTINGS
from livectr.local.ports import LOWEST, NAMED
from livectr.up.folder import RunFolder
from tests.docs.forked import ForkedOnPath
from tests.waiting import left_s

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DECLARE_METRICS = (
    livectr.ingest.metrics,
    livectr.system.build_info,
    livectr.store.measured_redis,
    livectr.serving.metrics,
    livectr.trainer.build,
)
FULL_ONLY = "make demo SECONDS"  # blocks with it are run by `make test-full`: test_demo.py runs the demo, too
SIMULATED = re.compile(r"(livectr logs simulate .*--seconds )(\d\d)\b")
SIMULATED_S = (
    5  # seconds that a page simulates for at most, if it says less than 100; `make test-full` runs all
)
LEAST_BATCH = 512  # of a page's training; a user's begins with steps of 4 examples, `make test-full`'s, too
DEMO_S = 15  # seconds of a page's demo of a minute; the whole minute would only cost time
CALL_S = 60
DEADLINES = {
    r'(127\.0\.0\.1:\d+", |timeout_s=)0\.\d+\b': rf"\g<1>{CALL_S}",
    r"\blivectr query (\w+) ": rf"livectr query \1 --timeout {CALL_S}s ",
}
"""Deadlines of calls: a page shows those of an ad server, and a busy machine takes longer."""


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(page.read_text()) if name == language]


def named(language: str) -> list[object]:
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES if blocks(p, language)]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Folder that looks like the checkout; new files in it are deleted with it."""
    for entry in ROOT.iterdir():
        if entry.name not in {".git", ".livectr", "report.json"}:
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def end(group: int) -> None:
    """Ask a process group to end, so that servers take their own children along; kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        for _ in range(150):  # no `until`: what does not end is killed, and no failure
            time.sleep(0.1)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


def end_detached(desk: Path) -> None:
    """End what `livectr up --detach` has left, which is in no group of the page."""
    for path in desk.glob(".livectr/*"):
        state = RunFolder(path).state()
        if state is not None:
            end(state.supervisor)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", named("bash"))
def test_bash_blocks(
    page: Path, desk: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    full = request.config.getoption("--full")
    bodies = [body for body in blocks(page, "bash") if full or FULL_ONLY not in body]
    script = "set -euo pipefail\n" + "\n".join(bodies)
    script = re.sub(r"\bSECONDS=\d+", f"SECONDS={DEMO_S}", script)
    script = re.sub(r"(?m)^make demo$", f"make demo SECONDS={DEMO_S}", script)
    if not full:
        script = SIMULATED.sub(lambda found: found[1] + str(min(int(found[2]), SIMULATED_S)), script)
    script = re.sub(r"(?m)^make test$", 'make test ARGS="-k test_house"', script)
    for shown, patient in DEADLINES.items():
        script = re.sub(shown, patient, script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    few_steps = {} if full else {"LIVECTR_BATCH_RAMP": str(LEAST_BATCH)}
    log = desk / "session.log"
    with ExitStack() as held:
        if not full:  # else commands are started, as users do
            forked = held.enter_context(ForkedOnPath(tmp_path_factory.mktemp("forked")))
            path = f"{forked.path}{os.pathsep}{path}"
        out = held.enter_context(log.open("w"))
        session = subprocess.Popen(
            ["bash", "-x", "-c", script],
            cwd=desk,
            env={**os.environ, **few_steps, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = session.wait(left_s())
        finally:  # servers that the page left in the background
            end(session.pid)
            end_detached(desk)
    assert code == 0, f"{page.name} ends with {code}:\n{log.read_text()[-6000:]}"


def test_no_two_pages_listen_on_one_port() -> None:
    """Pages run beside each other: a page must not ask, or stand in the way of, another's server."""
    pages = defaultdict(set)
    for page in PAGES:
        for body in blocks(page, "bash"):
            for port in re.findall(r"\b127\.0\.0\.1:(\d+)", body):
                pages[port].add(page.name)
    assert len(pages) > 10
    assert {port: names for port, names in pages.items() if len(names) > 1} == {}
    assert not [port for port in pages if LOWEST <= int(port) < NAMED], "other servers draw these ports"


@pytest.mark.parametrize("page", named("python"))
def test_python_blocks(page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    namespace: dict[str, object] = {"__name__": page.stem}
    for body in blocks(page, "python"):
        exec(compile(body, str(page), "exec"), namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}: not there"


def test_anchors_of_links_are_headings() -> None:
    """An anchor is the heading in lower case, without punctuation, - for blanks, as GitHub makes it."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            leads_to = (page.parent / target).resolve() if target else page
            if leads_to.suffix == ".md":
                text = re.sub(r"^```.*?^```$", "", leads_to.read_text(), flags=re.DOTALL | re.MULTILINE)
                anchors = {
                    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                    for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)
                }
                assert anchor in anchors, f"{page.relative_to(ROOT)} links to {target}#{anchor}: not there"


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    missing = [name for name in SETTINGS if f"| `{name}` |" not in page]
    extra = [name for name in re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) if name not in SETTINGS]
    assert not missing and not extra, f"docs/configuration.md lacks {missing} and has {extra} too many"


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in REGISTRY.collect()
        if family.name.startswith("livectr_")
    }
    assert len(names) > 20
    assert not {name for name in names if f"`{name}" not in page}


def test_benchmark_pages_show_the_results() -> None:
    pages = bench.page.pages()
    assert {path for path in pages if path.read_text() != pages[path]} == set(), "run `python -m bench.page`"


def test_headings_of_a_benchmark_page_differ() -> None:
    for path in bench.page.pages():
        headings = re.findall(r"^#+ .*", path.read_text(), re.MULTILINE)
        assert len(headings) == len(set(headings)), f"{path.name}: {headings}"


def test_the_overview_of_benchmarks_is_short() -> None:
    assert len(bench.page.OVERVIEW.read_text().splitlines()) <= 150


def test_the_first_hour_shows_its_results() -> None:
    measured = json.loads(bench.learning.page.RESULT.read_text())
    text = bench.learning.page.PAGE.read_text()
    assert bench.learning.page.page(text, measured) == text, "run `python -m bench.learning.page`"
    for name, _ in bench.learning.page.tables(measured):
        assert bench.learning.page.PAGE.with_name(f"first-hour-{name}.svg").exists()


def test_scaling_page_shows_its_results() -> None:
    measured = json.loads(bench.scaling_page.RESULT.read_text())
    text = bench.scaling_page.PAGE.read_text()
    assert bench.scaling_page.page(text, measured) == text, "run `python -m bench.scaling_page`"
    assert bench.scaling_page.picture(measured) == bench.scaling_page.PICTURE.read_text()


def test_network_section_shows_its_results() -> None:
    measured = json.loads(bench.network.page.RESULT.read_text())
    text = bench.network.page.PAGE.read_text()
    assert bench.network.page.page(text, measured) == text, "run `python -m bench.network.page`"
    assert bench.network.page.picture(measured) == bench.network.page.PICTURE.read_text()


def test_plan_section_shows_its_predictions() -> None:
    text = bench.scaling_page.PAGE.read_text()
    assert bench.plan.page.page(text) == text, "run `python -m bench.plan.page`"


def test_serving_page_shows_its_results() -> None:
    profile, rows = (
        json.loads(path.read_text()) for path in (bench.serving.page.PROFILE, bench.serving.page.ROWS)
    )
    text = bench.serving.page.PAGE.read_text()
    assert bench.serving.page.page(text, profile, rows) == text, "run `python -m bench.serving.page`"
    assert bench.serving.profile.PICTURE.stat().st_size < 200_000


def test_operator_list_is_made_of_the_docstrings() -> None:
    text = operator_page.PAGE.read_text()
    assert operator_page.page(text) == text, "run `python -m livectr.operator_page`"


def test_the_table_of_values_is_made_of_the_code() -> None:
    text = values_page.PAGE.read_text()
    assert values_page.page(text) == text, "run `python -m livectr.values_page`"


def test_operator_list_shows_names_signatures_and_text_as_written() -> None:
    listed = operator_page.listing()
    assert "#### `frequency(x, *, width=32768, depth=4)`\n\nCount of examples" in listed
    assert "int64, or list\\<int64> if" in listed  # in HTML <int64> would be a tag, and not be seen
    assert "```text\nnumber → number      rounded" in listed


def test_an_operator_without_a_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livectr.ingest.operators, "__all__", [*livectr.ingest.operators.__all__, "recent"])
    monkeypatch.setattr(livectr.ingest.operators, "recent", len, raising=False)
    with pytest.raises(ValueError, match="differ in recent"):
        operator_page.listing()


def test_every_test_that_a_page_names_exists() -> None:
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
            source = ROOT / file
            assert source.is_file(), f"{page.name} names {file}"
            assert not name or f"def {name}(" in source.read_text(), f"{page.name} names {file}::{name}"


FOLDERS = "bench|docs|examples|ingest|k8s|kernels|livectr|models|protos|serving|tests|trainer"
PATH = re.compile(rf"(?<![\w/.:-])(?!examples/s\b|livectr/(?:serve|train|gpu)\b)((?:{FOLDERS})/[\w/.-]*)")
"""A path from the repository's root; `examples/s` is a unit, `livectr/serve` the name of an image."""


def test_every_path_that_a_page_names_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT)} names {path}"
        for page in PAGES
        for path in PATH.findall(re.sub(r"\]\([^)]*\)", "]", page.read_text()))
        if not (ROOT / path.rstrip(".-")).exists()
    ]
    assert not missing, missing


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    names = {f"livectr.{name}" for name in livectr.__all__}
    names |= {f"livectr.evaluation.{name}" for name in livectr.evaluation.__all__}
    names |= {f"livectr.models.{name}" for name in livectr.models.__all__}
    names -= {"livectr.__version__", "livectr.evaluation", "livectr.models", "livectr.ops"}
    assert not {name for name in names if f"::: {name}\n" not in page}
