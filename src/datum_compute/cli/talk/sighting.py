"""Reads what explains the state of a workload. Entry points: `Reader`, `base_of`, `answered`.

Three calls suffice for a workload that is fine; what else is read depends on where it is held up.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from datum_compute.answers.delivery import has_arrived, serving
from datum_compute.answers.hops import Finding, Hop, View
from datum_compute.answers.seen import Gap, Hub, Seen, Site
from datum_compute.answers.why import Answer, views, why
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, RESOURCE_BINDING
from datum_compute.api.labels import FEDERATION_NAMESPACE, SERVING_CLUSTER, WORKLOAD_NAME
from datum_compute.api.names import claim_name, hub_namespace
from datum_compute.api.networking import LOCATION_BINDING, NETWORK
from datum_compute.api.permissions import MANAGEMENT_LEASE
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.show.fragments import last_change, updated_at
from datum_compute.cli.talk.planes import Federation, Plane
from datum_compute.cli.talk.project import NAMESPACE as PROJECT_NAMESPACE
from datum_compute.cli.talk.project import Project, Read, of_workload
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.kinds import EVENT, LEASE, NAMESPACE

_CITIES = 3  # of which the planes on the way are read
_OWED = (Hop.MANAGER, Hop.DEPLOYMENT, Hop.HUB, Hop.SITE, Hop.WAY)  # an answer, since the last change
_UNSENT = (Hop.MANAGER, Hop.NETWORK, Hop.OFFER, Hop.DEPLOYMENT)


def base_of(
    project: Project,
    read: Read[Workload],
    deployments: Sequence[WorkloadDeployment] | Gap,
    instances: Sequence[Instance] | Gap,
) -> Seen:
    """What every command that shows a workload has read of it."""
    return Seen(
        project.name,
        read.object,
        deployments if isinstance(deployments, Gap) else tuple(deployments),
        instances if isinstance(instances, Gap) else tuple(instances),
        changed=last_change(read),
    )


def answered(
    project: Project, read: Read[Workload], seen: Seen, now: datetime, revisions: Revisions | None = None
) -> tuple[Seen, Answer]:
    """What can be said from what was read, the same in every command.

    Since when an answer is owed is in the history of the workload, which is read if it matters and is not given.
    """
    answer = why(seen, now)
    if answer.blocks and _first(answer).hop in _OWED:
        known = history.read(project, read.object) if revisions is None else revisions
        seen = replace(seen, changed=updated_at(read, known))
        answer = why(seen, now)
    return seen, answer


class Reader:
    """Reads one workload; `federation` is there for operators, and for a federation on this machine."""

    def __init__(
        self, project: Project, federation: Federation | None, now: datetime, *, has_catalog: bool = False
    ) -> None:
        self._project = project
        self._plane = Plane(project.transport)
        self._federation = federation
        self._now = now
        self._has_catalog = has_catalog

    def workload_of(self, name: str) -> tuple[Read[Workload], str]:
        """The workload of this name; else the workload of the instance of this name, and the name of the instance."""
        if (found := self._project.find(WORKLOAD, name)) is not None:
            return found, ""
        instance = self._plane.get(INSTANCE, name, PROJECT_NAMESPACE)
        owner = "" if isinstance(instance, Gap) else instance.metadata.labels.get(WORKLOAD_NAME, "")
        return self._project.get(WORKLOAD, owner or name), name if owner else ""

    def read(self, read: Read[Workload], instance: str = "") -> Seen:
        """Everything that is needed to say why, and nothing else."""
        selector = of_workload(read.object)
        seen = base_of(
            self._project,
            read,
            self._plane.list(WORKLOAD_DEPLOYMENT, PROJECT_NAMESPACE, selector),
            self._plane.list(INSTANCE, PROJECT_NAMESPACE, selector),
        )
        seen = replace(
            seen,
            server_time=self._plane.time,
            operator=self._federation is not None,
            has_catalog=self._has_catalog,
        )
        seen = self._with_clusters(seen)
        seen, _ = answered(self._project, read, seen, self._now)
        answer = why(seen, self._now, instance)
        if not answer.blocks:
            return seen
        seen = self._with_project(seen, answer)
        return self._with_federation(seen, instance)

    def _with_clusters(self, seen: Seen) -> Seen:
        if self._federation is None:
            return seen
        return replace(seen, hub=replace(seen.hub, clusters=self._federation.hub.list(CLUSTER)))

    # The project

    def _with_project(self, seen: Seen, answer: Answer) -> Seen:
        plane, finding = self._plane, _first(answer)
        seen = replace(seen, entitlements=plane.list(SERVICE_ENTITLEMENT))
        if any(city.finding and city.finding.hop in _UNSENT for city in answer.cities):
            seen = replace(seen, offers=plane.list(LOCATION_BINDING), networks=self._networks(seen))
        if finding.hop is Hop.GATES and finding.instance:
            claim = plane.get(RESOURCE_CLAIM, claim_name(finding.instance), PROJECT_NAMESPACE)
            seen = replace(seen, claims=_listed(claim))
        name = finding.object.rpartition("/")[2]
        events = plane.list(EVENT, PROJECT_NAMESPACE, fields=f"involvedObject.name={name}") if name else Gap.NOT_ASKED
        return replace(seen, events=events)

    def _networks(self, seen: Seen) -> object:
        """By name, because users may read single networks only."""
        named = {interface.network.name for interface in seen.workload.spec.template.spec.network_interfaces}
        parts = [self._plane.get(NETWORK, name, PROJECT_NAMESPACE) for name in sorted(named)]
        gaps = [part for part in parts if isinstance(part, Gap) and part is not Gap.ABSENT]
        return gaps[0] if gaps else tuple(part for part in parts if not isinstance(part, Gap))

    # The other planes

    def _with_federation(self, seen: Seen, instance: str) -> Seen:
        federation = self._federation
        if federation is None:
            return seen
        answer = why(seen, self._now, instance)
        finding = _first(answer)
        if finding.hop is Hop.MANAGER and federation.host is not None:
            leases = federation.host.list(LEASE, fields=f"metadata.name={MANAGEMENT_LEASE}")
            return replace(seen, lease=leases[0] if not isinstance(leases, Gap) and leases else Gap.ABSENT)
        troubled = {city.place for city in answer.cities if city.finding is not None}
        places = [view for view in views(seen, self._now, instance) if view.place in troubled and view.name]
        for view in places[:_CITIES]:
            seen = self._with_place(seen, federation, view)
        return seen

    def _with_place(self, seen: Seen, federation: Federation, view: View) -> Seen:
        hub, home = federation.hub, self._hub_namespace(view)
        if not home:
            return seen
        if isinstance(seen.hub.deployments, Gap):
            seen = _hub(seen, deployments=hub.list(WORKLOAD_DEPLOYMENT, home))
        view = _again(seen, view)
        cluster = _cluster(view)
        site = Site()
        if cluster:
            cell = federation.cell(cluster, view.place.city)
            site = Site(cell.list(WORKLOAD_DEPLOYMENT, home))
            seen = replace(seen, sites={**seen.sites, view.place.city: site})
            view = _again(seen, view)
            if has_arrived(view) or view.seen.workload.metadata.deleting:
                site = replace(site, instances=cell.list(INSTANCE, home))
                return replace(seen, sites={**seen.sites, view.place.city: site})
        if isinstance(seen.hub.namespace, Gap) and (view.hub_copy is None or isinstance(seen.hub.deployments, Gap)):
            seen = _hub(seen, namespace=hub.get(NAMESPACE, home))
        if isinstance(seen.hub.policies, Gap):
            seen = _hub(seen, policies=hub.list(PROPAGATION_POLICY, home), bindings=hub.list(RESOURCE_BINDING, home))
        return seen

    def _hub_namespace(self, view: View) -> str:
        if view.deployment is not None and (home := view.deployment.metadata.annotations.get(FEDERATION_NAMESPACE)):
            return home
        namespace = self._plane.get(NAMESPACE, PROJECT_NAMESPACE)
        return "" if isinstance(namespace, Gap) else hub_namespace(namespace.metadata.uid)


def _first(answer: Answer) -> Finding:
    assert answer.cause is not None
    assert answer.cause.finding is not None
    return answer.cause.finding


def _listed(part: object) -> object:
    if part is Gap.ABSENT:
        return ()
    return part if isinstance(part, Gap) else (part,)


def _hub(seen: Seen, **parts: object) -> Seen:
    hub: Hub = replace(seen.hub, **parts)
    return replace(seen, hub=hub)


def _again(seen: Seen, view: View) -> View:
    return View(seen, view.now, view.place, view.wanted, view.numbers, view.deployment, view.only)


def _cluster(view: View) -> str:
    """The Cluster that serves the city: by the hub's list, else by what the deployment names."""
    cluster = serving(view)
    if cluster is not None:
        return cluster.name
    return view.hub_copy.metadata.annotations.get(SERVING_CLUSTER, "") if view.hub_copy is not None else ""
