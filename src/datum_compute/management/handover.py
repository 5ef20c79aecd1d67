"""Hands what a cell that is gone has left to the cell that serves its city now. Entry point: `Handover`.

Quota claims and the hub's copies of Instances bear the name of the cell that changes and removes them. When a cell is
renamed or replaced, they get the new name, and claims keep their grants. It is done only when nobody can hold the old
name any more.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, Cluster, execution_space
from datum_compute.api.labels import CITY_CODE, SOURCE_CLUSTER
from datum_compute.api.names import claimed_instance, deployment_of
from datum_compute.api.quota import RESOURCE_CLAIM, ResourceClaim
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.sites import concerns_cities, serving_cluster
from datum_compute.kube.errors import Forbidden, NotFound
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime import Change, Fleet, Pass, Plane, Problems, Request, Source
from datum_compute.runtime.leases import LeaseView

T = TypeVar("T", bound=KubeObject)

_log = structlog.get_logger(__name__)


class Handover:
    """Reads claims live and rarely: cells use claims that bear another name at once, so nobody waits for this."""

    name = "handover"
    sweep_role = PROJECT
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._leases: dict[str, LeaseView] = {}  # by the name of the cell, of those that ever had one
        self._refused: set[str] = set()  # planes whose claims may not be listed

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(HUB, CLUSTER, self._everywhere, when=concerns_cities),
            Source(HUB, INSTANCE),
            Source(PROJECT, WORKLOAD_DEPLOYMENT),
        )

    def disengaged(self, plane: Plane) -> None:
        self._refused.discard(plane.name)

    def sweep(self, plane: Plane) -> Iterable[Request]:
        for place in (plane, *self._fleet.of_role(HUB)):
            yield Request(place.name, "", self.name)

    def _everywhere(self, hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
        for plane in (hub, *self._fleet.of_role(PROJECT)):
            yield Request(plane.name, "", self.name)

    async def reconcile(self, pass_: Pass) -> None:
        hub = pass_.on(HUB).plane
        problems = Problems()
        if pass_.plane is hub:
            for copy in hub.informer(INSTANCE).all():
                with problems.collect(f"Instance {copy.namespace}/{copy.name}"):
                    await self._consider(pass_, hub, copy, copy.metadata.labels.get(CITY_CODE, ""))
        else:
            for claim in await self._claims(pass_.plane):
                with problems.collect(f"Claim {claim.namespace}/{claim.name}"):
                    await self._consider(pass_, hub, claim, _city(pass_.plane, claim))
        problems.raise_worst()

    async def _consider(self, pass_: Pass, hub: Plane, object_: KubeObject, city: str) -> None:
        bearer = object_.metadata.labels.get(SOURCE_CLUSTER, "")
        serving = serving_cluster(hub.informer(CLUSTER).all(), city)
        if not bearer or serving in ("", bearer) or object_.metadata.deleting:
            return
        if not await self._may_hand_over(hub, bearer, serving, pass_):
            return
        # Only if it is still as it was seen: the cell may have changed or removed it meanwhile.
        patch = {"metadata": {"labels": {SOURCE_CLUSTER: serving}}}
        await pass_.write.patch_if_unchanged(object_, patch)
        place = f"{object_.namespace}/{object_.name}"
        _log.info("handed over", plane=pass_.name, kind=object_.kind.name, object=place, before=bearer, now=serving)

    async def _claims(self, project: Plane) -> list[ResourceClaim]:
        try:
            claims = (await project.client.list(RESOURCE_CLAIM, selector=SOURCE_CLUSTER)).items
        except NotFound:
            return []  # the project has no quota system
        except Forbidden as error:
            if project.name not in self._refused:
                self._refused.add(project.name)
                _log.warning("claims cannot be handed over", plane=project.name, error=str(error))
            return []
        self._refused.discard(project.name)
        return claims

    async def _may_hand_over(self, hub: Plane, bearer: str, serving: str, pass_: Pass) -> bool:
        """A name without a Lease was never configured, or belongs to a Cluster that the hub no longer has."""
        former = await self._lease(hub, bearer)
        if former.alive:
            pass_.no_later_than(former.expiry - asyncio.get_running_loop().time())
            return False
        successor = await self._lease(hub, serving)
        if not successor.alive:
            _log.debug("not handed over", bearer=bearer, serving=serving, why="nobody holds that name")
        return successor.alive

    async def _lease(self, hub: Plane, cell: str) -> LeaseView:
        view = self._leases.get(cell) or LeaseView(hub.client, execution_space(cell), cell)
        await view.look()
        if view.holder:  # names come from labels: nobody may fill the memory with invented ones
            self._leases.setdefault(cell, view)
        return view


def _city(project: Plane, claim: ResourceClaim) -> str:
    """As the claim says; one that was made before claims said so, by the deployment that it is for."""
    if city := claim.metadata.labels.get(CITY_CODE):
        return city
    name = deployment_of(claimed_instance(claim.name))
    deployment = project.informer(WORKLOAD_DEPLOYMENT).get(claim.namespace, name)
    return deployment.spec.city_code if deployment is not None else ""
