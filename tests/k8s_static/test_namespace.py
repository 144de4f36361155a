"""Any namespace: an overlay says its own, and nothing of it, or of its certificates, is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import K8S, OVERLAYS, Manifest, moved, render

OTHER = "ads-eu"
CLUSTER_WIDE = {"Namespace", "PriorityClass", "StorageClass"}


def strays(rendered: list[Manifest]) -> list[str]:
    """Objects that are not in the other namespace, or name the usual one."""
    found = []
    for manifest in rendered:
        title, text = f"{manifest['kind']}/{manifest['metadata']['name']}", yaml.safe_dump(manifest)
        home = OTHER if manifest["kind"] not in CLUSTER_WIDE else None
        if manifest["metadata"].get("namespace") != home or "livectr.svc" in text:
            found.append(title)
        if manifest["kind"] == "Namespace" and manifest["metadata"]["name"] != OTHER:
            found.append(title)
        if any(name.endswith(".livectr") for name in manifest.get("spec", {}).get("dnsNames", ())):
            found.append(title)
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_moves_to_another_namespace_by_one_line(name: str, tmp_path: Path) -> None:
    rendered = render(moved(OVERLAYS[name], tmp_path, OTHER))
    assert not strays(rendered)
    for manifest in rendered:
        if manifest["metadata"]["name"] == "rank-tls":
            assert {f"rank.{OTHER}.svc", f"rank-pods.{OTHER}.svc.cluster.local", "rank"} <= set(
                manifest["spec"]["dnsNames"]
            )


def test_every_component_is_in_an_overlay() -> None:
    """So the check above sees each of them."""
    used = set()
    for overlay in OVERLAYS.values():
        found = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        used |= {(overlay / each).resolve() for each in found.get("components", [])}
    assert {path.parent for path in K8S.glob("components/*/kustomization.yaml")} <= used


def test_a_stray_is_found(tmp_path: Path) -> None:
    folder = moved(OVERLAYS["strimzi-tls"], tmp_path, OTHER)
    found = yaml.safe_load((folder / "kustomization.yaml").read_text())
    del found["transformers"]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(found))
    assert {"Certificate/rank-tls", "Certificate/valkey-tls"} <= set(strays(render(folder)))
