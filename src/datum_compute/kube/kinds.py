"""Kinds: their names, and the paths that serve them. Entry point: `Kind`."""

import re
from datetime import datetime
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.kube.errors import BadRequest
from datum_compute.kube.meta import Json, KubeObject, decode

T = TypeVar("T", bound=KubeObject)

_SEGMENT = re.compile(r"(?!\.{1,2}$)[^/\\%?#\s]+")  # of a path; cannot lead to another one


class Kind(Struct, Generic[T], frozen=True, dict=True):
    group: str
    version: str
    name: str
    plural: str
    type: type[T]
    namespaced: bool = True

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def resource(self) -> str:
        """`plural.group`, as error messages and CRD names write it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Raises `BadRequest` for an invalid name, which might otherwise lead to another object."""
        for part in (namespace, name):
            if part and not _SEGMENT.fullmatch(part):
                raise BadRequest(f"{part[:80]!r} is not the name of a {self.name if part is name else 'Namespace'}")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"

    def serves(self, path: str) -> bool:
        """Whether a path leads to objects of this kind, or to a subresource of one."""
        root, plural = (f"/apis/{self.group}" if self.group else "/api") + f"/{self.version}", self.plural
        parts = path.removeprefix(f"{root}/").split("/") if path.startswith(f"{root}/") else []
        if self.namespaced and len(parts) > 2 and parts[0] == "namespaces":
            parts = parts[2:]
        return parts[:1] == [plural]

    def accept(self, *, listed: bool = False) -> str:
        """The Accept header. A server that cannot reduce objects to their metadata sends whole ones."""
        if not issubclass(self.type, PartialObject):
            return "application/json"
        form = "PartialObjectMetadataList" if listed else "PartialObjectMetadata"
        return f"application/json;as={form};g=meta.k8s.io;v=v1,application/json"

    def decode(self, data: bytes | Raw) -> T:
        """An object of this kind from its JSON; raises `msgspec.DecodeError`."""
        return self.mark(decode(data, self.type))

    def mark(self, object_: T) -> T:
        """Sets the kind of an object; needed only for objects that were built in this process."""
        object_.__dict__["_kind"] = self
        return object_

    def body(self, name: str, namespace: str = "", **metadata: object) -> Json:
        """The start of an object to send: its identity, and the fields of `metadata` that are not empty."""
        identity = {"name": name} | ({"namespace": namespace} if namespace else {})
        fields = {key: value for key, value in metadata.items() if value}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": identity | fields}


class PartialObject(KubeObject, frozen=True):
    """Only the metadata of an object of any kind."""

    def __post_init__(self) -> None:
        """Drops the rest, for servers that send it anyway."""
        msgspec.structs.force_setattr(self, "spec_json", Raw())
        msgspec.structs.force_setattr(self, "status_json", Raw())


def only_metadata(kind: Kind[T]) -> Kind[PartialObject]:
    """The same kind, of which only the metadata is requested and cached."""
    return Kind(kind.group, kind.version, kind.name, kind.plural, PartialObject, kind.namespaced)


class Namespace(KubeObject, frozen=True):
    """A core Namespace, of which only the metadata is used."""


class ObjectReference(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Event(KubeObject, frozen=True, rename="camel"):
    """A core Event, with the fields that are read here."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None

    @property
    def about(self) -> str:
        """The name of the object that it is about."""
        return self.involved_object.name


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Lease(KubeObject, frozen=True):
    """A Lease of coordination.k8s.io."""


NAMESPACE = Kind("", "v1", "Namespace", "namespaces", Namespace, namespaced=False)
EVENT = Kind("", "v1", "Event", "events", Event)
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", ConfigMap)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", Lease)
DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    KubeObject,
    namespaced=False,
)
