#!/usr/bin/env python3
"""A real one-node Kubernetes on this machine, in namespaces of its own.

Needs Linux, root, Go and a Debian-like package manager, and nothing of Docker. On a machine with kind or
minikube use that: every check takes a KUBECONFIG.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import binaries
import cluster
import images
import node
from shell import LabError, need_root

EXAMPLES = """\
examples:
  lab.py up                           build what is missing, start, print the KUBECONFIG
  eval "$(lab.py env)"                set KUBECONFIG and PATH in this shell
  lab.py images FOLDER                import every archive (*.tar) of a folder into containerd
  lab.py tag NAME:1 NAME:2            give an image another name, too
  lab.py enter ip addr                run a command inside the namespaces
  lab.py down                         end it; nothing is left but the cache
"""


def parser() -> argparse.ArgumentParser:
    """Parser of the commands."""
    top = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("build", help="install system parts and compile Kubernetes (once)")
    commands.add_parser("up", help="start; builds first what is missing")
    commands.add_parser("down", help="end every process, remove the cluster's state")
    commands.add_parser("status", help="state of the processes, nodes and pods")
    variables = commands.add_parser("env", help="print the exports of KUBECONFIG and PATH")
    variables.add_argument("--json", action="store_true", help="print them as JSON")
    enter = commands.add_parser("enter", help="run a command inside the namespaces")
    enter.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD")
    archives = commands.add_parser("images", help="import archives of images into containerd")
    archives.add_argument("folder", type=Path)
    tag = commands.add_parser("tag", help="give an image of containerd another name, too")
    tag.add_argument("name")
    tag.add_argument("other")
    commands.add_parser("node", help=argparse.SUPPRESS)  # first process of the namespaces
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, with one sentence on standard error."""
    given = parser().parse_args(arguments)
    try:
        if given.command in ("build", "up", "down", "enter", "node"):
            need_root()
        match given.command:
            case "build":
                binaries.build_all()
            case "up":
                binaries.build_all()
                cluster.up()
            case "down":
                cluster.down()
            case "status":
                return cluster.status()
            case "env" if given.json:
                print(json.dumps(cluster.environment()))
            case "env":
                for name, value in cluster.environment().items():
                    print(f"export {name}={shlex.quote(value)}")
            case "enter":
                cluster.enter(given.words or [os.environ.get("SHELL", "sh")])
            case "images":
                images.import_all(given.folder)
            case "tag":
                images.tag(given.name, given.other)
            case "node":
                node.run_node()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
