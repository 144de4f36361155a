"""Protobuf schemas of a registry: descriptors, texts, imports, versions."""

from __future__ import annotations

import importlib.util
import tempfile

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from livectr.ingest.decode import protobuf_files, registered
from livectr.ingest.decode import registry as registry_module
from livectr.ingest.decode.protobuf_files import file_of
from livectr.ingest.decode.registered import RegisteredRows
from livectr.ingest.decode.registry import SchemaRegistry, Wanted, id_path
from livectr.ingest.decode.rows import UnreadableError
from livectr.system.errors import ConfigError, UserError
from tests.confluent import Confluent
from tests.ingest.protobuf_messages import COLUMNS, FIELDS, descriptor, message, message_class, proto
from tests.waiting import until


@pytest.mark.parametrize("code", [200, 400, 422, 501])
def test_descriptors_and_texts_are_equal(code: int) -> None:
    """Confluent's registry serves descriptors; others do not, and say so in several ways."""
    text = proto(FIELDS)
    with Confluent(code) as registry:
        number = registry.register("value", text, descriptor(text))
        client = SchemaRegistry(registry.url)
        found = client.schema(number)
        assert found is not None
        file = file_of(client, id_path(number), found)
        (event,) = file.message_types_by_name.values()
        assert [field.name for field in event.fields] == list(COLUMNS)


def test_a_text_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the process ends with what to install; dead letters would lose every message."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "grpc_tools" else find(name)
    )
    text = proto(FIELDS)
    with Confluent(501) as registry:
        client = SchemaRegistry(registry.url)
        number = registry.register("value", text)
        with pytest.raises(ConfigError, match=r"pip install 'livectr\[protobuf\]'"):
            file_of(client, id_path(number), client.schema(number) or {})


def test_descriptors_import_what_every_registry_has() -> None:
    """Imports that are options alone are not needed; types of an import that is not there are named."""
    file = FileDescriptorProto(name="x", package="p", syntax="proto3")
    file.dependency.extend(["confluent/meta.proto", "confluent/types/decimal.proto", "common.proto"])
    event = file.message_type.add(name="E")
    event.field.add(name="price", number=1, type=11, label=1, type_name=".confluent.type.Decimal")
    event.field.add(name="kind", number=2, type=14, label=1, type_name=".c.Kind")
    common = FileDescriptorProto(name="default", package="c", syntax="proto3")
    common.enum_type.add(name="Kind").value.add(name="NONE", number=0)
    with Confluent() as registry:
        client = SchemaRegistry(registry.url)
        registry.register("common", "no proto", common)
        reference = {"name": "common.proto", "subject": "common", "version": 1}
        number = registry.register("value", "no proto", file, [reference])
        found = file_of(client, id_path(number), client.schema(number) or {})
        assert found.message_types_by_name["E"].fields_by_name["kind"].enum_type.full_name == "c.Kind"
        alone = registry.register("value", "no proto", file)
        with pytest.raises(ValueError, match=r"its descriptor is incomplete: .*c\.Kind"):
            file_of(client, id_path(alone), client.schema(alone) or {})
        missing = registry.register("value", "no proto", file, [{**reference, "subject": "none"}])
        with pytest.raises(ValueError, match="it refers to none 1, which is not there"):
            file_of(client, id_path(missing), client.schema(missing) or {})


@pytest.mark.parametrize("name", ["../x.proto", "/tmp/x.proto"])
def test_imports_stay_in_their_folder(name: str) -> None:
    with pytest.raises(ValueError, match="no relative path"):
        list(protobuf_files._compiled({name: "", protobuf_files._ROOT: ""}))


def test_a_full_disk_is_no_fault_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with pytest.raises(UserError, match=r"cannot be compiled in .*/proc/none.*TMPDIR"):
        protobuf_files._compiled({protobuf_files._ROOT: proto(FIELDS)})


@pytest.mark.parametrize("code", [403, 405, 501])
def test_a_registry_may_list_no_versions(code: int) -> None:
    """Fields are then found by their own names alone."""
    text = proto(FIELDS)
    with Confluent(versions=code) as registry:
        client = SchemaRegistry(registry.url)
        number = registry.register("value", text, descriptor(text))
        registry.register("value", proto(FIELDS.replace("user_id", "user")))
        rows = RegisteredRows(client)
        wanted = Wanted(("user", "page"))
        value = message(number, text, page="p")
        assert rows.prepare(value, wanted) == value[:6]
        assert rows.batch([value], wanted).batch.to_pylist() == [{"page": "p"}]


@pytest.mark.parametrize(
    ("columns", "old", "new"),
    [
        (("user",), {"user": 5}, {"user": 5}),
        (("user_id",), {"user_id": 5}, {"user_id": 5}),
        (("user", "user_id"), {"user": 5}, {"user_id": 5}),  # each field is one column
        (("client",), {"client": 5}, {"client": 5}),  # the name between the two
    ],
)
def test_a_renamed_field_is_found_by_its_number(
    columns: tuple[str, ...], old: dict[str, int], new: dict[str, int]
) -> None:
    """By any name that it has had or has got since, in messages of each version."""
    with Confluent() as registry:
        client = SchemaRegistry(registry.url)
        texts = [proto(FIELDS.replace("user_id", name)) for name in ("user", "client", "user_id")]
        numbers = [registry.register("value", text, descriptor(text)) for text in texts]
        rows, wanted = RegisteredRows(client), Wanted(columns)
        for place, row in ((0, old), (2, new)):
            (name,) = {"user", "user_id"} & set(message_class(texts[place]).DESCRIPTOR.fields_by_name)
            value = message(numbers[place], texts[place], **{name: 5})  # type: ignore[arg-type]
            rows.prepare(value, wanted)
            assert rows.batch([value], wanted).batch.to_pylist() == [row]


def test_an_unknown_schema_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (registry_module, registered):
        monkeypatch.setattr(module, "UNKNOWN_S", 0.2)
    text = proto(FIELDS)
    wanted = Wanted(("page",))
    with Confluent() as registry:
        rows = RegisteredRows(SchemaRegistry(registry.url))
        value = message(1, text, page="p")
        for _ in range(3):
            assert rows.prepare(value, wanted) is None
            with pytest.raises(UnreadableError, match="schema 1 is not in the registry"):
                rows.batch([value], wanted)
        assert registry.asked == ["/schemas/ids/1"]
        registry.register("value", text, descriptor(text))
        assert until(lambda: rows.prepare(value, wanted)) == value[:6]
        assert rows.batch([value], wanted).batch.to_pylist() == [{"page": "p"}]


def test_protoc_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"protoc: .*registered\.proto:1:28"):
        list(protobuf_files._compiled({protobuf_files._ROOT: 'syntax = "proto3"; message {}'}))


def test_the_set_of_protoc_is_whole() -> None:
    files = list(protobuf_files._compiled({protobuf_files._ROOT: proto(FIELDS)}))
    assert [file.name for file in FileDescriptorSet(file=files).file] == [
        "google/protobuf/timestamp.proto",
        protobuf_files._ROOT,
    ]
