"""Start, end and look at the cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import configs
import pki
from paths import BIN, CGROUP, HERE, HOST_IP, KUBECONFIG, LOGS, NODE, NODE_IP, PODS, RUN, SERVICES, VETH
from shell import LabError, run, succeeds, wait_until

_PROCESS = RUN / "process"
"""Process id of the first process of the namespaces, and its start time: an id alone may be used again."""
_CGROUPS = Path("/sys/fs/cgroup")


def up() -> None:
    """Start the cluster and wait until its node is ready. Does nothing where it runs."""
    if process() is not None:
        print(f"lab: already up; export KUBECONFIG={KUBECONFIG}")
        return
    began = time.monotonic()
    down()
    for folder in (RUN, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    pki.make()
    configs.make()
    try:
        _start()
        _wait_ready()
    except BaseException:
        down()
        raise
    print(f"lab: node ready after {time.monotonic() - began:.0f} s; export KUBECONFIG={KUBECONFIG}")


def down() -> None:
    """End every process of the cluster and remove its state; images and programs stay in the cache."""
    pid = process()
    if pid is not None:
        # The kernel ends all others of the namespace with its first process.
        os.kill(pid, signal.SIGKILL)
        with suppress(LabError):
            wait_until("the end of the processes", lambda: process() is None, timeout_s=10)
    for file in sorted(_CGROUPS.glob(f"**/{CGROUP}/**/cgroup.procs")):
        with suppress(OSError):
            for line in file.read_text().split():
                os.kill(int(line), signal.SIGKILL)
    for folder in sorted(_CGROUPS.glob(f"**/{CGROUP}/**/"), reverse=True):
        with suppress(OSError):  # a process may take a moment to leave it; the next start uses it again
            folder.rmdir()
    if succeeds(["ip", "link", "show", VETH]):
        run(["ip", "link", "delete", VETH])
    shutil.rmtree(RUN, ignore_errors=True)


def process() -> int | None:
    """Process id of the running cluster's first process, None where none runs."""
    with suppress(OSError, ValueError):
        pid, started = map(int, _PROCESS.read_text().split())
        if _start_time(pid) == started:
            return pid
    return None


def environment() -> dict[str, str]:
    """Variables for clients. Raises LabError where no cluster runs."""
    if process() is None:
        raise LabError("the lab is down; `lab.py up` starts it.")
    return {"KUBECONFIG": str(KUBECONFIG), "PATH": f"{BIN}:{os.environ['PATH']}"}


def enter(words: list[str]) -> NoReturn:
    """Become a command inside the namespaces. Raises LabError where no cluster runs."""
    os.environ.update(environment())
    os.execvp("nsenter", ["nsenter", f"--target={process()}", "--net", "--mount", "--pid", "--", *words])


def status() -> int:
    """Print nodes and pods; 3 where no cluster runs."""
    if process() is None:
        print("lab: down")
        return 3
    print(f"lab: up; export KUBECONFIG={KUBECONFIG}", flush=True)
    kubectl = ["kubectl", f"--kubeconfig={KUBECONFIG}", "get", "nodes,pods", "--all-namespaces"]
    return subprocess.run(kubectl).returncode


def _start() -> None:
    """Make the namespaces, their first process, and a link to this machine."""
    with (LOGS / "node.log").open("wb") as log:
        outer = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=private", "--pid", "--fork", "--mount-proc",
             sys.executable, str(HERE / "lab.py"), "node"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    wait_until("the namespaces", lambda: bool(children.read_text().split()), timeout_s=10)
    pid = int(children.read_text().split()[0])
    _PROCESS.write_text(f"{pid} {_start_time(pid)}\n")
    run(["ip", "link", "add", VETH, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    run(["ip", "address", "add", f"{HOST_IP}/24", "dev", VETH])
    run(["ip", "link", "set", VETH, "up"])
    for network in (SERVICES, PODS):
        run(["ip", "route", "replace", network, "via", NODE_IP])


def _wait_ready() -> None:
    kubectl = ["kubectl", f"--kubeconfig={KUBECONFIG}"]

    def registered() -> bool:
        if process() is None:
            raise LabError(f"the node ended while starting:\n{(LOGS / 'node.log').read_text()[-2000:]}")
        return succeeds([*kubectl, "get", "node", NODE])

    wait_until("the node", registered, timeout_s=300, log=LOGS / "node.log")
    run([*kubectl, "wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=120s"])
    run([*kubectl, "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"])


def _start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot; raises OSError where there is no such process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] == "Z":
        raise ProcessLookupError(pid)
    return int(fields[19])
