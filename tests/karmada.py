"""What Karmada keeps on a hub beside what it was asked for, on an embedded hub, which keeps nothing.

Entry points: `serve`, `keep`, `bind`.
"""

from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import BINDING_NAMESPACE, RESOURCE_BINDING, WORK, WORK_NAME, WORK_NAMESPACE
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


async def serve(hub: Client) -> None:
    """Works and bindings, which a test makes itself, and a namespace for the Works of one cell."""
    for kind in (WORK, RESOURCE_BINDING):
        names = {"kind": kind.name, "plural": kind.plural}
        version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}
        spec = {"group": kind.group, "names": names, "scope": "Namespaced", "versions": [version]}
        await hub.create(_DEFINITION, _DEFINITION.body(kind.resource) | {"spec": spec})
    await hub.create(NAMESPACE, NAMESPACE.body(SPACE))


async def keep(hub: Client, name: str, namespace: str) -> dict[str, str]:
    """A Work for something in the namespace; what the copy is marked with."""
    await hub.create(WORK, WORK.body(name, SPACE, annotations={BINDING_NAMESPACE: namespace}) | {"spec": {}})
    return {WORK_NAMESPACE: SPACE, WORK_NAME: name}


async def bind(hub: Client, name: str, namespace: str, uid: str) -> None:
    """The binding of a deployment that has, or had, this uid."""
    # Of a kind that is not served, so that garbage collection overlooks it.
    owner = {"apiVersion": "overlooked.example/v1", "kind": WORKLOAD_DEPLOYMENT.name, "name": name, "uid": uid}
    owners = [owner | {"controller": True, "blockOwnerDeletion": True}]
    body = RESOURCE_BINDING.body(f"{name}-workloaddeployment", namespace, ownerReferences=owners)
    await hub.create(RESOURCE_BINDING, body | {"spec": {}})


async def names(hub: Client, kind: Kind[Any]) -> list[str]:
    return sorted(one.name for one in (await hub.list(kind)).items)
