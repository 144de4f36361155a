"""Ports that `livectr up` has chosen, and whose servers have not started yet."""

from __future__ import annotations

import subprocess
import sys

from livectr.local.ports import claim, free_ports

ASK = "import sys; from livectr.local.ports import claim; print(claim(int(sys.argv[1])), flush=True); input()"


def test_a_port_is_one_processs_until_it_ends() -> None:
    port = free_ports(1)
    command = [sys.executable, "-c", ASK, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not claim(port)
        other.communicate("\n")
    assert claim(port) and claim(port)
