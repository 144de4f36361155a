"""Results that are committed: each names the commit that it measured, and this history has that commit."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def commits(value: Any) -> Iterator[str]:
    """Every value of a key `commit`, however deep."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from commits(item)
    if isinstance(value, dict) and "commit" in value:
        yield str(value["commit"])


def test_each_result_is_of_a_commit_of_this_history() -> None:
    listed = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    history = listed.stdout.split()
    wrong = {}
    for path in sorted((ROOT / "bench" / "results").rglob("*.json")):
        named = set(commits(json.loads(path.read_text())))
        known = {name for name in named if any(commit.startswith(name) for commit in history)}
        if not named or named != known:
            wrong[path.name] = sorted(named - known) or "no commit"
    assert not wrong, f"run these again on a committed tree: {wrong}"
