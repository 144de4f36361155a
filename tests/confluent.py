"""A schema registry over HTTP that serves Protobuf schemas as descriptors, as Confluent's does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorProto


class Confluent:
    """A running registry; a context manager.

    Args:
        serialized: HTTP code for descriptors; 200: they are served.
        versions: HTTP code for lists of versions; 200: they are served.
    """

    def __init__(self, serialized: int = 200, *, versions: int = 200) -> None:
        self.asked: list[str] = []
        self._serialized, self._versions = serialized, versions
        self._schemas: list[dict[str, Any]] = []
        self._descriptors: list[str | None] = []
        self._subjects: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, answer = registry.answer(self.path)
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def register(
        self,
        subject: str,
        text: str,
        descriptor: FileDescriptorProto | None = None,
        references: Sequence[dict[str, Any]] = (),
    ) -> int:
        """Id of a Protobuf schema, which is registered as the next version of a subject."""
        self._schemas.append({"schema": text, "schemaType": "PROTOBUF", "references": list(references)})
        data = None if descriptor is None else base64.b64encode(descriptor.SerializeToString()).decode()
        self._descriptors.append(data)
        self._subjects.setdefault(subject, []).append(len(self._schemas))
        return len(self._schemas)

    def answer(self, path: str) -> tuple[int, Any]:
        """(HTTP code, body) of a request."""
        self.asked.append(path)
        parts = [unquote(part) for part in urlsplit(path).path.split("/")[1:]]
        wants_descriptor = parse_qs(urlsplit(path).query).get("format") == ["serialized"]
        none = 404, {"error_code": 40403, "message": "Schema not found"}
        match parts:
            case ["schemas", "types"]:
                return 200, ["PROTOBUF"]
            case [*_, "versions"] if self._versions != 200:
                return self._versions, {"error_code": self._versions, "message": "versions"}
            case ["schemas", "ids", number] if 0 < int(number) <= len(self._schemas):
                return self._schema(int(number), wants_descriptor)
            case ["schemas", "ids", number, "versions"]:
                return 200, [
                    {"subject": subject, "version": place + 1}
                    for subject, numbers in self._subjects.items()
                    for place, each in enumerate(numbers)
                    if each == int(number)
                ]
            case ["subjects", subject, "versions"] if subject in self._subjects:
                return 200, list(range(1, len(self._subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                numbers = self._subjects[subject]
                return self._schema(numbers[int(version) - 1], wants_descriptor)
        return none

    def _schema(self, number: int, wants_descriptor: bool) -> tuple[int, Any]:
        found = self._schemas[number - 1]
        if not wants_descriptor:
            return 200, found
        if self._serialized != 200:
            return self._serialized, {"error_code": self._serialized, "message": "format"}
        return 200, {**found, "schema": self._descriptors[number - 1] or found["schema"]}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
