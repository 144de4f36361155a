"""System parts from Debian, and Kubernetes, CoreDNS and metrics-server compiled from their Go modules.

Go's proxy is the one source that every machine with Go can reach. The first build takes 8 to 18 minutes on
2 cores; later calls find the files.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import images
from paths import BIN, COREDNS, IMAGES, KUBERNETES, METRICS_SERVER, PARTS, SOURCES
from shell import LabError, run

PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "etcd": "etcd-server",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "socat": "socat",
    "ethtool": "ethtool",
    "gcc": "gcc",
    "unshare": "util-linux",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
"""Program → Debian's package."""
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
GO = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
ENVIRONMENT_PATH = f"{BIN}:/usr/local/sbin:/usr/sbin:/sbin"


def build_all() -> None:
    """Install and compile whatever is missing. Raises LabError when a part cannot be had."""
    os.environ["PATH"] = f"{ENVIRONMENT_PATH}:{os.environ['PATH']}"
    BIN.mkdir(parents=True, exist_ok=True)
    _system_parts()
    if any(not (BIN / name).exists() for name in COMPONENTS):
        _kubernetes()
    if not (BIN / "kubectl").exists():
        _kubectl()
    if not (BIN / "metrics-server").exists():
        _module("metrics-server", "sigs.k8s.io/metrics-server", METRICS_SERVER, "./cmd/metrics-server")
    if not (BIN / "coredns").exists():
        _coredns()
    if not (IMAGES / "pause.tar").exists():
        _pause()
    if not (IMAGES / "coredns.tar").exists():
        images.archive_of_program(BIN / "coredns", "localhost/coredns:lab", IMAGES / "coredns.tar")


def _system_parts() -> None:
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise LabError(f"this machine lacks {', '.join(missing)} (names of Debian packages); install them.")
    print(f"lab: installing {' '.join(missing)}", flush=True)
    run(["apt-get", "update", "-qq"])
    run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
        env={"DEBIAN_FRONTEND": "noninteractive"},
    )


def _go(*words: str, cwd: Path) -> str:
    if shutil.which("go") is None:
        raise LabError("Kubernetes is compiled from its Go modules: install Go 1.24 or newer, or use kind.")
    return run(["nice", "-n", "15", "go", *words], env=GO, cwd=cwd)


def _compile(name: str, package: str, *, cwd: Path, flags: str = "-s -w") -> None:
    began = time.monotonic()
    # The file appears when it is complete: an interrupted build leaves no half program.
    _go("build", "-ldflags", flags, "-o", f"{BIN / name}.new", package, cwd=cwd)
    (BIN / f"{name}.new").rename(BIN / name)
    print(f"lab: {name} compiled in {time.monotonic() - began:.0f} s", flush=True)


def _kubernetes() -> None:
    """Compile the five programs from a module of our own that requires k8s.io/kubernetes.

    Its go.mod replaces its staging modules by folders that the published module lacks. The same modules are
    published as v0.x, so ours replaces them by those.
    """
    home = SOURCES / "kubernetes"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "go.sum").exists():
        print(f"lab: downloading the modules of Kubernetes {KUBERNETES}", flush=True)
        (home / "go.mod").write_text("module lab\n")
        version = f"k8s.io/kubernetes@v{KUBERNETES}"
        _go("mod", "download", version, cwd=home)
        theirs = (Path(run(["go", "env", "GOMODCACHE"]).strip()) / version / "go.mod").read_text()
        staging = re.findall(r"^\s*(k8s\.io/[a-z-]+) => \./staging", theirs, re.MULTILINE)
        language = re.findall(r"^(?:go|godebug) .*|^godebug \((?s:.*?)\)", theirs, re.MULTILINE)
        minor = KUBERNETES.removeprefix("1.")
        lines = ["module lab", *language, f"require k8s.io/kubernetes v{KUBERNETES}"]
        lines += [f"replace {name} => {name} v0.{minor}" for name in staging]
        (home / "go.mod").write_text("\n".join(lines) + "\n")
        tools = "\n".join(f'import _ "k8s.io/kubernetes/cmd/{name}"' for name in (*COMPONENTS, "kubectl"))
        (home / "tools.go").write_text(f"//go:build tools\n\npackage lab\n\n{tools}\n")
        _go("mod", "tidy", cwd=home)
    stamp = "k8s.io/component-base/version"
    stamped = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": KUBERNETES.split(".")[1]}
    flags = " ".join(["-s -w", *(f"-X {stamp}.{key}={value}" for key, value in stamped.items())])
    for name in COMPONENTS:
        if not (BIN / name).exists():
            _compile(name, f"k8s.io/kubernetes/cmd/{name}", cwd=home, flags=flags)


def _kubectl() -> None:
    """Link the machine's kubectl, or compile one."""
    (BIN / "kubectl").unlink(missing_ok=True)  # a link to a virtual environment that is gone
    found = shutil.which("kubectl")
    if found:
        (BIN / "kubectl").symlink_to(found)
    else:
        _compile("kubectl", "k8s.io/kubernetes/cmd/kubectl", cwd=SOURCES / "kubernetes")


def _module(name: str, module: str, version: str, package: str) -> None:
    """Compile a program of a module, in a module of our own."""
    home = SOURCES / name
    home.mkdir(parents=True, exist_ok=True)
    (home / "go.mod").write_text(f"module lab\n\nrequire {module} v{version}\n")
    _compile(name, package.replace(".", module, 1), cwd=home)


def _coredns() -> None:
    """Compile CoreDNS with the plugins of our Corefile only: a third of the modules."""
    home = SOURCES / "coredns"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(PARTS / "coredns.go", home / "main.go")
    (home / "go.mod").write_text(f"module lab\n\nrequire github.com/coredns/coredns v{COREDNS}\n")
    _go("mod", "tidy", cwd=home)
    _compile("coredns", ".", cwd=home)


def _pause() -> None:
    """Make the image of the pod's first process: a static program and nothing else."""
    home = SOURCES / "pause"
    home.mkdir(parents=True, exist_ok=True)
    run(["gcc", "-Os", "-static", "-s", "-o", home / "pause", PARTS / "pause.c"])
    images.archive_of_program(home / "pause", "localhost/pause:lab", IMAGES / "pause.tar")
