"""The images: no root, no compiler in `serve`, no writes to the root file system, a bill of materials."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from k8s.demo import Cluster
from tests.k8s.probes import IMAGE, SECURITY

TRAIN = IMAGE.replace("serve", "train")


def name_of(image: str) -> str:
    return f"image-{image.rpartition('/')[2].partition(':')[0]}"


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> Iterator[Cluster]:
    """A pod of each image, whose root file system is read-only, with an empty /tmp."""
    items = []
    for image in (IMAGE, TRAIN):
        container = {
            "name": "main", "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", "import time; time.sleep(1e6)"],
            "securityContext": SECURITY, "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }  # fmt: skip
        spec = {
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        }
        about = {"name": name_of(image), "namespace": "default"}
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "--namespace=default", "--filename=-", text=content)
    names = [f"pod/{name_of(image)}" for image in (IMAGE, TRAIN)]
    cluster.kubectl("wait", "--namespace=default", "--for=condition=Ready", "--timeout=300s", *names)
    yield cluster
    cluster.kubectl("delete", "--namespace=default", "--wait=false", *names)


def run(cluster: Cluster, image: str, *command: str) -> str:
    """Output of a command in the pod of an image."""
    return cluster.kubectl("exec", "--namespace=default", name_of(image), "--", *command)


@pytest.mark.parametrize("image", [IMAGE, TRAIN])
def test_images_run_without_root_and_know_their_version(images: Cluster, image: str) -> None:
    assert "livectr 0.2.0" in run(images, image, "livectr", "--version")
    assert run(images, image, "id", "-u").strip() == "10001"


def test_serve_has_no_compiler(images: Cluster) -> None:
    assert "none" in run(images, IMAGE, "sh", "-c", "command -v c++ g++ gcc cc clang || echo none")
    assert "g++" in run(images, TRAIN, "sh", "-c", "command -v g++ || echo none")


def test_a_pipeline_loads_from_prebuilt_kernels(images: Cluster) -> None:
    """`inspect` compiles the features of the pipeline, or finds them compiled."""
    file = "import livectr.examples.display_ads as e; print(list(e.__path__)[0])"
    command = f"livectr inspect --pipeline \"$(python3 -c '{file}')/pipeline.py\""
    assert "fingerprint" in run(images, IMAGE, "sh", "-c", command)


@pytest.mark.parametrize(("image", "file"), [(IMAGE, "serve"), (TRAIN, "train")])
def test_a_bill_names_the_packages(images: Cluster, image: str, file: str) -> None:
    bill = json.loads(run(images, image, "cat", f"/opt/livectr/{file}.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    names = {part["name"] for part in bill["components"]}
    assert {"torch", "grpcio", "pyarrow", "kafka-python"} <= names  # servers write the served log to Kafka
    assert ("matplotlib" in names) == (file == "train")
