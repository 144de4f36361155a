"""Versions, addresses and folders of the lab."""

from __future__ import annotations

import os
from pathlib import Path

KUBERNETES = "1.33.13"
METRICS_SERVER = "0.9.0"
COREDNS = "1.12.4"

NODE = "lab0"
NODE_IP = "10.250.0.1"  # in the namespace
HOST_IP = "10.250.0.254"  # on this machine: the other end of the veth pair
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/24"
API_SERVICE = "10.96.0.1"
DNS = "10.96.0.10"
VOLUMES = 8
"""PersistentVolumes, each once claimed: `down` empties them."""
STORAGE_CLASS = "livectr-retain"
VETH = "livectr-lab"
CGROUP = "livectr-lab"

HERE = Path(__file__).resolve().parent
PARTS = HERE / "parts"
"""Sources and templates: they are data of the lab, not modules."""
HOME = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr") / "k8s-lab"
BIN = HOME / "bin"
SOURCES = HOME / "src"
IMAGES = HOME / "images"
"""Archives that are imported at each start."""
CONTAINERD = HOME / "containerd"
"""Images of containerd. It outlives `down`, so that a later start unpacks nothing."""
RUN = HOME / "run"
"""State of the running cluster; `down` removes it."""
PKI = RUN / "pki"
LOGS = HOME / "logs"
SOCKET = RUN / "containerd.sock"
KUBECONFIG = PKI / "admin.conf"
