"""The local overlay: from apply to an answer."""

from __future__ import annotations

import time

from k8s.demo import Cluster
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
