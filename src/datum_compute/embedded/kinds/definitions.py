"""CustomResourceDefinition, the kind that defines others. Entry point: `DEFINITIONS`."""

import re
from collections.abc import Iterator
from typing import Any

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.schemas.fragments import OPEN
from datum_compute.embedded.schemas.json_path import json_path
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


_PLURAL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def _complete(definition: Json) -> Json:
    """The definition with the fields a server fills in: names derived from the kind, and stored versions."""
    spec = definition.get("spec")
    if not isinstance(spec, dict) or not isinstance(names := spec.get("names"), dict):
        return definition
    kind = names.get("kind")
    derived = {"singular": kind.lower(), "listKind": f"{kind}List"} if isinstance(kind, str) else {}
    spec = {"conversion": {"strategy": "None"}} | spec | {"names": derived | names}
    versions: Any = spec.get("versions")
    versions = [version for version in versions if isinstance(version, dict)] if isinstance(versions, list) else []
    stored = [version.get("name") for version in versions if version.get("storage")]
    status = definition.get("status") or {"storedVersions": stored}
    return definition | {"spec": spec, "status": status}


def _violations(definition: Json) -> list[Cause]:
    spec, causes = definition["spec"], []
    wanted = f"{spec['names']['plural']}.{spec['group']}"
    if definition["metadata"]["name"] != wanted:
        causes.append(
            _invalid(definition["metadata"]["name"], "metadata.name", f'must be spec.names.plural+"."+{wanted}')
        )
    if not _PLURAL.fullmatch(spec["names"]["plural"]):
        causes.append(_invalid(spec["names"]["plural"], "spec.names.plural", "must be a lowercase DNS label"))
    served = [version["name"] for version in spec["versions"] if version["served"]]
    if sum(version["storage"] for version in spec["versions"]) != 1:
        causes.append(
            _invalid(str(len(served)), "spec.versions", "must have exactly one version marked as storage version")
        )
    if not served:
        causes.append(_invalid("", "spec.versions", "must have a served version"))
    if len(served) > 1:
        causes.append(_invalid(", ".join(served), "spec.versions", "must have only one served version"))
    for index, version in enumerate(spec["versions"]):
        at = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = version.get("schema", {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(Cause("FieldValueRequired", "Required value: schemas are required", at))
        elif schema.get("type") != "object":
            causes.append(_invalid(str(schema.get("type", "")), f"{at}.type", "must be object at the root"))
        else:
            rule = "Forbidden: $ref is not supported"
            causes += [Cause("FieldValueForbidden", rule, f"{path}.$ref") for path in _references(schema, at)]
    return causes or _compilation_problems(definition)


def _references(schema: Any, at: str) -> Iterator[str]:
    """The paths of references in a schema. Values that are no schema at all are left to the validator."""
    match schema:
        case {"$ref": _}:
            yield at
        case dict():
            for keyword, value in schema.items():
                match keyword, value:
                    case "properties", dict():
                        for name, below in value.items():
                            yield from _references(below, f"{at}.properties[{name}]")
                    case "items" | "additionalProperties" | "not", _:
                        yield from _references(value, f"{at}.{keyword}")
                    case "allOf" | "anyOf" | "oneOf", list():
                        for index, below in enumerate(value):
                            yield from _references(below, f"{at}.{keyword}[{index}]")


def _compilation_problems(definition: Json) -> list[Cause]:
    try:
        for column in ServedKind.of(definition).columns:
            json_path(column["jsonPath"])
    except Exception as error:  # the validator raises many kinds for what is not a schema
        return [_invalid("", "spec.versions", f"the schema cannot be used: {str(error)[:200]}")]
    return []


def _change_problems(before: Json, after: Json) -> list[Cause]:
    if before["spec"]["scope"] != after["spec"]["scope"]:
        return [_invalid(after["spec"]["scope"], "spec.scope", "field is immutable")]
    return []


def _invalid(value: str, field: str, rule: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": {rule}', field)


def _strings(*required: str) -> Json:
    return {"type": "object", "required": list(required), "x-kubernetes-preserve-unknown-fields": True} | {
        "properties": {name: {"type": "string", "minLength": 1} for name in required}
    }


_VERSION = {
    "type": "object",
    "required": ["name", "served", "storage"],
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "served": {"type": "boolean"},
        "storage": {"type": "boolean"},
        "schema": OPEN | {"properties": {"openAPIV3Schema": OPEN}},
    },
}

DEFINITIONS = ServedKind(
    "apiextensions.k8s.io",
    "v1",
    {"kind": "CustomResourceDefinition", "plural": "customresourcedefinitions", "shortNames": ["crd", "crds"]},
    namespaced=False,
    schema=OPEN
    | {
        "description": "The definition of a kind for this plane to serve.",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["group", "names", "scope", "versions"],
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "group": {"type": "string", "minLength": 1},
                    "scope": {"type": "string", "enum": ["Cluster", "Namespaced"]},
                    "names": _strings("plural", "kind"),
                    "versions": {"type": "array", "minItems": 1, "items": _VERSION},
                },
            },
            "status": OPEN
            | {
                "description": "Whether the kind is served.",
                "properties": {
                    "conditions": {"type": "array", "items": OPEN},
                    "acceptedNames": OPEN,
                    "storedVersions": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
    status=True,
    columns=({"name": "Created At", "type": "string", "jsonPath": ".metadata.creationTimestamp"},),
    builtin=True,
    cleanup=CLEANUP,
    prepare=_complete,
    check=_violations,
    transition=_change_problems,
)
