"""OpenAPI v3 for the kinds of a plane: enough for kubectl to explain, validate and patch. Entry points: `index`,
`document`.
"""

import hashlib
from functools import lru_cache

from datum_compute import PRODUCT
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.patches import APPLY, JSON, MERGE, STRATEGIC

Kinds = tuple[ServedKind, ...]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_ROOT = "/openapi/v3"


@lru_cache(maxsize=64)
def index(kinds: Kinds, base: str) -> bytes:
    """The address of the document of each group and version; its hash lets clients cache the document.

    `base` is the path of the API root: older clients use the address as it is, newer ones prefix their root to an
    address that starts with /openapi/v3.
    """
    paths = {}
    for prefix in dict.fromkeys(map(_prefix, kinds)):
        digest = hashlib.sha256(document(kinds, prefix) or b"").hexdigest().upper()
        paths[prefix] = {"serverRelativeURL": f"{base}{_ROOT}/{prefix}?hash={digest}"}
    return encode({"paths": paths})


@lru_cache(maxsize=64)
def document(kinds: Kinds, prefix: str) -> bytes | None:
    """The document of `api/v1` or `apis/<group>/<version>`; None when nothing is served there."""
    served = [kind for kind in kinds if _prefix(kind) == prefix]
    if not served:
        return None
    paths: Json = {}
    schemas: Json = {f"{_META}.ObjectMeta": _OBJECT_META}
    for kind in served:
        schemas |= {_schema_name(kind): _schema(kind), f"{_schema_name(kind)}List": _list_schema(kind)}
        paths |= _paths(kind)
    info = {"title": PRODUCT, "version": served[0].version}
    return encode({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def _prefix(served: ServedKind) -> str:
    return f"apis/{served.group}/{served.version}" if served.group else f"api/{served.version}"


def _schema_name(served: ServedKind) -> str:
    group = ".".join(reversed(served.group.split("."))) if served.group else "io.k8s.api.core"
    return f"{group}.{served.version}.{served.kind}"


def _kind(served: ServedKind, kind: str = "") -> Json:
    return {"group": served.group, "version": served.version, "kind": kind or served.kind}


def _schema(served: ServedKind) -> Json:
    head = {
        "apiVersion": {"type": "string", "description": "Group and version of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
    }
    metadata = {"allOf": [_reference(f"{_META}.ObjectMeta")], "default": {}, "description": "Metadata of this object."}
    properties = head | served.openapi.get("properties", {}) | {"metadata": metadata}
    return served.openapi | {"properties": properties, "x-kubernetes-group-version-kind": [_kind(served)]}


def _list_schema(served: ServedKind) -> Json:
    items = {"type": "array", "items": _reference(_schema_name(served))}
    return {
        "type": "object",
        "required": ["items"],
        "description": f"A list of {served.kind} objects.",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "items": items},
        "x-kubernetes-group-version-kind": [_kind(served, served.list_kind)],
    }


def _paths(served: ServedKind) -> Json:
    scope = "/namespaces/{namespace}" if served.namespaced else ""
    place = f"/{_prefix(served)}{scope}/{served.plural}"
    named = [_in_path("namespace")] if served.namespaced else []
    post = _operation(served, "post", _WRITE, ("application/json", "application/yaml"))
    if served.verbs == ("create",):
        return {place: {"parameters": named, "post": post}}
    everywhere = {f"/{_prefix(served)}/{served.plural}": {"get": _operation(served, "list", _LIST)}}
    paths: Json = everywhere if served.namespaced else {}
    paths[place] = {
        "parameters": named,
        "get": _operation(served, "list", _LIST),
        "post": post,
    }
    patch_types = (JSON, MERGE, *([STRATEGIC] if served.builtin else []), APPLY)
    item: Json = {
        "parameters": [*named, _in_path("name")],
        "get": _operation(served, "get", ()),
        "put": _operation(served, "put", _WRITE, ("application/json", "application/yaml")),
        "patch": _operation(served, "patch", _PATCH, patch_types),
    }
    if served.has_status:
        paths[f"{place}/{{name}}/status"] = dict(item)
    paths[f"{place}/{{name}}"] = item | {"delete": _operation(served, "delete", _DELETE)}
    return paths


def _operation(served: ServedKind, action: str, parameters: tuple[Json, ...], body: tuple[str, ...] = ()) -> Json:
    answer = f"{_schema_name(served)}List" if action == "list" else _schema_name(served)
    content = {"application/json": {"schema": _reference(answer)}}
    operation: Json = {
        "operationId": f"{action}{served.kind}",
        "parameters": list(parameters),
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _kind(served),
    }
    if body:
        schema = {"type": "object"} if action == "patch" else _reference(_schema_name(served))
        operation["requestBody"] = {"required": True, "content": {type_: {"schema": schema} for type_ in body}}
    return operation


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(name: str, type_: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": {"type": type_}}


_DRY_RUN = _in_query("dryRun", "string", "With All, the request is checked and not written.")
_WRITE = (
    _DRY_RUN,
    _in_query("fieldManager", "string", "The name of the writer, which becomes the owner of the fields."),
    _in_query("fieldValidation", "string", "How to treat unknown fields: Ignore, Warn (the default) or Strict."),
)
_PATCH = (*_WRITE, _in_query("force", "boolean", "Whether an apply takes over fields that others own."))
_DELETE = (_DRY_RUN, _in_query("propagationPolicy", "string", "Background (the default), Foreground or Orphan."))
_LIST = (
    _in_query("labelSelector", "string", "Only objects whose labels match."),
    _in_query("fieldSelector", "string", "Only objects whose fields match."),
    _in_query("limit", "integer", "The maximum number of objects; the answer has a token to continue with."),
    _in_query("continue", "string", "The token of the previous answer."),
    _in_query("resourceVersion", "string", "The version after which a watch starts."),
    _in_query("watch", "boolean", "Whether to stream changes, one per line."),
    _in_query("timeoutSeconds", "integer", "How long a watch lasts."),
    _in_query("allowWatchBookmarks", "boolean", "Whether a watch may send bookmarks."),
)

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_OBJECT_META = {
    "type": "object",
    "description": "Metadata that every object has.",
    "properties": {
        "name": {"type": "string", "description": "Unique within a namespace; cannot be changed."},
        "generateName": {"type": "string", "description": "A prefix that the server completes to a unique name."},
        "namespace": {"type": "string", "description": "The namespace of the object; cannot be changed."},
        "labels": _TEXTS | {"description": "Keys and values by which objects can be selected."},
        "annotations": _TEXTS | {"description": "Keys and values by which objects cannot be selected."},
        "finalizers": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of tasks to complete before the object is deleted.",
            "x-kubernetes-list-type": "set",
            "x-kubernetes-patch-strategy": "merge",
        },
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    **{name: {"type": "string"} for name in ("apiVersion", "kind", "name", "uid")},
                    **{name: {"type": "boolean"} for name in ("controller", "blockOwnerDeletion")},
                },
            },
            "description": "The owners of the object, which is deleted when all of them are.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-merge-key": "uid",
            "x-kubernetes-patch-strategy": "merge",
        },
        "uid": {"type": "string", "description": "Unique in time and space; set by the server."},
        "resourceVersion": {"type": "string", "description": "Changes with every write; set by the server."},
        "generation": {
            "type": "integer",
            "format": "int64",
            "description": "Counts changes of the desired state; set by the server.",
        },
        "creationTimestamp": {"type": "string", "format": "date-time", "description": "Set by the server."},
        "deletionTimestamp": {
            "type": "string",
            "format": "date-time",
            "description": "When deletion was requested; set by the server.",
        },
    },
}
