"""Claims quota for Instances on the planes of their projects. Entry point: `Claims`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import CITY_CODE, INSTANCE_NAMESPACE, SOURCE_CLUSTER, WORKLOAD_UID
from datum_compute.api.names import claim_name, claimed_instance, deployment_of, ordinal_of
from datum_compute.api.quota import GRANTED, INSTANCES, RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import RESOURCE_MANAGER_GROUP
from datum_compute.cell.ledger import AbandonedClaim, Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.name_lease import CellName, NameNotHeld
from datum_compute.cell.quota import LeftBehind
from datum_compute.cell.sizing import requests
from datum_compute.cell.verdict import (
    SLOW,
    Verdict,
    claim_verdict,
    failed,
    pending,
    refusal_verdict,
    tier_at,
    waiting,
)
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS, HUB
from datum_compute.kube import conditions
from datum_compute.kube.errors import (
    NAMESPACE_TERMINATING,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json
from datum_compute.runtime import Change, Drop, Fleet, NotEngaged, Plane, Request

_LABEL_READ_SECONDS = 5.0
ABANDON_SECONDS = 3600.0
_ENGAGING_SECONDS = 2.0  # until then a project's plane may still be discovered, and nothing is wrong
_MISSED_AT_MOST = 1000
_TERMINATING_SECONDS = 60.0  # until a claim is tried again in a namespace that was being deleted
_LOST_SECONDS = 5.0  # until the lost claim of an Instance with quota is created again

_log = structlog.get_logger(__name__)

IsGone = Callable[[str], Awaitable[bool]]
"""Whether a project is known not to exist any more, as opposed to being unreachable."""


async def never_gone(project: str) -> bool:
    return False


class _Denial(Struct, frozen=True):
    """A denied claim, by uid, and the loop time at which its denial was first observed."""

    claim: str
    since: float


class Claims:
    """One claim per Instance on its project's plane: never changed here, and deleted with the Instance.

    A denial is final where Milo decides, so on the slow tiers a denied claim is deleted and created anew. A claim that
    the project's plane refuses to delete for `abandon_after` seconds is entered into the `ledger`; without a ledger it
    holds its Instance for as long as that takes.

    A claim is for the Instance whose name and namespace it carries, whichever cell created it; only claims that carry
    this cell's name are deleted. `named` means that the name was configured, so that no other cell has it.
    """

    def __init__(
        self,
        fleet: Fleet,
        cell_name: CellName,
        controller: str,
        *,
        recreate_denied: bool = True,
        is_gone: IsGone = never_gone,
        named: bool = False,
        ledger: Ledger | None = None,
        abandon_after: float = ABANDON_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        self._fleet = fleet
        self._is_gone = is_gone
        self._named = named
        self._cell_name = cell_name
        self._controller = controller
        self._recreate_denied = recreate_denied
        self._metrics = metrics or Metrics()
        self._metrics.enforcement_enabled.set(1)
        self._ledger = ledger
        self._abandon_after = abandon_after
        # All times are loop times.
        self._denials: dict[Request, _Denial] = {}
        self._refusals: dict[Request, float] = {}  # since when the deletion of a claim has been refused
        self._missed: dict[str, float] = {}  # by project, since when its plane has not been engaged
        self._terminating: dict[str, float] = {}  # by namespace, until when no claims are created for it
        self._lost: dict[Request, float] = {}  # since when an Instance with quota has had no claim

    # Asking for quota

    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        verdict = await self._evaluate(cell, instance, age)
        self._metrics.evaluated(verdict.reason)
        return verdict

    async def _evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        try:
            namespace = await self._namespace(cell, instance.namespace)
        except ApiError as error:
            message = "The namespace that says which project this is cannot be read; the instance waits until it can"
            return failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, message, error)
        if namespace.metadata.deleting:
            return waiting()  # the Instance is deleted with it
        identity = Identity.of(namespace.metadata.labels)
        if identity is None:
            return failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, _unidentified(instance))
        try:
            project = self._engaged(identity.project)
            claim = await _read(project, identity, instance)
            if (delay := self._delay_of_lost(cell, instance, claim)) > 0:
                return waiting(within=delay)
            if claim is not None and self._must_recreate(cell, instance, claim, age):
                claim = await self._withdraw(project, identity, instance, claim)
            if claim is None:
                return await self._create(cell, project, identity, instance, age)
        except NameNotHeld as error:
            message = "The site cannot ask for quota, because another cluster has its name"
            return failed(reasons.QUOTA_MISCONFIGURED, message, error)
        except ApiError as error:
            if isinstance(error, NotEngaged) and error.coming:
                return waiting(error)
            # Always the same message: that of the error may change with every attempt, and is in the log.
            message = "The quota system cannot be reached; the instance waits until it can"
            return failed(reasons.QUOTA_BACKEND_UNAVAILABLE, message, error)
        return _verdict(instance, claim, age)

    def _engaged(self, project: str) -> Plane:
        """The plane of a project. One that is not engaged yet may be about to be discovered."""
        try:
            plane = self._fleet.plane(project)
        except NotEngaged as error:
            now = asyncio.get_running_loop().time()
            if now - self._missed.setdefault(project, now) < _ENGAGING_SECONDS:
                error.coming = True
            if len(self._missed) > _MISSED_AT_MOST:
                del self._missed[next(iter(self._missed))]
            raise
        self._missed.pop(project, None)
        return plane

    async def _namespace(self, cell: Plane, name: str) -> Namespace:
        namespace = cell.informer(NAMESPACE).get("", name)
        if namespace is None:
            try:
                async with asyncio.timeout(_LABEL_READ_SECONDS):
                    namespace = await cell.client.get(NAMESPACE, name)
            except TimeoutError:
                raise Unavailable(f"no answer in {_LABEL_READ_SECONDS:.0f} s", plane=cell.name) from None
        return namespace

    def _must_recreate(self, cell: Plane, instance: Instance, claim: ResourceClaim, age: timedelta) -> bool:
        """Whether to recreate a denied claim: on the slow tiers, once its denial has been known for that tier.

        By loop time, because the creation time of the claim comes from another machine's clock.
        """
        request = Request(cell.name, instance.namespace, instance.name)
        if not self._is_ours(cell, claim) or _verdict(instance, claim, age).reason != reasons.QUOTA_EXCEEDED:
            self.forget(request)
            return False
        now = asyncio.get_running_loop().time()
        denial = self._denials.get(request)
        if denial is None or denial.claim != claim.metadata.uid:
            self._denials[request] = denial = _Denial(claim.metadata.uid, now)
        seconds = tier_at(age)
        return self._recreate_denied and seconds >= SLOW and now - denial.since >= seconds

    async def _withdraw(
        self, project: Plane, identity: Identity, instance: Instance, claim: ResourceClaim
    ) -> ResourceClaim | None:
        """Deletes a denied claim. Returns the claim that is there instead if it changed at this very moment."""
        try:
            await project.writer(self._controller).delete_if_unchanged(claim)
        except Conflict:
            return await _read(project, identity, instance)
        return None

    def _delay_of_lost(self, cell: Plane, instance: Instance, claim: ResourceClaim | None) -> float:
        """Seconds until the lost claim of an Instance that has its quota is created again; 0 in all other cases.

        Mostly it was deleted with the project's namespace. A new one would be refused there, and the Instance is about
        to be deleted as well.
        """
        request = Request(cell.name, instance.namespace, instance.name)
        granted = conditions.find(conditions.of(instance), QUOTA_GRANTED)
        if claim is not None or granted is None or granted.status != "True":
            self._lost.pop(request, None)
            return 0.0
        now = asyncio.get_running_loop().time()
        return max(self._lost.setdefault(request, now) + _LOST_SECONDS - now, 0.0)

    async def _create(
        self, cell: Plane, project: Plane, identity: Identity, instance: Instance, age: timedelta
    ) -> Verdict:
        now = asyncio.get_running_loop().time()
        if self._terminating.get(instance.namespace, now) > now:
            return waiting()
        amounts = requests(instance.spec.runtime)
        body = _claim_body(identity, instance, self._cell_name(cell), amounts)
        try:
            await project.writer(self._controller).create(RESOURCE_CLAIM, body)
            if amounts.keys() == {INSTANCES}:
                _log.warning("claim of unknown size", cell=cell.name, instance=f"{instance.namespace}/{instance.name}")
            return pending(fresh=True)
        except AlreadyExists:
            claim = await project.client.get(RESOURCE_CLAIM, claim_name(instance.name), identity.namespace)
        except NotFound:
            message = f"Namespace {identity.namespace} does not exist in project {identity.project}"
            return failed(reasons.QUOTA_NAMESPACE_NOT_FOUND, message)
        except (Forbidden, Invalid) as error:
            if not error.caused_by(NAMESPACE_TERMINATING):
                return refusal_verdict(identity.project, error)
            # The Instance will be deleted as well. Until then there is nothing to send and nothing to report.
            self._terminating = {name: until for name, until in self._terminating.items() if until > now}
            self._terminating[instance.namespace] = now + _TERMINATING_SECONDS
            return waiting()
        return _verdict(instance, claim, age)

    # Giving quota back

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        identity = Identity.of((await self._namespace(cell, instance.namespace)).metadata.labels)
        if identity is None:
            # Nothing says where the claim is, and holding the Instance back would not find it.
            message = f"{_unidentified(instance)}; its quota claim, if any, cannot be located and is left behind"
            return LeftBehind(reasons.QUOTA_CLAIM_ORPHANED, message)
        claim = AbandonedClaim(identity.project, identity.namespace, instance.namespace, instance.name)
        try:
            await self.remove(cell, claim)
        except ApiError as error:
            if not self._is_refused_for_good(Request(cell.name, instance.namespace, instance.name), error):
                raise
            assert self._ledger is not None
            await self._ledger.add(cell, claim)
            message = (
                f"Project {claim.project} has refused to delete quota claim {claim.namespace}/{claim.name} for "
                f"{self._abandon_after / 60:.0f} minutes; the instance is deleted without it, and the claim as soon as "
                "the project allows it"
            )
            return LeftBehind(reasons.QUOTA_CLAIM_ABANDONED, message)
        return None

    async def remove(self, cell: Plane, claim: AbandonedClaim) -> None:
        """Deletes the claim of an Instance that is deleted or being deleted, if it is this cell's."""
        project = await self._reachable(claim.project)
        if project is None:
            return  # the claim was deleted with its project
        try:
            found = await project.client.get(RESOURCE_CLAIM, claim.name, claim.namespace)
        except NotFound as error:
            if error.about is None and not await _answers(project, claim.namespace):
                raise  # no API server is there that could say that the claim does not exist
            return
        if not _is_for(claim.instance_namespace, found):
            return
        if self._is_ours(cell, found):
            await project.writer(self._controller).delete(found)
        else:
            _log.info("claim left to the cell that it names", claim=claim.name, cell=_cell_of(found))

    async def _reachable(self, name: str) -> Plane | None:
        """The plane of a project, engaged or not, because claims are deleted without a cache; None when it is gone."""
        for plane in self._fleet.known(CLAIMS):
            if plane.name == name:
                return plane
        if await self._is_gone(name):
            return None
        return self._fleet.plane(name)

    def _is_refused_for_good(self, request: Request, error: ApiError) -> bool:
        """Whether the plane has refused to delete a claim for long enough, without interruption."""
        if not is_refusal(error) or self._ledger is None:
            self._refusals.pop(request, None)
            return False
        now = asyncio.get_running_loop().time()
        return now - self._refusals.setdefault(request, now) >= self._abandon_after

    def left_behind(self, project: Plane) -> Iterable[Request]:
        """Instances that no longer exist in any cell while this cell's claims for them do."""
        for claim in project.informer(RESOURCE_CLAIM).all() if self._named else ():
            namespace, name = claim.metadata.labels.get(INSTANCE_NAMESPACE), claimed_instance(claim.name)
            for cell in self._fleet.of_role(CELL) if namespace and name else ():
                is_left = cell.informer(INSTANCE).get(namespace or "", name) is None
                if is_left and self._is_ours(cell, claim):
                    yield Request(cell.name, namespace or "", name)

    async def sweep(self, cell: Plane, request: Request) -> None:
        """Deletes the claim of an Instance that no longer exists: handed over, or not deleted in time.

        Not while a deployment requests the Instance: it will be created again, and keeps the grant.
        """
        claim = self._unused(cell, request)
        # The cache may have missed the Instance, so its cell's server is asked.
        if claim is None or await cell.client.find(INSTANCE, request.name, request.namespace) is not None:
            return
        try:
            await self.remove(cell, claim)
        except ApiError as error:
            if not is_refusal(error):
                raise
            _log.debug("claim without an instance cannot be deleted", claim=claim.name, error=str(error))

    def _unused(self, cell: Plane, request: Request) -> AbandonedClaim | None:
        """The claim for an Instance that nothing requests, as far as our caches know."""
        namespace = cell.informer(NAMESPACE).get("", request.namespace)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        if not self._named or identity is None or not self._fleet.has(identity.project):
            return None
        project = self._fleet.plane(identity.project)
        claim = project.informer(RESOURCE_CLAIM).get(identity.namespace, claim_name(request.name))
        is_ours = claim is not None and self._is_ours(cell, claim) and not claim.metadata.deleting
        if not is_ours or self._is_requested(cell, request):
            return None
        return AbandonedClaim(identity.project, identity.namespace, request.namespace, request.name)

    def _is_requested(self, cell: Plane, request: Request) -> bool:
        """Whether a deployment requests an Instance of this name; assumed while the hub is unreachable."""
        hubs = self._fleet.of_role(HUB)
        if len(hubs) < len(self._fleet.known(HUB)):
            return True
        name, ordinal = deployment_of(request.name), ordinal_of(request.name) or 0
        deployments = [plane.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, name) for plane in (cell, *hubs)]
        return any(
            deployment is not None
            and not deployment.metadata.deleting
            and ordinal < deployment.spec.scale_settings.min_replicas
            for deployment in deployments
        )

    def forget(self, request: Request) -> None:
        self._denials.pop(request, None)
        self._refusals.pop(request, None)
        self._lost.pop(request, None)

    def _is_ours(self, cell: Plane, claim: ResourceClaim) -> bool:
        return _cell_of(claim) == self._cell_name(cell)

    def to_instance(self, project: Plane, change: Change[ResourceClaim]) -> Iterable[Request | Drop]:
        """From a claim to its Instance: by its labels and name, never by its resourceRef, which is a Project."""
        if change.before is None and not _is_decided(change.object):
            return  # whoever created the claim knows about it
        namespace = change.object.metadata.labels.get(INSTANCE_NAMESPACE)
        name = claimed_instance(change.object.name)
        if not namespace or not name:
            yield Drop("unlabelled", ordinary=True)  # other services have claims here too
            return
        for cell in self._fleet.of_role(CELL):
            # Even with another cell's name, if the Instance is here: the claim has not been handed over yet.
            if self._is_ours(cell, change.object) or cell.informer(INSTANCE).get(namespace, name) is not None:
                yield Request(cell.name, namespace, name)


