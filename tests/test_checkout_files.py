"""Files that hosts, hooks and editors read are what those programs take, and name what is there."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def hooks() -> list[dict[str, Any]]:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    found: list[dict[str, Any]] = repo["hooks"]
    return found


def test_hooks_are_the_steps_of_make_check_which_ci_runs() -> None:
    (steps,) = re.findall(r"^check:([^#\n]*)", makefile(), re.MULTILINE)
    assert [hook["entry"] for hook in hooks()] == [f"make {step}" for step in steps.split()]
    assert "make check\n" in (ROOT / ".ci" / "run").read_text()


def test_hooks_look_at_the_whole_checkout() -> None:
    assert len({hook["id"] for hook in hooks()}) == len(hooks()) >= 5
    for hook in hooks():
        assert hook["language"] == "system" and hook["always_run"] and not hook["pass_filenames"]
        assert hook["name"]


def test_steps_of_make_check_exist_and_are_no_files() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile(), re.MULTILINE)
    for hook in hooks():
        step = hook["entry"].removeprefix("make ")
        assert re.search(rf"^{step}: setup\n\t", makefile(), re.MULTILINE), step
        assert step in phony.split()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_what_github_takes(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert fields and len({field["id"] for field in fields}) == len(fields)
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert {path.stem for path in FORMS} == {"bug", "feature", "question"}
    chooser = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert chooser == {"blank_issues_enabled": False}


def test_the_devcontainer_sets_up_as_a_contributor_does() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    (target,) = re.fullmatch(r"make (\w+)", container["postCreateCommand"]).groups()  # type: ignore[union-attr]
    assert re.search(rf"^{target}: ", makefile(), re.MULTILINE)
    assert re.search(r"python:3\.1[1-9]\b", container["image"])
    assert container["remoteUser"] == "root", "setup.sh installs Debian packages"


def test_owners_are_of_paths_that_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    for pattern, *owners in rules:
        assert owners and all(fnmatch(owner, "@*/*") for owner in owners), pattern
        assert pattern == "*" or (ROOT / pattern.strip("/")).is_dir(), pattern
