"""Descriptors of the Protobuf schemas of a registry.

A registry that can serves a schema as a serialized descriptor (`?format=serialized`: Confluent's, Redpanda's
from 25.2), and then nothing has to be compiled. From others it comes as the text of a .proto file, which
`grpc_tools.protoc` compiles in a process of its own: protoc writes its errors to the standard error of its
process, and reads files.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from livectr.ingest.decode.registry import SchemaRegistry
from livectr.system.errors import ConfigError, UserError
from livectr.system.scratch import scratch

_ROOT = "livectr/registered.proto"
_KNOWN = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")
_COMPILE_S = 60.0
_DECIMAL = FileDescriptorProto(name="confluent/types/decimal.proto", package="confluent.type")
_DECIMAL.message_type.add(name="Decimal")


def file_of(registry: SchemaRegistry, path: str, found: Mapping[str, Any]) -> FileDescriptor:
    """Descriptor of a schema and what it imports.

    Args:
        registry: has the schemas to which it refers.
        path: of the schema in the registry.
        found: the schema, as the registry has it.

    Raises:
        ValueError: it is no Protobuf, or refers to a schema that is not there.
        ConfigError: it is a text, and the package that compiles it is not installed.
    """
    schemas: dict[str, dict[str, Any]] = {}
    _gather(registry, _ROOT, {**found, "path": path}, schemas)
    binary = {name: _descriptor(registry, schema) for name, schema in schemas.items()}
    files = [file for file in binary.values() if file is not None]
    if len(files) < len(schemas):
        files = list(_compiled({name: schema["schema"] for name, schema in schemas.items()}))
    else:
        for name, file in zip(binary, files, strict=True):
            file.name = name
    pool = DescriptorPool()
    known = {file.name: file for file in files}
    try:
        for file in files:
            _add(pool, file, known, set())
        return pool.FindFileByName(_ROOT)
    except (TypeError, KeyError) as error:
        raise ValueError(f"its descriptor is incomplete: {error}") from None


def mentions(found: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return false if a schema surely has no field of these names; nothing is compiled."""
    text = _decoded(found["schema"]) or str(found["schema"]).encode()
    return any(name.encode() in text for name in names)


def _gather(
    registry: SchemaRegistry, name: str, found: dict[str, Any], schemas: dict[str, dict[str, Any]]
) -> None:
    """Collect a schema and those to which it refers, deepest first."""
    for inner, other in registry.references(found).items():
        if inner not in schemas:
            _gather(registry, inner, other, schemas)
    schemas[name] = found


def _descriptor(registry: SchemaRegistry, found: Mapping[str, Any]) -> FileDescriptorProto | None:
    """Descriptor of a schema as the registry serves it; None: it serves text alone."""
    for text in (found["schema"], registry.serialized(found["path"])):
        data = None if text is None else _decoded(text)
        if data is not None:
            try:
                return FileDescriptorProto.FromString(data)
            except DecodeError as error:
                raise ValueError(f"its descriptor is damaged ({error})") from None
    return None


def _decoded(text: str) -> bytes | None:
    """Bytes of a text in base64; None: it is the text of a .proto file, which has spaces and semicolons."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _add(pool: DescriptorPool, file: FileDescriptorProto, known: Mapping[str, Any], added: set[str]) -> None:
    """Add a file behind what it imports.

    An import that is not to be had is dropped: often it defines options alone. If not, the pool complains.
    """
    added.add(file.name)
    kept = []
    for name in file.dependency:
        inner = known.get(name) or _well_known(name)
        if inner is not None:
            kept.append(name)
            if name not in added:
                _add(pool, inner, known, added)
    if len(kept) < len(file.dependency):
        trimmed = FileDescriptorProto()
        trimmed.CopyFrom(file)
        for field in ("dependency", "public_dependency", "weak_dependency"):
            trimmed.ClearField(field)
        trimmed.dependency.extend(kept)
        public = {file.dependency[place] for place in file.public_dependency}
        trimmed.public_dependency.extend(place for place, name in enumerate(kept) if name in public)
        file = trimmed
    pool.AddSerializedFile(file.SerializeToString())


def _well_known(name: str) -> FileDescriptorProto | None:
    """File that registries have without a reference."""
    if name == _DECIMAL.name:
        return _DECIMAL
    module = f"{name.removesuffix('.proto').replace('/', '.')}_pb2"
    if not _KNOWN.fullmatch(name) or importlib.util.find_spec(module) is None:
        return None
    file = FileDescriptorProto()
    importlib.import_module(module).DESCRIPTOR.CopyToProto(file)
    return file


def _compiled(texts: Mapping[str, str]) -> Iterable[FileDescriptorProto]:
    """Descriptors of texts and of what they import, deepest first.

    Raises:
        ValueError: protoc complains.
        ConfigError: protoc is not installed.
        UserError: the folder of temporary files cannot be written.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise ConfigError(
            "the schema registry serves Protobuf schemas as text, and reading them needs a compiler: pip "
            "install 'livectr[protobuf]'"
        )
    try:
        with scratch("protobuf") as folder:
            return _protoc(texts, folder)
    except OSError as error:
        raise UserError(
            f"a Protobuf schema cannot be compiled in the temporary folder ({error}); make room there, "
            "or set TMPDIR to another"
        ) from error
    except subprocess.TimeoutExpired:
        raise ValueError(f"protoc: no result in {_COMPILE_S:g} s") from None


def _protoc(texts: Mapping[str, str], folder: Path) -> Iterable[FileDescriptorProto]:
    for name, text in texts.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"it imports {name!r}, which is no relative path")
        path = Path(folder, "in", place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = Path(folder, "descriptors")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}/in", "--include_imports"]
    command += [f"--descriptor_set_out={result}", _ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S)
    if done.returncode != 0:
        raise ValueError(f"protoc: {' '.join(done.stderr.replace(f'{folder}/in/', '').split())}")
    return list(FileDescriptorSet.FromString(result.read_bytes()).file)
