"""Configuration files of the components, out of the templates in parts/."""

from __future__ import annotations

from pathlib import Path
from string import Template
from textwrap import indent

from paths import CGROUP, CONTAINERD, DNS, NODE, NODE_IP, PARTS, PKI, PODS, RUN, STORAGE_CLASS

_VALUES = {
    "run": RUN,
    "pki": PKI,
    "containerd": CONTAINERD,
    "node": NODE,
    "node_ip": NODE_IP,
    "pods": PODS,
    "dns": DNS,
    "cgroup": CGROUP,
    "corefile": indent((PARTS / "Corefile").read_text(), " " * 4),
}


def make() -> None:
    """Write all files under RUN."""
    for folder in ("cni/net.d", "kubelet", "etcd", "podlogs"):
        (RUN / folder).mkdir(parents=True, exist_ok=True)
    _fill("cni.json", RUN / "cni/net.d/10-lab.conflist")
    for name in ("containerd.toml", "kubelet.yaml", "kube-proxy.yaml", "system.yaml"):
        _fill(name, RUN / name)
    (RUN / "resolv.conf").write_text("")  # pods ask the cluster's name server, and that asks nobody


def volume(number: int) -> str:
    """Manifest of a PersistentVolume."""
    text = (PARTS / "volume.yaml").read_text()
    return Template(text).substitute(number=number, storage_class=STORAGE_CLASS)


def _fill(name: str, target: Path) -> None:
    target.write_text(Template((PARTS / name).read_text()).substitute(_VALUES))
