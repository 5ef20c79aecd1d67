"""Copies each project deployment to the hub and brings its status back. Entry point: `Federator`."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
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
from datum_compute.federation.obstacles import Blocked, Obstacle, StableMessages, obstacles
from datum_compute.federation.policy import city_policy, routed_city, routes
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.scope import PROJECT_NAMESPACES
from datum_compute.federation.sites import city_of, serving_cluster
from datum_compute.federation.withdrawals import Note
from datum_compute.karmada import bindings
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, Conflict, NamespaceTerminating
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, as_dict
from datum_compute.kube.patches import changes, difference
from datum_compute.management import withdrawal_notes
from datum_compute.management.hub_outages import HubOutages
from datum_compute.management.metrics import HUB_TO_PROJECT, PROJECT_TO_HUB, ManagementMetrics
from datum_compute.management.withdrawal_journal import WithdrawalJournal
from datum_compute.management.withdrawal_notes import release_policy
from datum_compute.runtime import Change, Drop, Fleet, Handle, Pass, Plane, Problems, Request, Source, Writer, itself

_CLAIMED_BY_POLICY = "propagationpolicy.karmada.io/permanent-id"
_COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
_MIRRORED = (ROLLOUT_PAUSED,)  # annotations that the hub copy has or lacks as the project deployment does
UNSCHEDULED_SECONDS = 60.0  # a hub deployment without status for this long may have no cluster to go to
UNANSWERED_SECONDS = 5.0  # one without status for this long may be held up by what is left of an earlier one


class Federator:
    """Owns the hub namespace, the hub deployment and the city's policy, and the status of the project deployment.

    `federated=False` says that this process was never given a hub: deployments are then let go of, since there can be
    nothing to clean up. A hub that was given and is not there is another matter: deletion waits for it.
    """

    name = "workload-deployment-federator"

    def __init__(self, fleet: Fleet, *, metrics: ManagementMetrics | None = None, federated: bool = True) -> None:
        self._fleet = fleet
        self._metrics = metrics or ManagementMetrics()
        self._federated = federated
        self._failures = HubOutages()
        self._wordings = StableMessages()
        self._notes = withdrawal_notes.WithdrawalNotes()
        self._journal = WithdrawalJournal()
        self._unanswered: dict[Request, tuple[str, float]] = {}  # by uid of the copy, and loop time since when

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, WORKLOAD_DEPLOYMENT, itself, scope=PROJECT_NAMESPACES),
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

    def disengaged(self, plane: Plane) -> None:
        self._failures.forget(plane.name)
        self._wordings.forget_plane(plane.name)
        self._journal.forget(plane.name)
        self._unanswered = {request: one for request, one in self._unanswered.items() if request.plane != plane.name}

    async def reconcile(self, pass_: Pass) -> None:
        deployment = pass_.get(WORKLOAD_DEPLOYMENT)
        if deployment is None or deployment.metadata.deleting:
            self._unanswered.pop(pass_.request, None)
        if deployment is None:
            self._failures.over(pass_.request)
            self._wordings.forget(pass_.request)
        elif self._federated:
            with self._failures.told(pass_, deployment):
                await self._federate(pass_, pass_.on(HUB), deployment)
        elif deployment.metadata.deleting:
            await pass_.write.remove_finalizers(deployment, FEDERATOR_FINALIZER)

    async def _federate(self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment) -> None:
        if deployment.metadata.deleting:
            await self._finalize(pass_, hub, deployment)
            return
        namespace = await self._hub_namespace(pass_, deployment)
        problems = Problems()
        copy = _answering(pass_, hub, deployment, namespace)
        # Before anything is pushed: what runs is told also while the hub takes nothing new.
        with problems.collect("The status"):
            deployment = await self._mirror(pass_, deployment, copy)
        if any(isinstance(problem.error, Conflict) for problem in problems):
            problems.raise_worst()  # what we know of the deployment is not the newest: it must not be pushed
        with problems.collect("The deployment"):
            if not deployment.spec.city_code:
                raise Blocked(reasons.FEDERATION_FAILED, "The deployment has no city code")
            deployment = await _recorded(pass_.write, deployment, namespace)
            copy = await self._hand_on(pass_, hub, deployment, namespace, problems) or copy
        if copy is not None and copy.metadata.deleting:
            copy = None  # that of an earlier deployment, whose answer is not ours; the event of its end brings us back
        with problems.collect("The status"):
            deployment = await self._mirror(pass_, deployment, copy)
            deployment = await self._tell(pass_, deployment, problems, is_answered=_is_answered(copy))
        if _is_answered(copy):
            self._unanswered.pop(pass_.request, None)
        elif copy is not None and not problems:
            await self._await_answer(pass_, hub, deployment, copy)
        problems.raise_worst()

    async def _mirror(
        self, pass_: Pass, deployment: WorkloadDeployment, copy: WorkloadDeployment | None
    ) -> WorkloadDeployment:
        """The status of the copy, verbatim; what this side says of the way to the hub stays beside it."""
        if copy is None or not _is_answered(copy):
            return deployment
        status = as_dict(copy.status_json)
        own = [one for one in _conditions(as_dict(deployment.status_json)) if one["type"] == FEDERATED]
        if own:
            status |= {"conditions": [*_conditions(status), *own]}
        mirrored = await pass_.write.status(deployment, status)
        if mirrored is not deployment:
            self._metrics.arrived(HUB_TO_PROJECT, pass_)
        return mirrored

    async def _hand_on(
        self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, namespace: str, problems: Problems
    ) -> WorkloadDeployment | None:
        """The copy on the hub as it is now; None when it could not be written."""
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

    async def _tell(
        self, pass_: Pass, deployment: WorkloadDeployment, problems: Problems, *, is_answered: bool
    ) -> WorkloadDeployment:
        """Says what keeps the deployment from the hub, and takes it back when nothing does.

        An outage changes nothing about what was refused before. Without an answer of a site `Available` says it too.
        """
        refused = self._wordings.settled(pass_.request, deployment.metadata.generation, obstacles(problems))
        obstacle = next(iter(refused.values()), None)
        if obstacle is None and problems:
            return deployment
        status = as_dict(deployment.status_json)
        if obstacle is None:
            kept = [one for one in _conditions(status) if one["type"] != FEDERATED]
            if not is_answered:
                kept = [one for one in kept if one["reason"] not in reasons.OBSTACLES]
            if len(kept) == len(_conditions(status)):
                return deployment
            return await pass_.write.status(deployment, status | {"conditions": kept})
        types = (FEDERATED,) if is_answered else (FEDERATED, AVAILABLE)
        before = conditions.find(conditions.of(deployment), FEDERATED)
        status = _unserved(deployment, types, obstacle, pass_.now(), is_answered=is_answered)
        after = await pass_.write.status(deployment, status)
        if before is None or before.message != obstacle.message:
            pass_.events.warning(deployment, obstacle.reason, obstacle.message)
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
        """Seconds by loop time: when the copy was created, another machine's clock says."""
        now = asyncio.get_running_loop().time()
        uid, since = self._unanswered.get(request, ("", now))
        if uid != copy.metadata.uid:
            self._unanswered[request] = (copy.metadata.uid, now)
            return 0.0
        return now - since

    async def _hub_namespace(self, project: Handle, deployment: WorkloadDeployment) -> str:
        """Once it is noted, our cache is asked; before that the server, because a namespace may have been made anew."""
        namespace = project.informer(NAMESPACE).get("", deployment.namespace)
        noted = deployment.metadata.annotations.get(FEDERATION_NAMESPACE)
        if namespace is None or noted != hub_namespace(namespace.metadata.uid):
            namespace = await project.client.get(NAMESPACE, deployment.namespace)
        return hub_namespace(namespace.metadata.uid)

    async def _ensure_namespace(self, hub: Handle, deployment: WorkloadDeployment, request: Request, name: str) -> None:
        labels = hub_labels(request.plane, request.namespace)
        found = hub.informer(NAMESPACE).get("", name)
        if found is None:
            found = await hub.write.ensure(NAMESPACE, NAMESPACE.body(name, labels=labels))
        if found.metadata.deleting:  # its end brings us back; until then nothing can be made in it
            raise NamespaceTerminating(f"Namespace {name} on the hub is being deleted", plane=hub.name)
        if _is_of_another(found, request.plane):  # whose it is, is not for the users of this project
            sentence = f"Namespace {name} on the hub belongs to another project"
            todo = "whoever runs the platform has to part the two"
            raise Blocked(reasons.HUB_NAMESPACE_TAKEN, f"{sentence}; {todo}")
        if patch := changes(found, labels=labels):
            found = await hub.write.patch(found, patch)
        await withdrawal_notes.forget(hub.write, found, deployment.metadata.uid)

    async def _ensure_copy(
        self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, namespace: str
    ) -> WorkloadDeployment:
        city = deployment.spec.city_code
        labels = {TOPOLOGY_CITY: city, UPSTREAM_NAMESPACE: deployment.namespace}
        # In the same write as the spec: an answer to an older spec can then be told from one to this (R24).
        annotations = {
            UPSTREAM_UID: deployment.metadata.uid,
            UPSTREAM_GENERATION: str(deployment.metadata.generation),
        } | {key: deployment.metadata.annotations[key] for key in _MIRRORED if key in deployment.metadata.annotations}
        if serving := serving_cluster(hub.informer(CLUSTER).all(), city):
            annotations[SERVING_CLUSTER] = serving  # while there is none, the last one may come back
        found = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        if found is None:
            body = WORKLOAD_DEPLOYMENT.body(deployment.name, namespace, labels=labels, annotations=annotations)
            try:
                created = await hub.write.create(WORKLOAD_DEPLOYMENT, body | {"spec": deployment.spec_json})
                self._metrics.arrived(PROJECT_TO_HUB, pass_)
                return created
            except AlreadyExists:
                found = await hub.client.get(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        mirrored = {key: annotations.get(key) for key in _MIRRORED}  # None takes it away
        patch = changes(found, labels=labels, annotations=annotations | mirrored, spec=deployment.spec_json)
        if not patch or found.metadata.deleting:
            return found
        old_city = found.metadata.labels.get(TOPOLOGY_CITY, "")
        if old_city and old_city != city:  # before the label that tells us is overwritten
            await release_policy(hub, namespace, old_city, leaving=deployment.name)
            # Karmada ignores the new city's policy while the old one's mark is on the object.
            patch["metadata"]["labels"][_CLAIMED_BY_POLICY] = None
        patched = await hub.write.patch(found, patch)
        self._metrics.arrived(PROJECT_TO_HUB, pass_)
        return patched

    async def _ensure_policy(self, hub: Handle, namespace: str, city: str) -> None:
        """On every pass: the last user of a city may have removed the policy a moment ago."""
        found = hub.informer(PROPAGATION_POLICY).get(namespace, policy_name(city))
        if found is None:
            found = await hub.write.ensure(PROPAGATION_POLICY, city_policy(namespace, city))
        if not routes(found, city):
            other = routed_city(found)
            if other not in ("", city) and any(
                user.metadata.labels.get(TOPOLOGY_CITY) == other for user in self._users(hub, namespace)
            ):
                sentence = f'City "{city}" cannot be told from "{other}", which is in use here'
                raise Blocked(reasons.FEDERATION_FAILED, sentence)
            wanted = city_policy(namespace, city)["spec"]
            actual = {key: value for key, value in as_dict(found.spec_json).items() if key in wanted}
            await hub.write.patch(found, {"spec": difference(actual, wanted)})

    async def _report_unscheduled(self, pass_: Pass, hub: Handle, deployment: WorkloadDeployment, age: float) -> None:
        """Karmada says nothing about an object that no cluster fits; after a minute of silence we do."""
        city = deployment.spec.city_code
        if any(cluster.metadata.labels.get(TOPOLOGY_CITY) == city for cluster in hub.informer(CLUSTER).all()):
            return
        if age < UNSCHEDULED_SECONDS:
            pass_.no_later_than(UNSCHEDULED_SECONDS - age)
            return
        unscheduled = Obstacle(reasons.NO_MATCHING_LOCATION, f'No site serves city "{city}" at the moment')
        earlier = conditions.find(conditions.of(deployment), AVAILABLE)
        status = _unserved(deployment, (AVAILABLE,), unscheduled, pass_.now(), is_answered=False)
        await pass_.write.status(deployment, status)
        if earlier is None or earlier.reason != unscheduled.reason:
            pass_.events.warning(deployment, unscheduled.reason, unscheduled.message)

    # Deletion

    async def _finalize(self, project: Handle, hub: Handle, deployment: WorkloadDeployment) -> None:
        if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
            return
        # The annotation first: a namespace that is being deleted must not hold up what lives in it.
        namespace = _noted_namespace(project, hub, deployment) or await self._hub_namespace(project, deployment)
        home = hub.informer(NAMESPACE).get("", namespace)
        if home is None or not _is_of_another(home, project.name):
            await self._withdraw(hub, deployment, namespace)
            # Last: a hub that is restored to a moment before this has lost its own note.
            await self._journal.add(project, deployment.metadata.uid)
        await project.write.remove_finalizers(deployment, FEDERATOR_FINALIZER)

    async def _withdraw(self, hub: Handle, deployment: WorkloadDeployment, namespace: str) -> None:
        """Copy and policies, by what the copy says and not by the spec alone: a city may have been edited away."""
        city = deployment.spec.city_code
        copy = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment.name)
        old_city = copy.metadata.labels.get(TOPOLOGY_CITY, "") if copy is not None else ""
        if old_city and old_city != city:  # while the copy still tells of it, in case of a failure in between
            await release_policy(hub, namespace, old_city, leaving=deployment.name)
        # First of all: a copy that an outage leaves in a cell goes only by this note.
        uid = copy.metadata.uid if copy is not None else ""
        await self._notes.add(hub, namespace, Note(deployment.name, uid, deployment.metadata.uid))
        # Before the policies: of several that leave at once the last one must see that the others have left.
        await hub.write.delete_named(WORKLOAD_DEPLOYMENT, deployment.name, namespace)
        cities = {city, old_city}
        if not city:  # nothing may be left that tells which: then all of ours go that nobody uses
            cities |= {routed_city(policy) for policy in hub.informer(PROPAGATION_POLICY).all(namespace)}
        for unused in sorted(filter(None, cities)):
            await release_policy(hub, namespace, unused, leaving=deployment.name)

    def _users(self, hub: Handle, namespace: str) -> list[WorkloadDeployment]:
        """Of the policies in a hub namespace."""
        return [one for one in hub.informer(WORKLOAD_DEPLOYMENT).all(namespace) if not one.metadata.deleting]


