"""Hands the objects of a cell that is gone to the cell that serves its city now. Entry point: `Handover`.

Quota claims and the hub's copies of Instances carry the name of the cell that may change and delete them. When a cell
is renamed or replaced, they get the new name, and claims keep their grants. That happens only once nobody can hold the
old name any more.
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
    """Reads claims from the server, rarely: cells use claims with another cell's name at once, so nobody waits."""

    name = "handover"
    sweep_role = PROJECT
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._leases: dict[str, LeaseView] = {}  # by cell name, for names that have been held
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
        for target in (plane, *self._fleet.of_role(HUB)):
            yield Request(target.name, "", self.name)

    def _everywhere(self, hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
        for plane in (hub, *self._fleet.of_role(PROJECT)):
            yield Request(plane.name, "", self.name)

    async def reconcile(self, pass_: Pass) -> None:
        hub = pass_.on(HUB).plane
        problems = Problems()
        if pass_.plane is hub:
            for copy in hub.informer(INSTANCE).all():
                with problems.collect(f"Instance {copy.namespace}/{copy.name}"):
                    await self._hand_over(pass_, hub, copy, copy.metadata.labels.get(CITY_CODE, ""))
        else:
            for claim in await self._claims(pass_.plane):
                with problems.collect(f"Claim {claim.namespace}/{claim.name}"):
                    await self._hand_over(pass_, hub, claim, _city(pass_.plane, claim))
        problems.raise_worst()

    async def _hand_over(self, pass_: Pass, hub: Plane, object_: KubeObject, city: str) -> None:
        former = object_.metadata.labels.get(SOURCE_CLUSTER, "")
        serving = serving_cluster(hub.informer(CLUSTER).all(), city)
        if not former or serving in ("", former) or object_.metadata.deleting:
            return
        if not await self._may_hand_over(hub, former, serving, pass_):
            return
        # Only if it is unchanged: the cell may have changed or deleted it meanwhile.
        await pass_.write.patch_if_unchanged(object_, {"metadata": {"labels": {SOURCE_CLUSTER: serving}}})
        key = f"{object_.namespace}/{object_.name}"
        _log.info("handed over", plane=pass_.name, kind=object_.kind.name, object=key, before=former, now=serving)

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

    async def _may_hand_over(self, hub: Plane, former: str, serving: str, pass_: Pass) -> bool:
        """A name without a Lease was never configured, or belongs to a Cluster that the hub no longer has."""
        lease = await self._lease(hub, former)
        if lease.alive:
            pass_.no_later_than(lease.expiry - asyncio.get_running_loop().time())
            return False
        successor = await self._lease(hub, serving)
        if not successor.alive:
            _log.debug("not handed over", former=former, serving=serving, reason="nobody holds the new name")
        return successor.alive

    async def _lease(self, hub: Plane, cell: str) -> LeaseView:
        view = self._leases.get(cell) or LeaseView(hub.client, execution_space(cell), cell)
        await view.look()
        if view.holder:  # names come from labels, and invented ones must not fill the memory
            self._leases.setdefault(cell, view)
        return view


def _city(project: Plane, claim: ResourceClaim) -> str:
    """The city in the claim's label; for claims older than that label, the city of their deployment."""
    if city := claim.metadata.labels.get(CITY_CODE):
        return city
    name = deployment_of(claimed_instance(claim.name))
    deployment = project.informer(WORKLOAD_DEPLOYMENT).get(claim.namespace, name)
    return deployment.spec.city_code if deployment is not None else ""