def is_refusal(error: ApiError) -> bool:
    """Whether the plane itself refuses, or does not exist; a suspended project refuses only for now."""
    is_no = isinstance(error, Unauthorized | Forbidden | NotFound) and error.answered
    return is_no and not error.caused_by(reasons.PROJECT_SUSPENDED)


async def _read(project: Plane, identity: Identity, instance: Instance) -> ResourceClaim | None:
    """Read from the server, not from the cache: polling is the safety net for lost events."""
    return await project.client.find(RESOURCE_CLAIM, claim_name(instance.name), identity.namespace)


async def _answers(project: Plane, namespace: str) -> bool:
    """Whether an API server is there that merely does not serve claims."""
    try:
        await project.client.get(NAMESPACE, namespace)
    except Forbidden:
        return True
    except NotFound as error:
        return error.about is not None
    return True


def _verdict(instance: Instance, claim: ResourceClaim, age: timedelta) -> Verdict:
    if not _is_for(instance.namespace, claim):
        return failed(reasons.QUOTA_MISCONFIGURED, f"Claim {claim.name} belongs to another instance of that name")
    return claim_verdict(claim, age)


def _is_decided(claim: ResourceClaim) -> bool:
    granted = conditions.find(conditions.of(claim), GRANTED)
    return granted is not None and granted.reason != reasons.PENDING_EVALUATION


