"""The local overlay: from apply to an answer."""

from __future__ import annotations

import subprocess
import time

from k8s.demo import OVERLAY, ROOT, Cluster
from tests.k8s.report import note


def test_from_apply_to_a_click_probability(deployed: Cluster, applied: float) -> None:
    """With the images on the node; the report has the seconds (goal: 300)."""
    pctr = deployed.ask()
    seconds = time.monotonic() - applied
    note("first click probability after the apply", seconds)
    assert len(pctr) == 3 and all(0 < value < 1 for value in pctr) and len(set(pctr)) == 3


def test_every_kind_of_pod_runs(deployed: Cluster) -> None:
    jsonpath = (
        r"{range .items[?(@.status.phase=='Running')]}{.metadata.labels.app\.kubernetes\.io/name}{'\n'}{end}"
    )
    names = deployed.kubectl("get", "pods", f"--output=jsonpath={jsonpath}").split()
    want = {"trainer": 2, "rank": 2, "prerank": 2, "kafka": 1, "prometheus": 1}
    found = {kind: names.count(kind) for kind in want}
    # The autoscaler may have taken the start of a server for load.
    assert all(found[kind] in (count, count + kind.endswith("rank")) for kind, count in want.items()), found


def test_the_check_of_what_is_deployed_changes_nothing(deployed: Cluster) -> None:
    """k8s/apply.sh asks the API server about every object of the overlay."""
    words = [str(ROOT / "k8s" / "apply.sh"), "--check", str(OVERLAY)]
    done = subprocess.run(words, env=deployed.variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) > 30 and all("(server dry run)" in line for line in told)
