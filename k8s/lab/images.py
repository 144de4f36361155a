"""Images of the lab: import of archives into containerd, and archives of single static programs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from paths import CONTAINERD, SOCKET
from shell import LabError, run

_OCI = "application/vnd.oci.image"


def import_all(folder: Path) -> None:
    """Import every archive (OCI or Docker, *.tar) of a folder that has changed since its last import.

    Raises LabError when there is none.
    """
    archives = sorted(folder.glob("*.tar"))
    if not archives:
        raise LabError(f"{folder} has no archive of an image (*.tar).")
    for archive in archives:
        mark = CONTAINERD / "imported" / f"{archive.name}.json"
        status = archive.stat()
        known = json.dumps([str(archive.resolve()), status.st_mtime_ns, status.st_size])
        if mark.exists() and mark.read_text() == known:
            continue
        began = time.monotonic()
        import_image(archive)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(known)
        print(f"lab: {archive.name} imported in {time.monotonic() - began:.1f} s", flush=True)
    _remove_nameless()


def _remove_nameless() -> None:
    """Remove images whose names other images have taken: each has GB, and the kubelet never does it here."""
    ctr: list[str | Path] = ["ctr", "-a", SOCKET, "-n", "k8s.io", "images"]
    listed = [line.split() for line in run([*ctr, "list"]).splitlines()[1:]]
    named = {digest for name, _, digest, *_ in listed if not name.startswith("sha256:")}
    if old := [name for name, _, digest, *_ in listed if name.startswith("sha256:") and digest not in named]:
        run([*ctr, "rm", *old])  # containerd deletes their layers by and by


def import_image(archive: Path) -> None:
    """Import an archive into containerd, where the kubelet looks. A layer that is there is not copied."""
    run(["ctr", "-a", SOCKET, "-n", "k8s.io", "images", "import", archive])


def tag(name: str, other: str) -> None:
    """Give an image another name, too. Raises LabError when containerd has no such image."""
    run(["ctr", "-a", SOCKET, "-n", "k8s.io", "images", "tag", "--force", name, other])


def archive_of_program(
    program: Path, name: str, archive: Path, *, user: str = "65535:65535", words: Sequence[str] = ()
) -> None:
    """Write an OCI archive whose only file is a static program. It needs no builder of images.

    Args:
        program: the file; it becomes /NAME and the entry point.
        name: full name of the image with its tag.
        archive: file to write.
        user: uid and gid.
        words: arguments of the entry point.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        entry = files.gettarinfo(program, program.name)
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        with program.open("rb") as content:
            files.addfile(entry, content)
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer_blob = blob(layer.getvalue(), "layer.v1.tar")
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"User": user, "Entrypoint": [f"/{program.name}", *words]},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer_blob],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [described]}
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as out:
        _add(out, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(out, "index.json", json.dumps(index).encode())
        for digest, stored in blobs.items():
            _add(out, f"blobs/sha256/{digest}", stored)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _architecture() -> str:
    return run(["go", "env", "GOARCH"]).strip()
