"""k8s/digests.sh: every image of an overlay by digest, after the overlay's own names and tags."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import K8S, OVERLAYS, containers, kubectl, moved, pods, render

SCRIPT = K8S / "digests.sh"
CRANE = """\
#!/bin/sh
case "$2" in *nowhere*) echo MANIFEST_UNKNOWN; exit 1 ;; esac
printf sha256:; printf %s "$2" | sha256sum | cut -c1-64
"""
"""Stands for a registry, which the tests do not reach: the digest of an image is the hash of its name."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with a crane and the kubectl of the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "crane").write_text(CRANE)
    (folder / "crane").chmod(0o755)
    (folder / "kubectl").symlink_to(kubectl())
    return f"{folder}:{os.environ['PATH']}"


def pin(path: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], env=os.environ | {"PATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["local", "gang"])
def test_all_images_have_the_digests_of_their_tags(path: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    moved(OVERLAYS[name], folder, "livectr")
    file = folder / "kustomization.yaml"
    overlay = yaml.safe_load(file.read_text())
    own = {"name": "livectr/serve", "newName": "registry.example.com:5000/livectr/serve"}
    overlay["images"] = [*overlay.get("images", []), own]
    file.write_text(yaml.safe_dump(overlay))
    done = pin(path, folder, folder / "digests")
    assert done.returncode == 0, done.stderr
    file.write_text(yaml.safe_dump(overlay | {"transformers": [*overlay["transformers"], "digests"]}))
    found = set(re.findall(r"image: (\S+)", yaml.safe_dump_all(render(folder))))
    wanted = {c["image"] for _, template in pods(name) for c in containers(template)}
    assert {image.partition("@")[0].replace("registry.example.com:5000/", "") for image in found} == wanted
    for image in found:
        tagged, _, digest = image.partition("@")
        assert digest == "sha256:" + hashlib.sha256(tagged.encode()).hexdigest()


def test_an_image_that_no_registry_has_ends_it(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    moved(OVERLAYS["local"], folder, "livectr")
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    overlay["images"] = [{"name": "livectr/serve", "newName": "nowhere/serve"}]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = pin(path, folder, folder / "digests")
    assert done.returncode != 0 and "nowhere/serve" in done.stderr
    assert not (folder / "digests").exists()
