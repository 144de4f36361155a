"""A real S3 server over HTTP: moto's, as a process of its own. It keeps objects in memory."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Self

import pytest
from pyarrow import fs

from livectr.local.ports import free_ports
from livectr.system.children import with_parent
from tests.waiting import until

BUCKET = "clicks"


class S3Server:
    """The server while it is entered, with an empty bucket."""

    def __init__(self) -> None:
        self.port = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(with_parent(command), stdout=quiet, stderr=quiet)

    def use(self, patch: pytest.MonkeyPatch, endpoint: str | None = None) -> None:
        """Let this process and those that it starts find the server, or a proxy before it."""
        patch.setenv("AWS_ENDPOINT_URL", endpoint or self.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")

    def refuse_keys(self, refuse: bool) -> None:
        """Let the server know no keys at all, or take any."""
        kind = {"Content-Type": "application/octet-stream"}
        count = b"0" if refuse else b"inf"  # requests that need no keys
        ask = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", data=count, headers=kind)
        urllib.request.urlopen(ask, timeout=5).close()

    @property
    def files(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )

    def keys(self, prefix: str) -> list[str]:
        """Keys below a prefix of the bucket, without it."""
        base = f"{BUCKET}/{prefix}"
        found = self.files.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
        return sorted(info.path.removeprefix(f"{base}/") for info in found if info.is_file)

    def read(self, key: str) -> bytes:
        with self.files.open_input_file(f"{BUCKET}/{key}") as file:
            return bytes(file.read())

    def write(self, key: str, data: bytes) -> None:
        with self.files.open_output_stream(f"{BUCKET}/{key}") as stream:
            stream.write(data)

    def __enter__(self) -> Self:
        def answers() -> bool:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
            return True

        until(answers, "moto", despite=OSError, process=self._process)
        self.files.create_dir(BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
