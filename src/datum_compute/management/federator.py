"""Copies each project deployment to the hub and brings its status back. Entry point: `Federator`."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import AVAILABLE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, Cluster, PropagationPolicy
from datum_compute.api.labels import (
    FEDERATION_NAMESPACE,
    FEDERATOR_FINALIZER,
    ROLLOUT_PAUSED,
    TOPOLOGY_CITY,
    UPSTREAM_CLUSTER,
    UPSTREAM_GENERATION,
    UPSTREAM_NAMESPACE,
)
from datum_compute.api.names import hub_namespace, is_name, policy_name
from datum_compute.federation.identity import Identity, bare_project, hub_labels
from datum_compute.federation.policy import city_policy, routes
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, missing_or_different, plain, same_json
from datum_compute.kube.patches import difference
from datum_compute.management import bindings
from datum_compute.management.failures import Failures
from datum_compute.management.metrics import HUB_TO_PROJECT, PROJECT_TO_HUB, ManagementMetrics
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

_CLAIMED_BY_POLICY = "propagationpolicy.karmada.io/permanent-id"
_MIRRORED = (ROLLOUT_PAUSED,)  # annotations that the hub copy has or lacks as the project deployment does
UNSCHEDULED_SECONDS = 60.0  # a hub deployment without status for this long may have no cluster to go to
UNANSWERED_SECONDS = 5.0  # one without status for this long may be held up by what is left of an earlier one


class Federator:
    """Owns the hub namespace, the hub deployment and the city's policy, and the status of the project deployment.

    `federated=False` says that this process was never given a hub: deployments are then let go of, since there can be
    nothing to clean up. A hub that was given and is not there is another matter: deletion waits for it.
    """

    name = "workload-deployment-federator"

    def __init__(
        self, fleet: Fleet, clock: Clock, *, metrics: ManagementMetrics | None = None, federated: bool = True
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._metrics = metrics or ManagementMetrics()
        self._federated = federated
        self._failures = Failures(self.name, clock)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, WORKLOAD_DEPLOYMENT, itself),
            Source(PROJECT, NAMESPACE, _in_renewed),
            Source(HUB, WORKLOAD_DEPLOYMENT, _from_hub),
            Source(HUB, NAMESPACE, self._of_namespace),
            Source(HUB, PROPAGATION_POLICY, _of_policy),
            Source(HUB, CLUSTER, _of_cluster),
        )

    def _of_namespace(self, hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """A hub namespace that got other labels or went: the deployments it is or was for are looked at."""
        seen = [namespace.metadata.labels for namespace in (change.before, change.after) if namespace is not None]
        if len(seen) == 2 and seen[0] == seen[1]:
            return
        for identity in filter(None, map(Identity.of, seen)):
            if self._fleet.has(identity.project):
                deployments = self._fleet.plane(identity.project).informer(WORKLOAD_DEPLOYMENT)
                for deployment in deployments.all(identity.namespace):
                    yield Request(identity.project, deployment.namespace, deployment.name)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        project = self._fleet.plane(request.plane)
        deployment = project.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, request.name)
        if deployment is None:
            self._failures.over(request)
        elif self._federated:
            with self._failures.told(project, deployment):
                await self._federate(project, deployment, request, pass_)
        elif deployment.metadata.deleting:
            await project.writer(self.name).remove_finalizers(WORKLOAD_DEPLOYMENT, deployment, FEDERATOR_FINALIZER)

    async def _federate(self, project: Plane, deployment: WorkloadDeployment, request: Request, pass_: Pass) -> None:
        hub = self._fleet.only(HUB)
        write, write_hub = project.writer(self.name), hub.writer(self.name)
        if deployment.metadata.deleting:
            await self._finalize(project, hub, deployment)
            return
        city = deployment.spec.city_code
        if not city:
            raise Unfinished("the deployment has no city code")
        namespace = await self._hub_namespace(project, deployment)
        deployment = await _recorded(write, deployment, namespace)
        await self._ensure_namespace(hub, write_hub, request, namespace)
        copy = await self._ensure_copy(hub, write_hub, deployment, namespace, pass_)
        if copy.metadata.deleting:
            return  # that of an earlier deployment, whose answer is not ours; the event of its end brings us back
        await self._ensure_policy(hub, write_hub, namespace, city)
        if told := plain(copy.status_json):
            mirrored = await write.status(WORKLOAD_DEPLOYMENT, deployment, told)
            if mirrored is not deployment:
                self._metrics.arrived(HUB_TO_PROJECT, pass_)
            return
        age = self._age(copy)
        if age < UNANSWERED_SECONDS:
            pass_.no_later_than(UNANSWERED_SECONDS - age)
            return
        await self._report_unscheduled(project, hub, deployment, age, pass_)
        await bindings.release(hub, write_hub, copy)

    def _age(self, copy: WorkloadDeployment) -> float:
        now = self._clock.now()
        return (now - (copy.metadata.creation_timestamp or now)).total_seconds()

    async def _hub_namespace(self, project: Plane, deployment: WorkloadDeployment) -> str:
        """Once it is noted, our cache is asked; before that the server, because a namespace may have been made anew."""
        namespace = project.informer(NAMESPACE).get("", deployment.namespace)
        noted = deployment.metadata.annotations.get(FEDERATION_NAMESPACE)
        if namespace is None or noted != hub_namespace(namespace.metadata.uid):
            namespace = await project.client.get(NAMESPACE, deployment.namespace)
        return hub_namespace(namespace.metadata.uid)

    async def _ensure_namespace(self, hub: Plane, write: Writer, request: Request, name: str) -> None:
        labels = hub_labels(request.plane, request.namespace)
        found = hub.informer(NAMESPACE).get("", name)
        if found is None:
            try:
                await write.create(NAMESPACE, NAMESPACE.body(name, labels=labels))
                return
            except AlreadyExists:
                found = await hub.client.get(NAMESPACE, name)
        if changed := missing_or_different(labels, found.metadata.labels):
            await write.patch(NAMESPACE, found, {"metadata": {"labels": changed}})

    async def _ensure_copy(
        self, hub: Plane, write: Writer, deployment: WorkloadDeployment, namespace: str, pass_: Pass
    ) -> WorkloadDeployment:
        city = deployment.spec.city_code
        labels = {TOPOLOGY_CITY: city, UPSTREAM_NAMESPACE: deployment.namespace}
        # In the same write as the spec: an answer to an older spec can then be told from one to this (R24).
        annotations = {UPSTREAM_GENERATION: str(deployment.metadata.generation)} | {
            key: deployment.metadata.annotations[key] for key in _MIRRORED if key in deployment.metadata.annotations
        }
        found = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        if found is None:
            body = WORKLOAD_DEPLOYMENT.body(deployment.name, namespace, labels=labels, annotations=annotations)
            try:
                created = await write.create(WORKLOAD_DEPLOYMENT, body | {"spec": deployment.spec_json})
                self._metrics.arrived(PROJECT_TO_HUB, pass_)
                return created
            except AlreadyExists:
                found = await hub.client.get(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        patch = _changes(found, deployment.spec_json, labels, annotations)
        if not patch or found.metadata.deleting:
            return found
        old_city = found.metadata.labels.get(TOPOLOGY_CITY, "")
        if old_city and old_city != city:  # before the label that tells us is overwritten
            await self._release_policy(hub, write, namespace, old_city, leaving=deployment.name)
            # Karmada ignores the new city's policy while the old one's mark is on the object.
            patch["metadata"]["labels"][_CLAIMED_BY_POLICY] = None
        patched = await write.patch(WORKLOAD_DEPLOYMENT, found, patch)
        self._metrics.arrived(PROJECT_TO_HUB, pass_)
        return patched

    async def _ensure_policy(self, hub: Plane, write: Writer, namespace: str, city: str) -> None:
        """On every pass: the last user of a city may have removed the policy a moment ago."""
        found = hub.informer(PROPAGATION_POLICY).get(namespace, policy_name(city))
        if found is None:
            try:
                await write.create(PROPAGATION_POLICY, city_policy(namespace, city))
                return
            except AlreadyExists:
                found = await hub.client.get(PROPAGATION_POLICY, policy_name(city), namespace)
        if not routes(found, city):
            spellings = {user.metadata.labels.get(TOPOLOGY_CITY, "") for user in self._users(hub, namespace)} - {city}
            if other := next((one for one in sorted(spellings) if policy_name(one) == found.name), ""):
                raise Unfinished(f'city "{city}" cannot be told from "{other}", which is in use here')
            wanted = city_policy(namespace, city)["spec"]
            actual = {key: value for key, value in plain(found.spec_json).items() if key in wanted}
            await write.patch(PROPAGATION_POLICY, found, {"spec": difference(actual, wanted)})

    async def _report_unscheduled(
        self, project: Plane, hub: Plane, deployment: WorkloadDeployment, age: float, pass_: Pass
    ) -> None:
        """Karmada says nothing about an object that no cluster fits; after a minute of silence we do."""
        city = deployment.spec.city_code
        if any(cluster.metadata.labels.get(TOPOLOGY_CITY) == city for cluster in hub.informer(CLUSTER).all()):
            return
        if age < UNSCHEDULED_SECONDS:
            pass_.no_later_than(UNSCHEDULED_SECONDS - age)
            return
        now = self._clock.now()
        message = f'No site serves city "{city}" at the moment'
        generation = deployment.metadata.generation
        decided = conditions.condition(
            AVAILABLE, False, reasons.NO_MATCHING_LOCATION, message, generation=generation, now=now
        )
        before = conditions.of(deployment)
        earlier = conditions.find(before, AVAILABLE)
        counters = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
        status: Json = plain(deployment.status_json) | dict.fromkeys(counters, 0)
        status["observedGeneration"] = generation
        status["conditions"] = conditions.to_json(conditions.updated(before, [decided]))
        await project.writer(self.name).status(WORKLOAD_DEPLOYMENT, deployment, status)
        if earlier is None or earlier.reason != decided.reason:
            project.events.warning(self.name, WORKLOAD_DEPLOYMENT, deployment, decided.reason, message, now=now)

    # Deletion

    async def _finalize(self, project: Plane, hub: Plane, deployment: WorkloadDeployment) -> None:
        if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
            return
        write = hub.writer(self.name)
        city = deployment.spec.city_code
        if not city:
            raise Unfinished("the deployment has no city code, so its policy cannot be told")
        # The annotation first: a namespace that is being deleted must not hold up what lives in it.
        namespace = _noted_namespace(project, hub, deployment) or await self._hub_namespace(project, deployment)
        copy = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        old_city = copy.metadata.labels.get(TOPOLOGY_CITY, "") if copy is not None else ""
        if old_city and old_city != city:  # while the copy still tells of it, in case of a failure in between
            await self._release_policy(hub, write, namespace, old_city, leaving=deployment.name)
        # Before the policies: of several that leave at once the last one must see that the others have left.
        await write.delete_named(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        for one in filter(None, {city, old_city}):
            await self._release_policy(hub, write, namespace, one, leaving=deployment.name)
        await project.writer(self.name).remove_finalizers(WORKLOAD_DEPLOYMENT, deployment, FEDERATOR_FINALIZER)

    async def _release_policy(self, hub: Plane, write: Writer, namespace: str, city: str, *, leaving: str) -> None:
        """Removes the policy when no live deployment of the city is left. One that comes right now ensures it anew."""
        if not is_name(policy_name(city)):
            return  # so there cannot be one
        if not any(
            user.metadata.labels.get(TOPOLOGY_CITY) == city and user.name != leaving
            for user in self._users(hub, namespace)
        ):
            await write.delete_named(PROPAGATION_POLICY, policy_name(city), namespace)

    def _users(self, hub: Plane, namespace: str) -> list[WorkloadDeployment]:
        """Of the policies in a hub namespace."""
        return [one for one in hub.informer(WORKLOAD_DEPLOYMENT).all(namespace) if not one.metadata.deleting]


async def _recorded(write: Writer, deployment: WorkloadDeployment, namespace: str) -> WorkloadDeployment:
    """Finalizer and hub namespace are on the object before anything is written to the hub."""
    metadata: Json = {}
    if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
        metadata["finalizers"] = [*deployment.metadata.finalizers, FEDERATOR_FINALIZER]
    if deployment.metadata.annotations.get(FEDERATION_NAMESPACE) != namespace:
        metadata["annotations"] = {FEDERATION_NAMESPACE: namespace}
    return await write.patch_seen(WORKLOAD_DEPLOYMENT, deployment, {"metadata": metadata}) if metadata else deployment


def _noted_namespace(project: Plane, hub: Plane, deployment: WorkloadDeployment) -> str:
    """Where the copy was put, by the annotation, which the user can edit: empty when it leads to somebody else."""
    noted = deployment.metadata.annotations.get(FEDERATION_NAMESPACE, "")
    home = hub.informer(NAMESPACE).get("", noted)
    ours = home is not None and Identity.of(home.metadata.labels) == Identity(project.name, deployment.namespace)
    return noted if ours else ""


def _changes(found: WorkloadDeployment, spec: Raw, labels: dict[str, str], annotations: dict[str, str]) -> Json:
    patch: Json = {}
    if not same_json(found.spec_json, spec):
        patch["spec"] = difference(plain(found.spec_json), plain(spec))
    taken_away = {key: None for key in _MIRRORED if key in found.metadata.annotations and key not in annotations}
    metadata: Json = {
        "labels": missing_or_different(labels, found.metadata.labels),
        "annotations": missing_or_different(annotations, found.metadata.annotations) | taken_away,
    }
    if changed := {key: value for key, value in metadata.items() if value}:
        patch["metadata"] = changed
    return patch


def _in_renewed(project: Plane, change: Change[Namespace]) -> Iterable[Request]:
    """A namespace that was made anew belongs to another one on the hub."""
    if change.before is not None and change.before.metadata.uid != change.object.metadata.uid:
        for deployment in project.informer(WORKLOAD_DEPLOYMENT).all(change.object.name):
            yield Request(project.name, deployment.namespace, deployment.name)


def _from_hub(hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
    """Both sides of a change count, so that a label that was taken away is put back."""
    yield from dict.fromkeys(_origin(hub, copy) for copy in (change.before, change.after) if copy is not None)


def _origin(hub: Plane, copy: WorkloadDeployment) -> Request | Drop:
    """The project deployment that a hub deployment is a copy of; identity comes from the hub namespace."""
    namespace = copy.metadata.labels.get(UPSTREAM_NAMESPACE)
    home = hub.informer(NAMESPACE).get("", copy.namespace)
    if not namespace or home is None or UPSTREAM_CLUSTER not in home.metadata.labels:
        return Drop("unlabelled")
    if not (project := bare_project(home.metadata.labels[UPSTREAM_CLUSTER])):
        return Drop("undecodable")
    return Request(project, namespace, copy.name)


def _of_policy(hub: Plane, change: Change[PropagationPolicy]) -> Iterable[Request | Drop]:
    """A policy that was edited or removed: every deployment of its city ensures it again."""
    for copy in hub.informer(WORKLOAD_DEPLOYMENT).all(change.object.namespace):
        if policy_name(copy.metadata.labels.get(TOPOLOGY_CITY, "")) == change.object.name:
            yield _origin(hub, copy)


def _of_cluster(hub: Plane, change: Change[Cluster]) -> Iterable[Request | Drop]:
    """A site that came, went or changed its city: whoever still waits for a first answer is looked at again."""
    seen = [cluster for cluster in (change.before, change.after) if cluster is not None]
    cities = {cluster.metadata.labels.get(TOPOLOGY_CITY, "") for cluster in seen}
    if len(seen) == 2 and len(cities) == 1:
        return
    for copy in hub.informer(WORKLOAD_DEPLOYMENT).all():
        if copy.metadata.labels.get(TOPOLOGY_CITY) in cities and not plain(copy.status_json):
            yield _origin(hub, copy)
