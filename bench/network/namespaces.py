"""Network of N ranks on one machine: a namespace each, veth pairs to a bridge, and token buckets (tbf).

    namespace of rank r                     namespace of the bridge
    eth0 10.77.0.<r + 1>  ── veth pair ──   r<r> ── bridge
    tbf: what the rank sends                tbf: what it receives

Namespaces have no names. A process holds each of them open and ends with the pipe to the process that made
the network, also after kill -9; the kernel then removes the namespace with its devices. The machine's own
network, its names and its addresses are not touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from livectr.system.errors import ConfigError

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Program → its Debian package."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # a user's PATH may lack these
DEVICE = "eth0"
BURST_S = 400e-6
"""Time that a bucket holds at its rate: what passes at once after a pause. Late timers cost rate below it."""
PACKET = 32_768
"""Most bytes of a packet before a device cuts it to Ethernet's size. A bucket that cannot hold a packet cuts
it, into 80,000 a second at 1 Gbit/s, which would cost the ranks' cores."""
CONGESTION = "reno"
"""TCP's congestion control: Reno, which every kernel allows in a namespace. BBR, some machines' default,
paces a step by the limits of the steps before it."""
QUEUE_BYTES = 32_000_000
"""Holds all of a step's bytes: a lost packet would cost TCP 200 ms."""


@dataclass(frozen=True)
class Wires:
    """A network, by the processes that hold its namespaces open.

    Attributes:
        bridge: process id of the bridge's namespace
        ranks: process ids of the ranks' namespaces
    """

    bridge: int
    ranks: tuple[int, ...]

    @staticmethod
    def address(rank: int) -> str:
        """IPv4 address of a rank."""
        return f"10.77.0.{rank + 1}"

    @staticmethod
    def parse(text: str) -> Wires:
        """Inverse of `str`."""
        bridge, *ranks = map(int, text.split(","))
        return Wires(bridge, tuple(ranks))

    def __str__(self) -> str:
        return ",".join(map(str, (self.bridge, *self.ranks)))

    def inside(self, rank: int, command: Sequence[str]) -> list[str]:
        """A command line that runs in a rank's namespace."""
        return _inside(self.ranks[rank], command)

    def limit(self, gbit: float | None) -> None:
        """Bound what every rank sends, and what it receives.

        Args:
            gbit: 10⁹ bits a second with Ethernet's, IP's and TCP's headers; None: no limit.
        """
        bucket = ["noqueue"]
        if gbit is not None:
            burst = max(int(gbit * 1e9 / 8 * BURST_S), PACKET + 2000)  # with headers
            bucket = f"tbf rate {round(gbit * 1e6)}kbit burst {burst} limit {QUEUE_BYTES}".split()
        for rank, holder in enumerate(self.ranks):
            for process, device in ((holder, DEVICE), (self.bridge, f"r{rank}")):
                _run(_inside(process, ["tc", "qdisc", "replace", "dev", device, "root", *bucket]))


@contextmanager
def network(ranks: int) -> Iterator[Wires]:
    """A network without limits; afterwards what runs in it is killed, and it is removed.

    Raises:
        ConfigError: programs or rights are missing.
    """
    _check()
    with ExitStack() as holders:
        wires = Wires(_hold(holders), tuple(_hold(holders) for _ in range(ranks)))
        _ip(wires.bridge, "link", "add", "bridge", "type", "bridge")
        _ip(wires.bridge, "link", "set", "bridge", "up")
        for rank, holder in enumerate(wires.ranks):
            pair = ["name", DEVICE, "type", "veth", "peer", "name", f"r{rank}", "netns", str(wires.bridge)]
            _ip(holder, "link", "add", *pair)
            _ip(holder, "address", "add", f"{wires.address(rank)}/24", "dev", DEVICE)
            _ip(holder, "link", "set", DEVICE, "gso_max_size", str(PACKET))
            _run(
                _inside(
                    holder, ["sh", "-c", f"echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control"]
                )
            )
            for device in ("lo", DEVICE):
                _ip(holder, "link", "set", device, "up")
            _ip(wires.bridge, "link", "set", f"r{rank}", "master", "bridge", "up")
        yield wires


def received_and_sent() -> tuple[int, int]:
    """Bytes that this process's namespace has received and sent through `DEVICE`.

    A packet of up to `PACKET` has one header here: `bench.network.predict.FRAMING` adds those of a real wire.
    """
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == DEVICE:
            columns = numbers.split()
            return int(columns[0]), int(columns[8])
    raise RuntimeError(f"no {DEVICE} here: this process is in no rank's namespace")


def _check() -> None:
    """Raise ConfigError for what is missing."""
    if missing := sorted(
        {package for name, package in PACKAGES.items() if not shutil.which(name, path=PATH)}
    ):
        raise ConfigError(f"network namespaces need the Debian packages {', '.join(missing)}; install them")
    if os.geteuid() != 0:
        raise ConfigError(
            "bench network needs root for network namespaces and tc: run it with sudo, or in a container "
            "with the capabilities SYS_ADMIN and NET_ADMIN"
        )


def _hold(stack: ExitStack) -> int:
    """Process id of a new namespace's holder, which ends with the stack or with this process."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,  # its other end closes with this process, however that ends
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the ranks first
    )
    assert holder.stdin and holder.stdout and holder.stderr
    if holder.stdout.readline() != "ready\n":
        said = holder.communicate()[1].strip()
        raise ConfigError(
            f"this machine gives no network namespace ({said}): bench network needs root with the "
            "capabilities SYS_ADMIN and NET_ADMIN"
        )
    stack.callback(_end, holder, _space(holder.pid))
    return holder.pid


def _end(holder: subprocess.Popen[str], space: str) -> None:
    """Kill everything in a holder's namespace, the holder last: its process id is in use until then."""
    while others := _members(space) - {holder.pid}:
        for process in others:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    holder.kill()
    holder.communicate()


def _space(process: int) -> str:
    """Network namespace of a process."""
    return str(Path(f"/proc/{process}/ns/net").readlink())


def _members(space: str) -> set[int]:
    """Processes in a network namespace, without those that have ended and wait for their parent."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if _space(int(entry.name)) == space:
                    found.add(int(entry.name))
    return found


def _inside(process: int, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{process}/ns/net", *command]


def _ip(process: int, *words: str) -> None:
    _run(_inside(process, ["ip", *words]))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PATH": PATH}, check=False
    )
    if done.returncode:
        raise ConfigError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