async def _recorded(write: Writer, deployment: WorkloadDeployment, namespace: str) -> WorkloadDeployment:
    """Finalizer and hub namespace are on the object before anything is written to the hub."""
    metadata: Json = {}
    if FEDERATOR_FINALIZER not in deployment.metadata.finalizers:
        metadata["finalizers"] = [*deployment.metadata.finalizers, FEDERATOR_FINALIZER]
    if deployment.metadata.annotations.get(FEDERATION_NAMESPACE) != namespace:
        metadata["annotations"] = {FEDERATION_NAMESPACE: namespace}
    return await write.patch_if_unchanged(deployment, {"metadata": metadata}) if metadata else deployment


def _noted_namespace(project: Handle, hub: Handle, deployment: WorkloadDeployment) -> str:
    """Where the copy was put, by the annotation, which the user can edit: empty when it leads to somebody else."""
    noted = deployment.metadata.annotations.get(FEDERATION_NAMESPACE, "")
    return noted if _is_home(project, hub, noted, deployment) else ""


def _answering(project: Handle, hub: Handle, deployment: WorkloadDeployment, home: str) -> WorkloadDeployment | None:
    """The copy that our cache knows of, if it is this deployment's."""
    copy = hub.informer(WORKLOAD_DEPLOYMENT).get(home, deployment.name)
    is_ours = copy is not None and not copy.metadata.deleting and _is_home(project, hub, home, deployment)
    return copy if is_ours else None


