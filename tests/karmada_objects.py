"""What Karmada keeps on a hub beside what it was asked for, on an embedded hub, which keeps nothing.

Entry points: `serve`, `keep`, `bind`, and `define` for any kind.
"""

import asyncio
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import BINDING_NAMESPACE, RESOURCE_BINDING, WORK, WORK_NAME, WORK_NAMESPACE
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import DEFINITION, NAMESPACE, Kind
from datum_compute.kube.meta import Json

SPACE = "karmada-es-cell"
_OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


async def define(client: Client, kind: Kind[Any]) -> None:
    """Lets a plane serve a kind, with whatever is in its objects; returns when it does."""
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}
    names = {"kind": kind.name, "plural": kind.plural}
    spec = {"group": kind.group, "names": names, "scope": "Namespaced", "versions": [version]}
    await client.create(DEFINITION, DEFINITION.body(kind.resource) | {"spec": spec})
    async with asyncio.timeout(60):
        while not await _is_served(client, kind):  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.01)


async def _is_served(client: Client, kind: Kind[Any]) -> bool:
    try:
        await client.list(kind)
    except NotFound:
        return False
    return True


async def serve(hub: Client) -> None:
    """Works and bindings, which a test makes itself, and a namespace for the Works of one cell."""
    for kind in (WORK, RESOURCE_BINDING):
        await define(hub, kind)
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


async def names_of(hub: Client, kind: Kind[Any]) -> list[str]:
    return sorted(item.name for item in (await hub.list(kind)).items)
