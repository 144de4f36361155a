"""First process of the namespaces: it starts the components in order and reaps orphans until it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import configs
import images
from paths import (
    CGROUP,
    HERE,
    HOST_IP,
    IMAGES,
    KUBECONFIG,
    LOGS,
    NODE,
    NODE_IP,
    PKI,
    RUN,
    SERVICES,
    SOCKET,
    VOLUMES,
)  # fmt: skip
from shell import run, succeeds, wait_until

_CGROUPS = Path("/sys/fs/cgroup")
_running: dict[int, tuple[str, list[str]]] = {}
"""Process id → component and its words."""


def run_component(name: str, words: Sequence[str]) -> None:
    """Start a component; its output is the file NAME.log."""
    with (LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    _running[process.pid] = name, list(words)


def start() -> None:
    """Start everything; returns when the node is registered with the API server.

    1. network, mounts and control groups of the namespaces
    2. etcd and containerd
    3. API server, then what talks to it
    4. the pods' images, then the kubelet
    """
    _network()
    _mounts()
    _cgroups()
    run_component("etcd", [
        "etcd", f"--data-dir={RUN}/etcd", "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ])  # fmt: skip
    run_component("containerd", ["containerd", "--config", f"{RUN}/containerd.toml"])
    run_component("kube-apiserver", _api_server())
    ready = ["kubectl", f"--kubeconfig={KUBECONFIG}", "get", "--raw", "/readyz"]
    wait_until("the API server", lambda: succeeds(ready), timeout_s=120, log=LOGS / "kube-apiserver.log")
    run_component("kube-controller-manager", _controllers())
    run_component("kube-scheduler", ["kube-scheduler", *_client("scheduler"), "--leader-elect=false"])
    ask = ["ctr", "-a", str(SOCKET), "version"]
    wait_until("containerd", lambda: succeeds(ask), timeout_s=60, log=LOGS / "containerd.log")
    _forget_containers()
    for archive in sorted(IMAGES.glob("*.tar")):
        images.import_image(archive)
    run_component("kubelet", [
        "kubelet", f"--config={RUN}/kubelet.yaml", f"--kubeconfig={PKI}/kubelet.conf",
        f"--root-dir={RUN}/kubelet", f"--cert-dir={PKI}", f"--hostname-override={NODE}",
        f"--node-ip={NODE_IP}",
    ])  # fmt: skip
    run_component("kube-proxy", ["kube-proxy", f"--config={RUN}/kube-proxy.yaml"])
    apply = ["kubectl", f"--kubeconfig={KUBECONFIG}", "apply", "--server-side", "-f", f"{RUN}/system.yaml"]
    run(apply)
    run([*apply[:-1], "-"], text="---\n".join(configs.volume(number) for number in range(VOLUMES)))
    where = [f"--server={NODE_IP}:6443", f"--pki={PKI}"]
    run_component("netpol", [sys.executable, str(HERE / "netpol.py"), *where])
    run_component("metrics-server", [
        "metrics-server", *_client("admin"), "--secure-port=4443", f"--cert-dir={RUN}/metrics-server",
        "--kubelet-preferred-address-types=InternalIP", f"--kubelet-certificate-authority={PKI}/ca.crt",
        "--metric-resolution=10s", "--kubelet-request-timeout=5s",
    ])  # fmt: skip


def run_forever() -> None:
    """Reap every orphan; start a component again that has ended."""
    while True:
        pid, status = os.wait()
        if pid in _running:
            name, words = _running.pop(pid)
            print(f"{name} ended with {os.waitstatus_to_exitcode(status)}; starting it again", flush=True)
            run_component(name, words)


def run_node() -> None:
    """Be the node until it is killed."""
    start()
    print("started", flush=True)
    run_forever()


def _network() -> None:
    run(["ip", "link", "set", "lo", "up"])
    wait_until("the link to this machine", lambda: succeeds(["ip", "link", "show", "eth0"]), timeout_s=20)
    run(["ip", "address", "add", f"{NODE_IP}/24", "dev", "eth0"])
    run(["ip", "link", "set", "eth0", "up"])
    run(["ip", "route", "add", "default", "via", HOST_IP])
    # Frames between pods of the bridge pass nftables too: without it no NetworkPolicy could see them.
    run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"])


def _mounts() -> None:
    # The kubelet insists on three values of the whole machine. It sees files of ours instead.
    for name, value in {
        "vm/overcommit_memory": "1",
        "kernel/panic": "10",
        "kernel/panic_on_oops": "1",
    }.items():
        file = RUN / name.replace("/", ".")
        file.write_text(f"{value}\n")
        run(["mount", "--bind", file, f"/proc/sys/{name}"])
    run(["mount", "--bind", RUN / "resolv.conf", "/etc/resolv.conf"])
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    Path("/run/netns").mkdir()
    # PersistentVolumes have this path on every machine. Pods of any user may write to them.
    for number in range(VOLUMES):
        folder = RUN / "volumes" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    Path("/run/lab").mkdir()
    run(["mount", "--bind", RUN / "volumes", "/run/lab"])


def _cgroups() -> None:
    if (_CGROUPS / "cgroup.controllers").exists():  # version 2: one tree
        (_CGROUPS / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
        (_CGROUPS / CGROUP).mkdir(exist_ok=True)
        return
    for controller in _CGROUPS.iterdir():
        if controller.is_dir() and not controller.is_symlink():
            (controller / CGROUP).mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):  # a new group has none and could run nothing
        (_CGROUPS / "cpuset" / CGROUP / name).write_text((_CGROUPS / "cpuset" / name).read_text())


def _forget_containers() -> None:
    """Remove containers of the last cluster: containerd's images outlive it, and so do they."""
    ctr = ["ctr", "-a", str(SOCKET), "-n", "k8s.io", "containers"]
    if names := run([*ctr, "list", "-q"]).split():
        run([*ctr, "rm", *names])


def _client(name: str) -> list[str]:
    file = f"{PKI}/{name}.conf"
    return [
        f"--{flag}={file}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    ]


def _api_server() -> list[str]:
    return [
        "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={NODE_IP}",
        "--bind-address=0.0.0.0", "--secure-port=6443", f"--service-cluster-ip-range={SERVICES}",
        f"--client-ca-file={PKI}/ca.crt",
        f"--tls-cert-file={PKI}/apiserver.crt", f"--tls-private-key-file={PKI}/apiserver.key",
        f"--service-account-key-file={PKI}/sa.pub", f"--service-account-signing-key-file={PKI}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--kubelet-client-certificate={PKI}/kubelet-client.crt",
        f"--kubelet-client-key={PKI}/kubelet-client.key",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        f"--requestheader-client-ca-file={PKI}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={PKI}/front-proxy.crt",
        f"--proxy-client-key-file={PKI}/front-proxy.key", "--enable-aggregator-routing",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
    ]  # fmt: skip


def _controllers() -> list[str]:
    return [
        "kube-controller-manager", *_client("controllers"), "--leader-elect=false",
        f"--service-account-private-key-file={PKI}/sa.key", f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-signing-cert-file={PKI}/ca.crt", f"--cluster-signing-key-file={PKI}/ca.key",
        "--use-service-account-credentials",
        # Tests wait for the autoscaler: its default periods of minutes are for clusters with real load.
        "--horizontal-pod-autoscaler-sync-period=5s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=5s",
        "--horizontal-pod-autoscaler-cpu-initialization-period=10s",
    ]  # fmt: skip
