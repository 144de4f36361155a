"""Components for servers: recommendations, features of pictures, and the log of what was served."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

from livectr.config.sources import from_environment
from livectr.serving.options import check_served_log
from tests.k8s_static.rendering import Manifest, of_kind, only, pods

ROLES = ("rank", "prerank", "recommend")


def server(overlay: str, role: str) -> tuple[Manifest, Manifest]:
    """Pod template of a Deployment and its container."""
    template = only(overlay, "Deployment", role)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return template, container


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_the_command_is_that_of_a_recommend_server() -> None:
    _, container = server("recommend", "recommend")
    assert container["command"][:3] == ["livectr", "serve", "recommend"]


@pytest.mark.parametrize("role", ROLES)
def test_servers_read_the_features_that_encode_makes(role: str) -> None:
    template, container = server("recommend", role)
    folder = dict(parse_qsl(from_environment(variables(container))["content"], separator=","))["images"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "content"]
    (volume,) = [v for v in template["spec"]["volumes"] if v["name"] == "content"]
    encode = dict(pods("recommend"))["CronJob/encode"]["spec"]
    (work,) = encode["containers"]
    (made,) = [word.removeprefix("--out=") for word in work["command"] if word.startswith("--out=")]
    (written,) = [m["mountPath"] for m in work["volumeMounts"] if m["name"] == "offline"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in encode["volumes"]
        if "persistentVolumeClaim" in v
    }
    assert volume["persistentVolumeClaim"]["claimName"] == claims["offline"] and mount["readOnly"] is True
    assert made.removeprefix(written) == folder.removeprefix(mount["mountPath"])


def test_the_trainer_reads_them_too_and_may_add_to_them() -> None:
    stateful = only("recommend", "StatefulSet", "trainer")["spec"]["template"]["spec"]
    (job,) = only("gang", "JobSet", "trainer")["spec"]["replicatedJobs"]
    for spec in (stateful, job["template"]["spec"]["template"]["spec"]):
        (container,) = spec["containers"]
        assert variables(container)["LIVECTR_CONTENT"] == "images=/content/images"
        assert {"name": "content", "mountPath": "/content"} in container["volumeMounts"]
        assert {"name": "content", "persistentVolumeClaim": {"claimName": "offline"}} in spec["volumes"]


@pytest.mark.parametrize("overlay", ["recommend", "strimzi-tls"])
def test_servers_that_rank_log_what_they_serve(overlay: str) -> None:
    """To a topic that a producer reaches; the label is what policies of Kafka ask for."""
    for role in ROLES:
        template, container = server(overlay, role)
        told = variables(container)
        labelled = template["metadata"]["labels"].get("livectr.dev/producer") == "true"
        assert labelled == ("LIVECTR_SERVED_LOG" in told) == (role != "prerank")
        if labelled:
            check_served_log(told["LIVECTR_SERVED_LOG"])
            assert 0 < float(told["LIVECTR_SERVED_SHARE"]) <= 1


def test_with_strimzi_they_log_in_over_tls() -> None:
    _, container = server("strimzi-tls", "recommend")
    address = urlsplit(variables(container)["LIVECTR_SERVED_LOG"])
    asked = dict(parse_qsl(address.query))
    assert asked["user"] in {m["metadata"]["name"] for m in of_kind("strimzi-tls", "KafkaUser")}
    assert address.path.removeprefix("/") in {
        m["metadata"]["name"] for m in of_kind("strimzi-tls", "KafkaTopic")
    }
    mounts = {m["mountPath"] for m in container["volumeMounts"]}
    assert {asked["ca"].rpartition("/")[0], asked["password_file"].rpartition("/")[0]} <= mounts
