"""What Karmada keeps of each copy, on an embedded hub. Entry points: `serve_works`, `keep`."""

from datum_compute.api.karmada import BINDING_NAMESPACE, WORK, WORK_NAME, WORK_NAMESPACE, Work
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject

SPACE = "karmada-es-cell"
_OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    KubeObject,
    namespaced=False,
)


async def serve_works(hub: Client) -> None:
    names = {"kind": WORK.name, "plural": WORK.plural, "singular": "work"}
    version = {"name": WORK.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}
    spec = {"group": WORK.group, "names": names, "scope": "Namespaced", "versions": [version]}
    await hub.create(_DEFINITION, _DEFINITION.body(WORK.resource) | {"spec": spec})
    await hub.create(NAMESPACE, NAMESPACE.body(SPACE))


async def keep(hub: Client, name: str, namespace: str) -> dict[str, str]:
    """A Work for something in the namespace; what the copy is marked with."""
    await hub.create(WORK, WORK.body(name, SPACE, annotations={BINDING_NAMESPACE: namespace}) | {"spec": {}})
    return {WORK_NAMESPACE: SPACE, WORK_NAME: name}


async def works(hub: Client) -> list[Work]:
    return (await hub.list(WORK)).items
