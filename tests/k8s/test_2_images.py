"""The images: no root, no compiler in `serve`, no writes to the root file system, a bill of materials."""

from __future__ import annotations

import json

import pytest

from k8s.demo import Cluster
from tests.k8s.test_1_lab import IMAGE, SECURITY

TRAIN = IMAGE.replace("serve", "train")


def run(cluster: Cluster, image: str, *command: str) -> str:
    """Output of a command in a pod whose root file system is read-only, with an empty /tmp and no network."""
    name = f"image-{abs(hash((image, command))) % 10**8}"
    container = {
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command),
        "securityContext": SECURITY, "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    spec = {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}], "restartPolicy": "Never"}
    words = [
        "run",
        name,
        f"--image={image}",
        "--namespace=default",
        "--restart=Never",
        "--rm",
        "--attach",
        "--quiet",
    ]
    return cluster.kubectl(*words, f"--overrides={json.dumps({'apiVersion': 'v1', 'spec': spec})}")


@pytest.mark.parametrize("image", [IMAGE, TRAIN])
def test_images_run_without_root_and_know_their_version(cluster: Cluster, image: str) -> None:
    assert "livectr 0.1.0" in run(cluster, image, "livectr", "--version")
    assert run(cluster, image, "id", "-u").strip() == "10001"


def test_serve_has_no_compiler(cluster: Cluster) -> None:
    assert "none" in run(cluster, IMAGE, "sh", "-c", "command -v c++ g++ gcc cc clang || echo none")
    assert "g++" in run(cluster, TRAIN, "sh", "-c", "command -v g++ || echo none")


def test_a_pipeline_loads_from_prebuilt_kernels(cluster: Cluster) -> None:
    """`inspect` compiles the features of the pipeline, or finds them compiled."""
    file = "import livectr.examples.display_ads as e; print(list(e.__path__)[0])"
    command = f"livectr inspect --pipeline \"$(python3 -c '{file}')/pipeline.py\""
    assert "fingerprint" in run(cluster, IMAGE, "sh", "-c", command)


@pytest.mark.parametrize(("image", "file"), [(IMAGE, "serve"), (TRAIN, "train")])
def test_a_bill_names_the_packages(cluster: Cluster, image: str, file: str) -> None:
    bill = json.loads(run(cluster, image, "cat", f"/opt/livectr/{file}.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    names = {part["name"] for part in bill["components"]}
    assert {"torch", "grpcio", "pyarrow"} <= names
    assert ("kafka-python" in names) == (file == "train")
