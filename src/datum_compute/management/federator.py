"""Copies each project deployment to the hub and brings its status back. Entry point: `Federator`."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import FEDERATED, WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import AVAILABLE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, Cluster, PropagationPolicy
from datum_compute.api.labels import (
    FEDERATION_NAMESPACE,
    FEDERATOR_FINALIZER,
    ROLLOUT_PAUSED,
    SERVING_CLUSTER,
    TOPOLOGY_CITY,
    UPSTREAM_CLUSTER,
    UPSTREAM_GENERATION,
    UPSTREAM_NAMESPACE,
    UPSTREAM_UID,
)
from datum_compute.api.names import hub_namespace, is_name, policy_name
from datum_compute.federation.identity import Identity, bare_project, hub_labels
from datum_compute.federation.metrics import HUB_TO_PROJECT, PROJECT_TO_HUB
from datum_compute.federation.obstacles import Blocked, Obstacle, Obstacles, warn_of_obstacle
from datum_compute.federation.policy import city_policy, routed_city, routes
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.scope import PROJECT_NAMESPACES
from datum_compute.federation.sites import city_of, serving_cluster
from datum_compute.federation.withdrawals import Note
from datum_compute.karmada import bindings
from datum_compute.kube import conditions, tracing
from datum_compute.kube.errors import AlreadyExists, Conflict, NamespaceTerminating
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, as_dict
from datum_compute.kube.patches import changes, difference
from datum_compute.management.federated_status import is_answered, mirrored, with_obstacle, without_obstacle
from datum_compute.management.hub_outages import HubOutages
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.withdrawal_journal import WithdrawalJournal
from datum_compute.management.withdrawal_notes import WithdrawalNotes, release_policy, remove_note
from datum_compute.runtime import Change, Drop, Fleet, Handle, Pass, Plane, Problems, Request, Source, Writer, itself

_CLAIMED_BY_POLICY = "propagationpolicy.karmada.io/permanent-id"
_MIRRORED = (ROLLOUT_PAUSED,)  # annotations that the hub copy has exactly when the project deployment has them
UNSCHEDULED_SECONDS = 60.0  # a hub deployment without status for this long may have no cluster to go to
UNANSWERED_SECONDS = 5.0  # one without status for this long may be held up by the remains of an earlier deployment


class Federator:
    """Owns the hub namespace, the hub deployment and the city's policy, and the status of the project deployment.

    `federated=False` means that this process was never given a hub. Deployments are then released on deletion, since
    there cannot be anything to clean up. If a hub is configured but unreachable, deletion waits for it.
    """

    name = "workload-deployment-federator"

    def __init__(self, fleet: Fleet, *, metrics: ManagementMetrics | None = None, federated: bool = True) -> None:
        self._fleet = fleet
        self._metrics = metrics or ManagementMetrics()
        self._federated = federated
        self._outages = HubOutages()
        self._obstacles = Obstacles()
        self._notes = WithdrawalNotes()
        self._journal = WithdrawalJournal()
        self._unanswered: dict[Request, tuple[str, float]] = {}  # uid of the copy, and loop time since when

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, WORKLOAD_DEPLOYMENT, itself, scope=PROJECT_NAMESPACES),
            Source(PROJECT, NAMESPACE, _of_recreated_namespace),
            Source(HUB, WORKLOAD_DEPLOYMENT, _of_copy),
            Source(HUB, NAMESPACE, self._of_hub_namespace),
            Source(HUB, PROPAGATION_POLICY, _of_policy),
            Source(HUB, CLUSTER, _of_cluster),
        )

    def _of_hub_namespace(self, hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """The deployments that a hub namespace is or was for, when it was relabelled or deleted."""
        labels = [namespace.metadata.labels for namespace in (change.before, change.after) if namespace is not None]
        if len(labels) == 2 and labels[0] == labels[1]:
            return
        for identity in filter(None, map(Identity.of, labels)):
            if self._fleet.has(identity.project):
                deployments = self._fleet.plane(identity.project).informer(WORKLOAD_DEPLOYMENT)
                for deployment in deployments.all(identity.namespace):
                    yield Request(identity.project, deployment.namespace, deployment.name)

    def disengaged(self, plane: Plane) -> None:
        self._outages.forget_plane(plane.name)
        self._obstacles.forget_plane(plane.name)
        self._journal.forget(plane.name)
        for request in [request for request in self._unanswered if request.plane == plane.name]:
            del self._unanswered[request]

    async def reconcile(self, pass_: Pass) -> None:
        deployment = pass_.get(WORKLOAD_DEPLOYMENT)
        if deployment is None or deployment.metadata.deleting:
            self._unanswered.pop(pass_.request, None)
        if deployment is None:
            self._outages.forget(pass_.request)
            self._obstacles.forget(pass_.request)
        elif self._federated:
            with self._outages.reported(pass_, deployment):
                await self._federate(pass_, pass_.on(HUB), deployment)
        elif deployment.metadata.deleting:
            await pass_.write.remove_finalizers(deployment, FEDERATOR_FINALIZER)

    async def _federate(self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment) -> None:
        if deployment.metadata.deleting:
            await self._finalize(pass_, hub, deployment)
            return
        namespace = await self._hub_namespace(pass_, deployment)
        problems = Problems()
        copy = _cached_copy(pass_, hub, deployment, namespace)
        # Mirror before pushing, so that what runs is reported even while the hub accepts nothing new.
        with problems.collect("The status"):
            deployment = await self._mirror(pass_, deployment, copy)
        if any(isinstance(problem.error, Conflict) for problem in problems):
            problems.raise_worst()  # our view of the deployment is outdated and must not be pushed
        with problems.collect("The deployment"):
            if not deployment.spec.city_code:
                raise Blocked(reasons.FEDERATION_FAILED, "The deployment has no city code")
            deployment = await _marked(pass_.write, deployment, namespace)
            copy = await self._push(pass_, hub, deployment, namespace, problems) or copy
        if copy is not None and copy.metadata.deleting:
            copy = None  # it answers for an earlier deployment; the event of its deletion starts the next pass
        with problems.collect("The status"):
            deployment = await self._mirror(pass_, deployment, copy)
            deployment = await self._report_obstacle(pass_, deployment, problems, answered=is_answered(copy))
        if is_answered(copy):
            self._unanswered.pop(pass_.request, None)
        elif copy is not None and not problems:
            await self._await_answer(pass_, hub, deployment, copy)
        problems.raise_worst()

    async def _mirror(
        self, pass_: Pass, deployment: WorkloadDeployment, copy: WorkloadDeployment | None
    ) -> WorkloadDeployment:
        if copy is None or not is_answered(copy):
            return deployment
        after = await pass_.write.status(deployment, mirrored(deployment, copy))
        if after is not deployment:
            self._metrics.arrived(HUB_TO_PROJECT, pass_)
        return after

    async def _push(
        self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, namespace: str, problems: Problems
    ) -> WorkloadDeployment | None:
        """Writes namespace, deployment and policy to the hub. Returns the copy; None when it could not be written."""
        city = deployment.spec.city_code
        copy: WorkloadDeployment | None = None
        with problems.collect(f"Namespace {namespace} on the hub"):
            await self._ensure_namespace(hub, deployment, pass_.request, namespace)
            with problems.collect("The deployment on the hub"):
                copy = await self._ensure_copy(pass_, hub, deployment, namespace)
            if is_name(policy_name(city)) and (copy is None or not copy.metadata.deleting):
                with problems.collect(f'The policy of city "{city}"'):
                    await self._ensure_policy(hub, namespace, city)
        return copy

    async def _report_obstacle(
        self, pass_: Pass, deployment: WorkloadDeployment, problems: Problems, *, answered: bool
    ) -> WorkloadDeployment:
        """Reports what keeps the deployment from the hub, and takes the report back once nothing does.

        An outage changes nothing about an earlier refusal. Until a site has answered, `Available` reports it too.
        """
        obstacles = self._obstacles.update(pass_.request, deployment.metadata.generation, problems)
        obstacle = next(iter(obstacles.values()), None)
        if obstacle is None and problems:
            return deployment
        if obstacle is None:
            status = without_obstacle(deployment, answered=answered)
            return await pass_.write.status(deployment, status) if status else deployment
        types = (FEDERATED,) if answered else (FEDERATED, AVAILABLE)
        status = with_obstacle(deployment, types, obstacle, pass_.now(), answered=answered)
        after = await pass_.write.status(deployment, status)
        warn_of_obstacle(pass_, FEDERATED, deployment, after)
        return after

    async def _await_answer(
        self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, copy: WorkloadDeployment
    ) -> None:
        age = self._unanswered_for(pass_.request, copy)
        if age < UNANSWERED_SECONDS:
            pass_.no_later_than(UNANSWERED_SECONDS - age)
            return
        await self._report_unscheduled(pass_, hub, deployment, age)
        await bindings.release(hub, copy)

    def _unanswered_for(self, request: Request, copy: WorkloadDeployment) -> float:
        """Seconds by loop time, because the creation time comes from another machine's clock."""
        now = asyncio.get_running_loop().time()
        uid, since = self._unanswered.get(request, ("", now))
        if uid != copy.metadata.uid:
            self._unanswered[request] = (copy.metadata.uid, now)
            return 0.0
        return now - since

    async def _hub_namespace(self, project: Handle, deployment: WorkloadDeployment) -> str:
        """Reads the project namespace from the server until its uid is recorded, because it may have been recreated."""
        namespace = project.informer(NAMESPACE).get("", deployment.namespace)
        recorded = deployment.metadata.annotations.get(FEDERATION_NAMESPACE)
        if namespace is None or recorded != hub_namespace(namespace.metadata.uid):
            namespace = await project.client.get(NAMESPACE, deployment.namespace)
        return hub_namespace(namespace.metadata.uid)

    async def _ensure_namespace(self, hub: Handle, deployment: WorkloadDeployment, request: Request, name: str) -> None:
        labels = hub_labels(request.plane, request.namespace)
        namespace = hub.informer(NAMESPACE).get("", name)
        if namespace is None:
            namespace = await hub.write.ensure(NAMESPACE, NAMESPACE.body(name, labels=labels))
        if namespace.metadata.deleting:  # the event of its deletion starts the next pass
            raise NamespaceTerminating(f"Namespace {name} on the hub is being deleted", plane=hub.name)
        if _belongs_to_another(namespace, request.plane):
            # Which project that is, is none of this project's business.
            message = (
                f"Namespace {name} on the hub belongs to another project; the platform operator has to separate the two"
            )
            raise Blocked(reasons.HUB_NAMESPACE_TAKEN, message)
        if patch := changes(namespace, labels=labels):
            namespace = await hub.write.patch(namespace, patch)
        await remove_note(hub.write, namespace, deployment.metadata.uid)

    async def _ensure_copy(
        self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, namespace: str
    ) -> WorkloadDeployment:
        city = deployment.spec.city_code
        labels = {TOPOLOGY_CITY: city, UPSTREAM_NAMESPACE: deployment.namespace}
        # Written together with the spec, so that an answer to an older spec is recognised as such.
        annotations = {
            UPSTREAM_UID: deployment.metadata.uid,
            UPSTREAM_GENERATION: str(deployment.metadata.generation),
        } | {key: deployment.metadata.annotations[key] for key in _MIRRORED if key in deployment.metadata.annotations}
        if serving := serving_cluster(hub.informer(CLUSTER).all(), city):
            annotations[SERVING_CLUSTER] = serving  # while there is none, the last one may come back
        copy = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        if copy is None:
            traced = annotations | tracing.carried(deployment)
            body = WORKLOAD_DEPLOYMENT.body(deployment.name, namespace, labels=labels, annotations=traced)
            try:
                created = await hub.write.create(WORKLOAD_DEPLOYMENT, body | {"spec": deployment.spec_json})
                self._metrics.arrived(PROJECT_TO_HUB, pass_)
                return created
            except AlreadyExists:
                copy = await hub.client.get(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        removable = {key: annotations.get(key) for key in _MIRRORED}  # None removes the annotation
        patch = changes(copy, labels=labels, annotations=annotations | removable, spec=deployment.spec_json)
        if not patch or copy.metadata.deleting:
            return copy
        old_city = copy.metadata.labels.get(TOPOLOGY_CITY, "")
        if old_city and old_city != city:  # before the label that names it is overwritten
            await release_policy(hub, namespace, old_city, leaving=deployment.name)
            # Karmada ignores the new city's policy while the mark of the old one is on the object.
            patch["metadata"]["labels"][_CLAIMED_BY_POLICY] = None
        patched = await hub.write.patch(copy, tracing.with_spec(patch, copy, deployment))
        self._metrics.arrived(PROJECT_TO_HUB, pass_)
        return patched

    async def _ensure_policy(self, hub: Handle, namespace: str, city: str) -> None:
        """Runs on every pass, because the last user of the city may just have removed the policy."""
        policy = hub.informer(PROPAGATION_POLICY).get(namespace, policy_name(city))
        if policy is None:
            policy = await hub.write.ensure(PROPAGATION_POLICY, city_policy(namespace, city))
        if routes(policy, city):
            return
        other = routed_city(policy)
        if other not in ("", city) and any(
            user.metadata.labels.get(TOPOLOGY_CITY) == other and not user.metadata.deleting
            for user in hub.informer(WORKLOAD_DEPLOYMENT).all(namespace)
        ):
            message = f'City "{city}" cannot be distinguished from "{other}", which is in use here'
            raise Blocked(reasons.FEDERATION_FAILED, message)
        wanted = city_policy(namespace, city)["spec"]
        actual = {key: value for key, value in as_dict(policy.spec_json).items() if key in wanted}
        await hub.write.patch(policy, {"spec": difference(actual, wanted)})

    async def _report_unscheduled(self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, age: float) -> None:
        """Karmada does not report an object that no cluster fits; after a minute without an answer we do."""
        city = deployment.spec.city_code
        if any(city_of(cluster) == city for cluster in hub.informer(CLUSTER).all()):
            return
        if age < UNSCHEDULED_SECONDS:
            pass_.no_later_than(UNSCHEDULED_SECONDS - age)
            return
        obstacle = Obstacle(reasons.NO_MATCHING_LOCATION, f'No site serves city "{city}" at the moment')
        before = conditions.find(conditions.of(deployment), AVAILABLE)
        await pass_.write.status(
            deployment, with_obstacle(deployment, (AVAILABLE,), obstacle, pass_.now(), answered=False)
        )
        if before is None or before.reason != obstacle.reason:
            pass_.events.warning(deployment, obstacle.reason, obstacle.message)

    # Deletion

    async def _finalize(self, project: Handle, hub: Handle, deployment: WorkloadDeployment) -> None:
        if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
            return
        # The annotation first: a project namespace that is being deleted must not hold up what is in it.
        namespace = _recorded_namespace(project, hub, deployment) or await self._hub_namespace(project, deployment)
        home = hub.informer(NAMESPACE).get("", namespace)
        if home is None or not _belongs_to_another(home, project.name):
            await self._withdraw(hub, deployment, namespace)
            # Last, because a hub that is restored to an earlier moment has lost its own note.
            await self._journal.add(project, deployment.metadata.uid)
        await project.write.remove_finalizers(deployment, FEDERATOR_FINALIZER)

    async def _withdraw(self, hub: Handle, deployment: WorkloadDeployment, namespace: str) -> None:
        """Deletes copy and policies. Cities come from the copy as well, because the spec's may have been edited."""
        city = deployment.spec.city_code
        copy = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        old_city = copy.metadata.labels.get(TOPOLOGY_CITY, "") if copy is not None else ""
        if old_city and old_city != city:  # while the copy still names it, in case something fails in between
            await release_policy(hub, namespace, old_city, leaving=deployment.name)
        # Before the copy is deleted: a cell that misses the deletion removes its own copy only with this note.
        uid = copy.metadata.uid if copy is not None else ""
        await self._notes.add(hub, namespace, Note(deployment.name, uid, deployment.metadata.uid))
        # Before the policies: of several deployments deleted at once, the last must see that the others are gone.
        await hub.write.delete_named(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        cities = {city, old_city}
        if not city:  # nothing may be left that names the city: release all policies that nobody uses
            cities |= {routed_city(policy) for policy in hub.informer(PROPAGATION_POLICY).all(namespace)}
        for unused in sorted(filter(None, cities)):
            await release_policy(hub, namespace, unused, leaving=deployment.name)


async def _marked(write: Writer, deployment: WorkloadDeployment, namespace: str) -> WorkloadDeployment:
    """Adds the finalizer and the hub namespace, both before anything is written to the hub."""
    metadata: Json = {}
    if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
        metadata["finalizers"] = [*deployment.metadata.finalizers, FEDERATOR_FINALIZER]
    if deployment.metadata.annotations.get(FEDERATION_NAMESPACE) != namespace:
        metadata["annotations"] = {FEDERATION_NAMESPACE: namespace}
    return await write.patch_if_unchanged(deployment, {"metadata": metadata}) if metadata else deployment


def _recorded_namespace(project: Handle, hub: Handle, deployment: WorkloadDeployment) -> str:
    """The hub namespace in the annotation; empty when it is another deployment's, because users can edit it."""
    recorded = deployment.metadata.annotations.get(FEDERATION_NAMESPACE, "")
    return recorded if _is_home(project, hub, recorded, deployment) else ""


def _cached_copy(project: Handle, hub: Handle, deployment: WorkloadDeployment, home: str) -> WorkloadDeployment | None:
    """The live hub copy in our cache, if it is this deployment's."""
    copy = hub.informer(WORKLOAD_DEPLOYMENT).get(home, deployment.name)
    is_ours = copy is not None and not copy.metadata.deleting and _is_home(project, hub, home, deployment)
    return copy if is_ours else None


def _is_home(project: Handle, hub: Handle, namespace: str, deployment: WorkloadDeployment) -> bool:
    """Whether the labels of a hub namespace name this deployment's project and namespace."""
    home = hub.informer(NAMESPACE).get("", namespace)
    return home is not None and Identity.of(home.metadata.labels) == Identity(project.name, deployment.namespace)


def _belongs_to_another(home: Namespace, project: str) -> bool:
    """Whether a hub namespace names another project; one that names none can be taken."""
    return bare_project(home.metadata.labels.get(UPSTREAM_CLUSTER, "")) not in ("", project)


def _of_recreated_namespace(project: Plane, change: Change[Namespace]) -> Iterable[Request]:
    """A recreated project namespace has another hub namespace."""
    if change.before is not None and change.before.metadata.uid != change.object.metadata.uid:
        for deployment in project.informer(WORKLOAD_DEPLOYMENT).all(change.object.name):
            yield Request(project.name, deployment.namespace, deployment.name)


def _of_copy(hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
    """Both sides of a change count, so that a removed label is restored."""
    yield from dict.fromkeys(_original(hub, copy) for copy in (change.before, change.after) if copy is not None)


def _original(hub: Plane, copy: WorkloadDeployment) -> Request | Drop:
    """The project deployment of a hub deployment; the project comes from the hub namespace alone."""
    namespace = copy.metadata.labels.get(UPSTREAM_NAMESPACE)
    home = hub.informer(NAMESPACE).get("", copy.namespace)
    if not namespace or home is None or UPSTREAM_CLUSTER not in home.metadata.labels:
        return Drop("unlabelled")
    if not (project := bare_project(home.metadata.labels[UPSTREAM_CLUSTER])):
        return Drop("undecodable")
    return Request(project, namespace, copy.name)


def _of_policy(hub: Plane, change: Change[PropagationPolicy]) -> Iterable[Request | Drop]:
    """Every deployment of the policy's city, because each ensures the policy."""
    for copy in hub.informer(WORKLOAD_DEPLOYMENT).all(change.object.namespace):
        if policy_name(copy.metadata.labels.get(TOPOLOGY_CITY, "")) == change.object.name:
            yield _original(hub, copy)


def _of_cluster(hub: Plane, change: Change[Cluster]) -> Iterable[Request | Drop]:
    """Deployments of the cities that gained or lost a cluster, if they have no answer yet or name another cluster."""
    clusters = [cluster for cluster in (change.before, change.after) if cluster is not None]
    cities = {city_of(cluster) for cluster in clusters}
    if len(clusters) == 2 and len(cities) == 1:
        return
    serving = {city: serving_cluster(hub.informer(CLUSTER).all(), city) for city in cities}
    for copy in hub.informer(WORKLOAD_DEPLOYMENT).all():
        city = copy.metadata.labels.get(TOPOLOGY_CITY)
        if city in serving and (
            not is_answered(copy) or serving[city] not in ("", copy.metadata.annotations.get(SERVING_CLUSTER))
        ):
            yield _original(hub, copy)