def _cell_of(claim: ResourceClaim) -> str:
    """The name of the cell that releases the claim."""
    return claim.metadata.labels.get(SOURCE_CLUSTER, "")


def _is_for(namespace: str, claim: ResourceClaim) -> bool:
    """Whether a claim is for Instances of a cell namespace. Each namespace of a project has its own, named by uid."""
    return claim.metadata.labels.get(INSTANCE_NAMESPACE) == namespace


def _unidentified(instance: Instance) -> str:
    return f"Namespace {instance.namespace} does not say which project it belongs to"


def _claim_body(identity: Identity, instance: Instance, cell_name: str, amounts: Mapping[str, int]) -> Json:
    owner = {key: value for key in (CITY_CODE, WORKLOAD_UID) if (value := instance.metadata.labels.get(key))}
    labels = {SOURCE_CLUSTER: cell_name, INSTANCE_NAMESPACE: instance.namespace} | owner
    project = {"apiGroup": RESOURCE_MANAGER_GROUP, "kind": PROJECT_KIND.name, "name": identity.project}
    spec = {
        "consumerRef": project,
        "resourceRef": project,  # only a Project is registered to claim
        "requests": [{"resourceType": type_, "amount": amount} for type_, amount in amounts.items()],
    }
    return RESOURCE_CLAIM.body(claim_name(instance.name), identity.namespace, labels=labels) | {"spec": spec}
