"""Manifests before kube-score and checkov: nothing is found but what skips.yaml gives a reason for.

These checks need no cluster: `make check` runs checkov's, `make test-k8s` kube-score's.
"""

from __future__ import annotations

import copy

import pytest

from tests.k8s.scores import TOOLS, Finding, skips
from tests.k8s_static.rendering import OVERLAYS, Manifest, manifests

SPOILED = "spoiled"
BESIDE = {"canary": "local"}
"""Overlay → the one that it is applied beside, and whose policies and Services it shares."""


def spoiled() -> list[Manifest]:
    """`production` with rank servers that are privileged and have no limits."""
    found = copy.deepcopy(list(manifests("production")))
    (rank,) = (m for m in found if m["kind"] == "Deployment" and m["metadata"]["name"] == "rank")
    (server,) = rank["spec"]["template"]["spec"]["containers"]
    server["securityContext"]["privileged"] = True
    del server["resources"]["limits"]
    return found


@pytest.fixture(scope="module", params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    """Name of a tool."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def findings(tool: str, tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """All that the tool finds in every overlay, and in a spoiled one."""
    overlays = {
        name: [*(manifests(BESIDE[name]) if name in BESIDE else ()), *manifests(name)] for name in OVERLAYS
    }
    return list(TOOLS[tool](overlays | {SPOILED: spoiled()}, tmp_path_factory.mktemp("scores")))


def faults(tool: str, findings: list[Finding]) -> set[Finding]:
    """Findings that no skip covers."""
    return {finding for finding in findings if not any(skip.covers(finding) for skip in skips(tool))}


def test_manifests_have_no_fault(tool: str, findings: list[Finding]) -> None:
    wrong = sorted(str(fault) for fault in faults(tool, findings) if fault.overlay != SPOILED)
    assert not wrong, "\n".join(wrong)


def test_every_skip_is_needed(tool: str, findings: list[Finding]) -> None:
    """A reason that outlives its finding would hide the next one."""
    honest = [finding for finding in findings if finding.overlay != SPOILED]
    idle = [skip for skip in skips(tool) if not any(skip.covers(finding) for finding in honest)]
    assert not idle, idle


def test_a_spoiled_manifest_is_found(tool: str, findings: list[Finding]) -> None:
    found = {f.check for f in faults(tool, findings) if (f.overlay, f.item) == (SPOILED, "Deployment/rank")}
    privileged_and_unlimited = {
        "kube-score": {"container-security-context-privileged", "container-resources"},
        "checkov": {"CKV_K8S_16", "CKV_K8S_13"},
    }
    assert privileged_and_unlimited[tool] <= found, found
