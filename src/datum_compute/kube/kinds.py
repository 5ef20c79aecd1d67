"""What a kind is called and where it is served. Entry point: `Kind`."""

from typing import Generic, TypeVar

from msgspec import Struct

from datum_compute.kube.meta import Json, KubeObject

T = TypeVar("T", bound=KubeObject)


class Kind(Struct, Generic[T], frozen=True):
    group: str
    version: str
    name: str
    plural: str
    type: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`plural.group`, as error messages and CRD names write it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"

    def body(self, name: str, namespace: str = "", **metadata: object) -> Json:
        """The start of an object to send: who it is, and what else of its metadata is given."""
        place = {"namespace": namespace} if namespace else {}
        given = {key: value for key, value in metadata.items() if value}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": {"name": name, **place, **given}}


class Namespace(KubeObject, frozen=True):
    """A core Namespace; only its metadata matters here."""


class Event(KubeObject, frozen=True):
    """A core Event. Its own fields stand beside its metadata; who reads them decodes the text itself."""


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = {}


class Lease(KubeObject, frozen=True):
    """A Lease of coordination.k8s.io: who leads, and since when nobody may doubt it."""


NAMESPACE = Kind("", "v1", "Namespace", "namespaces", Namespace, namespaced=False)
EVENT = Kind("", "v1", "Event", "events", Event)
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", ConfigMap)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", Lease)
