#!/usr/bin/env python3
"""Make one strict JSON schema a kind, for kubeconform, out of Kubernetes' swagger.json and files of CRDs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def strict(schema: Any) -> None:
    """Forbid unknown properties, in place: a misspelt name must not pass."""
    if isinstance(schema, list):
        for part in schema:
            strict(part)
    elif isinstance(schema, dict):
        if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
            schema.pop("type", None)
            schema.pop("format", None)
            schema["oneOf"] = [{"type": "string"}, {"type": "integer"}]
        open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
        if schema.get("properties") and not open_ended:
            schema["additionalProperties"] = False
        for part in schema.values():
            strict(part)


def references(schema: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        for part in schema:
            yield from references(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rsplit("/", 1)[1]
            else:
                yield from references(value)


def of_swagger(file: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Group, version, kind and schema of each kind; each schema has the definitions that it needs."""
    definitions = json.loads(file.read_text())["definitions"]
    definitions[_QUANTITY] = {"oneOf": [{"type": "string"}, {"type": "number"}]}
    strict(definitions)
    for name, definition in definitions.items():
        kinds = definition.get("x-kubernetes-group-version-kind", [])
        if not kinds or name.startswith("io.k8s.apimachinery"):
            continue
        needed: dict[str, Any] = {}
        waiting = [name]
        while waiting:
            other = waiting.pop()
            if other not in needed:
                needed[other] = definitions[other]
                waiting += references(definitions[other])
        schema = {"$ref": f"#/definitions/{name}", "definitions": needed}
        yield kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"], schema


def of_crds(file: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Group, version, kind and schema of each version in a YAML file of CustomResourceDefinitions."""
    import yaml

    for document in yaml.safe_load_all(file.read_text()):
        if not document or document.get("kind") != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            strict(schema)
            schema.setdefault("properties", {}).update(
                apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"}
            )
            yield spec["group"], version["name"], spec["names"]["kind"], schema


def main() -> None:
    """Write KIND-GROUP-VERSION.json files, the names that kubeconform looks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the schemas")
    parser.add_argument("sources", type=Path, nargs="+", help="swagger.json, or YAML files with CRDs")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    count = 0
    for source in given.sources:
        found = of_swagger(source) if source.suffix == ".json" else of_crds(source)
        for group, version, kind, schema in found:
            words = (kind.lower(), group.split(".")[0], version)
            (given.out / f"{'-'.join(filter(None, words))}.json").write_text(json.dumps(schema))
            count += 1
    print(f"{count} schemas")


if __name__ == "__main__":
    main()
