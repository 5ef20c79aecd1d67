"""The kinds that the tests use. Entry points: `Definition`, `Place`."""

from typing import Any

from msgspec import Struct

from datum_compute.kube.meta import Json
from datum_compute.kube.patches import MERGE
from tests.conformance.server import Server, until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_WIDGET = {
    "type": "object",
    "description": "Something to try things with.",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How large it is."},
                "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
                "code": {"type": "string", "pattern": "^[A-Z]{3}$", "maxLength": 3, "minLength": 3},
                "nested": {
                    "type": "object",
                    "properties": {
                        "depth": {"type": "integer", "default": 7},
                        "note": {"type": "string", "nullable": True},
                    },
                },
                "parts": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "weight": {"type": "integer", "default": 1},
                        },
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "texts": {"type": "object", "additionalProperties": {"type": "string"}},
                "ratio": {"type": "number"},
                "port": {"x-kubernetes-int-or-string": True},
                "moment": {"type": "string", "format": "date-time"},
            },
        },
        "status": {
            "type": "object",
            "properties": {"phase": {"type": "string"}, "seen": {"type": "integer"}},
        },
    },
}
_GADGET = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


class Definition(Struct, frozen=True):
    """A kind and where it is served."""

    group: str
    kind: str
    plural: str
    body: Json

    @classmethod
    def widgets(cls, group: str) -> "Definition":
        version = {
            "schema": {"openAPIV3Schema": _WIDGET},
            "subresources": {"status": {}},
            "selectableFields": [{"jsonPath": ".spec.colour"}],
            "additionalPrinterColumns": [
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large it is"},
                {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                {"name": "Colour", "type": "string", "jsonPath": ".spec.colour", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
        }
        names = {"shortNames": ["wdg"], "categories": ["things"]}
        return cls(group, "Widget", "widgets", _definition(group, "Widget", "widgets", "Namespaced", version, names))

    @classmethod
    def gadgets(cls, group: str) -> "Definition":
        version = {"schema": {"openAPIV3Schema": _GADGET}}
        return cls(group, "Gadget", "gadgets", _definition(group, "Gadget", "gadgets", "Cluster", version, {}))

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1"

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        scope = f"/namespaces/{namespace}" if namespace else ""
        below = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"/apis/{self.api_version}{scope}/{self.plural}{below}"

    def object(self, name: str, spec: Json | None = None, **metadata: Any) -> Json:
        head = {"apiVersion": self.api_version, "kind": self.kind}
        return head | {"metadata": {"name": name, **metadata}, "spec": {"size": 1} if spec is None else spec}

    def create(self, server: Server) -> None:
        server.create(DEFINITIONS, self.body)
        until(f"{self.name} being served", lambda: server.ask("GET", self.path()).code == 200)

    def remove(self, server: Server) -> None:
        server.delete(f"{DEFINITIONS}/{self.name}")


def _definition(group: str, kind: str, plural: str, scope: str, version: Json, names: Json) -> Json:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural} | names,
            "versions": [{"name": "v1", "served": True, "storage": True} | version],
        },
    }


class Place(Struct, frozen=True):
    """A namespace, with the paths and objects in it."""

    server: Server
    name: str
    kind: Definition

    def namespace(self) -> Json:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}

    def widgets(self, name: str = "", subresource: str = "") -> str:
        return self.kind.path(self.name, name, subresource)

    def config_maps(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/configmaps{'/' if name else ''}{name}"

    def widget(self, name: str, spec: Json | None = None, **metadata: Any) -> Json:
        """Creates one."""
        return self.server.create(self.widgets(), self.kind.object(name, spec, **metadata))

    def release(self) -> None:
        """Removes all finalizers, even if a test failed."""
        for path in (self.widgets, self.config_maps):
            for item in self.server.get(path())["items"]:
                if item["metadata"].get("finalizers"):
                    patch = {"metadata": {"finalizers": None}}
                    self.server.ask("PATCH", path(item["metadata"]["name"]), patch, type_=MERGE)

    def config_map(self, name: str, **metadata: Any) -> Json:
        return self.server.create(self.config_maps(), config_map(name, **metadata))


def config_map(name: str, data: Json | None = None, **metadata: Any) -> Json:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return body | {"data": data or {"a": "1"}}


def owner(of: Json, **flags: bool) -> Json:
    """An owner reference to the object."""
    metadata = of["metadata"]
    return {
        "apiVersion": of["apiVersion"],
        "kind": of["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    } | flags