def _is_answered(copy: WorkloadDeployment | None) -> bool:
    return copy is not None and bool(as_dict(copy.status_json))


def _is_home(project: Handle, hub: Handle, namespace: str, deployment: WorkloadDeployment) -> bool:
    """Whether a hub namespace says that it is this deployment's."""
    home = hub.informer(NAMESPACE).get("", namespace)
    return home is not None and Identity.of(home.metadata.labels) == Identity(project.name, deployment.namespace)


def _is_of_another(home: Namespace, project: str) -> bool:
    """Whether a hub namespace names another project; one that names none can be taken."""
    return bare_project(home.metadata.labels.get(UPSTREAM_CLUSTER, "")) not in ("", project)


def _conditions(status: Json) -> list[Json]:
    found: list[Json] = status.get("conditions") or []
    return found


def _unserved(
    deployment: WorkloadDeployment, types: Iterable[str], obstacle: Obstacle, now: datetime, *, is_answered: bool
) -> Json:
    """The status with these conditions False; until a site has answered also the rest of it."""
    generation = deployment.metadata.generation
    decided = [
        conditions.condition(type_, False, obstacle.reason, obstacle.message, generation=generation, now=now)
        for type_ in types
    ]
    status = conditions.status_with(deployment, decided)
    return status if is_answered else status | dict.fromkeys(_COUNTERS, 0) | {"observedGeneration": generation}


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
    """A site that came, went or changed its city: who waits for a first answer, or names another site, is looked at."""
    seen = [cluster for cluster in (change.before, change.after) if cluster is not None]
    cities = {city_of(cluster) for cluster in seen}
    if len(seen) == 2 and len(cities) == 1:
        return
    serving = {city: serving_cluster(hub.informer(CLUSTER).all(), city) for city in cities}
    for copy in hub.informer(WORKLOAD_DEPLOYMENT).all():
        city = copy.metadata.labels.get(TOPOLOGY_CITY)
        if city in serving and (
            not as_dict(copy.status_json) or serving[city] not in ("", copy.metadata.annotations.get(SERVING_CLUSTER))
        ):
            yield _origin(hub, copy)
