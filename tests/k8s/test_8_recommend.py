"""Recommend servers beside the deployment, by the component `recommend`: a funnel in one call."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml

from k8s.demo import OVERLAY, ROOT, Cluster
from tests.k8s.report import note
from tests.k8s.scrape import prometheus, target_health
from tests.waiting import until

WITH_RECOMMEND = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: livectr
resources:
  - {local}
components:
  - {components}/recommend
patches:
  - target:
      kind: Deployment
      name: recommend
    patch: |
      - op: replace
        path: /spec/template/spec/containers/0/resources/requests
        value: {{cpu: 100m, memory: 512Mi, ephemeral-storage: 64Mi}}
  - target:
      kind: HorizontalPodAutoscaler
      name: recommend
    patch: |
      - op: replace
        path: /spec/minReplicas
        value: 1
      - op: replace
        path: /spec/maxReplicas
        value: 1
"""
"""One small pod: the node of the lab is full."""
FUNNEL = ("livectr", "query", "recommend", "--server", "recommend:50051", "--top-k", "5", "--prerank-k", "50",
          "--context", "user_id=42", "page=search", "position=1", "query=new books",
          'context={"device": {"os": "ios"}}', "--json")  # fmt: skip


@pytest.fixture(scope="module")
def recommending(deployed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Cluster with a recommend server; policies and targets for it are in the local overlay."""
    folder = tmp_path_factory.mktemp("recommend")
    local = os.path.relpath(OVERLAY, folder.resolve())
    components = os.path.relpath(ROOT / "k8s" / "components", folder.resolve())
    (folder / "kustomization.yaml").write_text(WITH_RECOMMEND.format(local=local, components=components))
    command = [deployed.program, "kustomize", str(folder)]
    rendered = subprocess.run(command, env=deployed.variables, check=True, capture_output=True, text=True)
    wanted = [
        each
        for each in yaml.safe_load_all(rendered.stdout)
        if each["metadata"]["name"].startswith("recommend") or "livectr.toml" in each.get("data", {})
    ]
    own = [each for each in wanted if each["kind"] != "ConfigMap"]  # the settings may be those of others
    began = time.monotonic()
    words = ("apply", "--server-side", "--force-conflicts", "--filename=-")
    deployed.kubectl(*words, text=yaml.safe_dump_all(wanted))
    deployed.wait(600)
    note("a recommend server is ready after its apply", time.monotonic() - began)
    yield deployed
    deployed.kubectl("delete", "--timeout=120s", "--filename=-", text=yaml.safe_dump_all(own))
    deployed.kubectl(
        "wait", "--for=delete", "--timeout=120s", "pod", "--selector=app.kubernetes.io/name=recommend"
    )


def test_a_funnel_in_one_call(recommending: Cluster) -> None:
    """Asked by the client's pod: the policies let it through."""
    answer = json.loads(recommending.kubectl("exec", "deployment/client", "--", *FUNNEL))
    found = answer["results"]
    assert len(found) == 5 and all(0 < row["pctr"] < 1 for row in found)


def test_prometheus_finds_it(recommending: Cluster) -> None:
    def found() -> list[str]:
        with prometheus(recommending) as address:
            return target_health(address, "recommend")

    until(found, equals=["up"], patience_s=120, despite=OSError, turn=lambda: time.sleep(2))
