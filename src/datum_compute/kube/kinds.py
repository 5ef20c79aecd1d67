"""What a kind is called and where it is served. Entry point: `Kind`."""

import re
from datetime import datetime
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.kube.errors import BadRequest
from datum_compute.kube.meta import Json, KubeObject, decode

T = TypeVar("T", bound=KubeObject)

_SEGMENT = re.compile(r"(?!\.{1,2}$)[^/\\%?#\s]+")  # of a path, that can lead nowhere else


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
        """Raises `BadRequest` for what is no name: part of it might be written by somebody who means another object."""
        for part in (namespace, name):
            if part and not _SEGMENT.fullmatch(part):
                raise BadRequest(f"{part[:80]!r} is not the name of a {self.name if part is name else 'Namespace'}")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"

    def serves(self, path: str) -> bool:
        """Whether a path leads to objects of this kind, or to a part of one."""
        root, plural = (f"/apis/{self.group}" if self.group else "/api") + f"/{self.version}", self.plural
        parts = path.removeprefix(f"{root}/").split("/") if path.startswith(f"{root}/") else []
        if self.namespaced and len(parts) > 2 and parts[0] == "namespaces":
            parts = parts[2:]
        return parts[:1] == [plural]

    def accept(self, *, listed: bool = False) -> str:
        """What to ask a server for. One that cannot leave out the rest sends whole objects."""
        if not issubclass(self.type, PartialObject):
            return "application/json"
        form = "PartialObjectMetadataList" if listed else "PartialObjectMetadata"
        return f"application/json;as={form};g=meta.k8s.io;v=v1,application/json"

    def decode(self, data: bytes | Raw) -> T:
        """An object of this kind from its JSON; raises `msgspec.DecodeError`."""
        return self.mark(decode(data, self.type))

    def mark(self, object_: T) -> T:
        """Tells an object that was built in this process what kind it is of."""
        object_.__dict__["_kind"] = self
        return object_

    def body(self, name: str, namespace: str = "", **metadata: object) -> Json:
        """The start of an object to send: who it is, and what else of its metadata is given."""
        place = {"namespace": namespace} if namespace else {}
        given = {key: value for key, value in metadata.items() if value}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": {"name": name, **place, **given}}


class PartialObject(KubeObject, frozen=True):
    """The metadata of an object of any kind, and nothing else of it."""

    def __post_init__(self) -> None:
        """Lets go of the rest, for servers that send it all the same."""
        msgspec.structs.force_setattr(self, "spec_json", Raw())
        msgspec.structs.force_setattr(self, "status_json", Raw())


def only_metadata(kind: Kind[T]) -> Kind[PartialObject]:
    """The same kind, of which only the metadata is asked for and kept."""
    return Kind(kind.group, kind.version, kind.name, kind.plural, PartialObject, kind.namespaced)


class Namespace(KubeObject, frozen=True):
    """A core Namespace; only its metadata matters here."""


class Event(KubeObject, frozen=True, rename="camel"):
    """A core Event, as far as it is read here."""

    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Lease(KubeObject, frozen=True):
    """A Lease of coordination.k8s.io: who leads, and since when nobody may doubt it."""


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
