"""Schemas of custom resources, out of the CRD files of their projects.

    python -m tests.k8s_static.crd_schemas CRD.yaml…

writes crds/KIND-GROUP-VERSION.json: the structural schema without descriptions and status. A field that the
schema does not name is an error.

The files here are from Strimzi 1.2, prometheus-operator 0.85, KEDA 2.18, cert-manager 1.19 and JobSet 0.10.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "crds"
DROPPED = {"description", "title", "default", "example", "x-kubernetes-validations"}
ANYTHING: dict[str, Any] = {"type": "object"}


class _Loader(yaml.SafeLoader):
    """Reads `=`, an operator in a CRD, as a text: YAML 1.1 has a type for it."""


_Loader.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)


def strict(schema: Any) -> Any:
    """A JSON schema that says what the API server checks: unknown fields, types, numbers as text."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    out = {k: strict(v) for k, v in schema.items() if k not in DROPPED and not k.startswith("x-kubernetes-")}
    if isinstance(schema.get("properties"), dict):
        # Properties are names, not words of the schema: a field may be called "default".
        out["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            out.setdefault("additionalProperties", False)
    out.pop("format", None)
    return out


def schemas(crd: dict[str, Any]) -> dict[str, Any]:
    """File name → schema, of each version that is served."""
    spec, found = crd["spec"], {}
    for version in spec["versions"]:
        if version["served"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"].pop("status", None)
            schema["properties"] |= {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": ANYTHING,
            }
            schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
            schema["additionalProperties"] = False
            found[f"{spec['names']['kind'].lower()}-{spec['group']}-{version['name']}.json"] = schema
    return found


def main(paths: list[str]) -> None:
    """Write the schemas of CRD files."""
    FOLDER.mkdir(exist_ok=True)
    for path in paths:
        for crd in yaml.load_all(Path(path).read_text(), _Loader):
            if crd and crd.get("kind") == "CustomResourceDefinition":
                for name, schema in schemas(crd).items():
                    text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
                    (FOLDER / name).write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
