"""A real schema registry (Apicurio, in memory) from Maven Central, for the tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from livectr.local.kafka import broker_jars
from livectr.local.ports import free_ports
from livectr.system.children import with_parent
from tests.waiting import until

VERSION = "3.0.9"
API = "/apis/ccompat/v7"


def registry_jar() -> Path:
    """Jar of the registry; Maven fetches it once."""
    home = broker_jars().parent.parent / f"apicurio-{VERSION}"
    if not home.is_dir():
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
            subprocess.run([*command, f"-DoutputDirectory={scratch}"], check=True, timeout=600, cwd=scratch)
            (archive,) = Path(scratch).glob("*.tar.gz")
            folder = Path(scratch) / "registry"
            folder.mkdir()
            subprocess.run(["tar", "xzf", str(archive), "-C", str(folder)], check=True)
            with contextlib.suppress(OSError):  # another process was first
                folder.rename(home)
    return home / f"apicurio-registry-app-{VERSION}-runner.jar"


class Registry:
    """A running registry; a context manager. A registry that starts again at its port is empty."""

    def __init__(self) -> None:
        self.port = free_ports(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{API}"

    def start(self) -> None:
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        command = with_parent(["java", *options, "-jar", str(registry_jar())])
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers() -> bool:
            urllib.request.urlopen(f"{self.url}/schemas/types", timeout=2).close()
            return True

        until(answers, "the registry", despite=OSError, process=self._process, turn=lambda: time.sleep(0.2))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def register(self, subject: str, schema: object, kind: str = "AVRO", references: Any = ()) -> int:
        """Id of a schema, which is registered as the next version of a subject."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = json.dumps({"schema": text, "schemaType": kind, "references": list(references)}).encode()
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            body,
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.loads(answer.read())["id"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
