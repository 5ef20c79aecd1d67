"""Asks a project's quota system whether an Instance may run. Entry points: `Quota`, `Claims`, `Disabled`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Protocol

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE, INSTANCE_NAMESPACE, SOURCE_CLUSTER, WORKLOAD_UID
from datum_compute.api.names import claim_name, claimed_instance, deployment_of, ordinal_of
from datum_compute.api.quota import GRANTED, INSTANCES, RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import RESOURCE_MANAGER_GROUP
from datum_compute.cell.ledger import AbandonedClaim, Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.name_lease import NameNotHeld
from datum_compute.cell.sizing import requests
from datum_compute.cell.verdict import SLOW, YOUNG, Verdict, tier_at
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
_WAITING = "Waiting for quota evaluation"
ABANDON_SECONDS = 3600.0
_ENGAGING_SECONDS = 2.0  # until then a project's plane is about to come, and nothing is wrong
_MISSED_AT_MOST = 1000
_CLOSING_SECONDS = 60.0  # until a namespace that was being deleted is asked again

_log = structlog.get_logger(__name__)

CellName = Callable[[Plane], str]
"""What a cell calls itself on claims and hub copies."""

IsGone = Callable[[str], Awaitable[bool]]
"""Whether a project is known to exist no more; one that only cannot be reached is not gone."""


async def nobody_knows(project: str) -> bool:
    return False


class LeftBehind(Struct, frozen=True):
    """Something that had to be left in a quota system when its Instance went."""

    reason: str
    message: str


class _Denial(Struct, frozen=True):
    """A denied claim, by its uid, and the loop time at which it was first seen to be denied."""

    claim: str
    since: float


class Quota(Protocol):
    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        """What is known now of an Instance of that age; never raises an API error."""
        ...

    def forget(self, request: Request) -> None:
        """The Instance is gone."""
        ...

    async def sweep(self, cell: Plane, request: Request) -> None:
        """Gives back what an Instance that is gone still holds."""
        ...

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        """Gives back what the Instance holds; raising keeps its finalizer."""
        ...


class Disabled:
    """No credential for a quota system is configured: nothing is asked for, everything may run."""

    def __init__(self) -> None:
        _log.error("quota is not enforced: no credential for it is configured")

    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        return Verdict("True", reasons.QUOTA_DISABLED, "Quota enforcement disabled: no credential configured")

    def forget(self, request: Request) -> None: ...

    async def sweep(self, cell: Plane, request: Request) -> None: ...

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        return None


class Claims:
    """One claim per Instance on its project's plane: never changed here, deleted with it.

    A denial is final where Milo decides, so on the slow tiers a denied claim is deleted and made anew. A claim
    that the project's plane refuses to remove for `abandon_after` seconds goes into the `ledger`; without one it holds
    its Instance for as long as that takes.

    A claim is for the Instance whose name and namespace it carries, whatever cell made it; only claims that bear this
    cell's own name are deleted. `named` says that the name was given to this cell and to no other.
    """

    def __init__(
        self,
        fleet: Fleet,
        cell_name: CellName,
        controller: str,
        *,
        recreate_denied: bool = True,
        is_gone: IsGone = nobody_knows,
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
        self._denials: dict[Request, _Denial] = {}
        self._refusals: dict[Request, float] = {}  # loop time since when the removal of a claim has been refused
        self._missed: dict[str, float] = {}  # loop time since when each project's plane was missed
        self._closing: dict[str, float] = {}  # loop time until when a namespace of ours takes no claims

    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        verdict = await self._ask(cell, instance, age)
        self._metrics.evaluated(verdict.reason)
        return verdict

    async def _ask(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        try:
            namespace = await self._namespace(cell, instance.namespace)
        except ApiError as error:
            sentence = "The namespace that says which project this is cannot be read; the instance waits until it can"
            return _failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, sentence, error)
        if namespace.metadata.deleting:
            return _waiting()  # the Instance goes with it
        identity = Identity.of(namespace.metadata.labels)
        if identity is None:
            return _failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, _nameless(instance))
        try:
            project = self._engaged(identity.project)
            claim = await self._find(project, identity, instance)
            if claim is not None and self._is_stale(cell, instance, claim, age):
                claim = await self._withdraw(project, identity, instance, claim)
            if claim is None:
                return await self._create(cell, project, identity, instance, age)
        except NameNotHeld as error:
            sentence = "The site cannot ask for quota, because another cluster has its name"
            return _failed(reasons.QUOTA_MISCONFIGURED, sentence, error)
        except ApiError as error:
            if isinstance(error, NotEngaged) and error.coming:
                return _waiting(error)
            # Always in the same words: those of the error change from try to try, and are for who reads the log.
            sentence = "The quota system cannot be reached; the instance waits until it can"
            return _failed(reasons.QUOTA_BACKEND_UNAVAILABLE, sentence, error)
        return self._read(instance, claim, age)

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        identity = Identity.of((await self._namespace(cell, instance.namespace)).metadata.labels)
        if identity is None:
            # Nobody can ever tell where the claim is; holding the Instance back would not find it.
            sentence = f"{_nameless(instance)}; its quota claim, if any, cannot be located and is left behind"
            return LeftBehind(reasons.QUOTA_CLAIM_ORPHANED, sentence)
        claim = AbandonedClaim(identity.project, identity.namespace, instance.namespace, instance.name)
        try:
            await self.remove(cell, claim)
        except ApiError as error:
            if not self._is_refused_for_good(Request(cell.name, instance.namespace, instance.name), error):
                raise
            assert self._ledger is not None
            await self._ledger.add(cell, claim)
            sentence = (
                f"For {self._abandon_after / 60:.0f} minutes project {claim.project} has refused to let quota claim "
                f"{claim.namespace}/{claim.name} go; the instance goes without it, and it is removed when it may be"
            )
            return LeftBehind(reasons.QUOTA_CLAIM_ABANDONED, sentence)
        return None

    async def remove(self, cell: Plane, claim: AbandonedClaim) -> None:
        """Deletes the claim of an Instance that goes or is gone, if it is this cell's."""
        project = await self._reachable(claim.project)
        if project is None:
            return  # gone, and the claim with it
        try:
            found = await project.client.get(RESOURCE_CLAIM, claim.name, claim.namespace)
        except NotFound as error:
            if error.about is None and not await self._answers(project, claim.namespace):
                raise  # nothing is there, not even what could say that the claim is not
            return
        if not _is_for(claim.instance_namespace, found):
            return
        if self._is_ours(cell, found):
            await project.writer(self._controller).delete(found)
        else:
            _log.info("claim left to the cell whose name it bears", claim=claim.name, cell=_bearer(found))

    async def _reachable(self, name: str) -> Plane | None:
        """The plane of a project, also one that cannot be engaged: claims are removed without any cache."""
        for plane in self._fleet.known(CLAIMS):
            if plane.name == name:
                return plane
        if await self._is_gone(name):
            return None
        return self._fleet.plane(name)

    async def _answers(self, project: Plane, namespace: str) -> bool:
        """Whether an API server is there that only does not serve claims; what it may tell us does not matter."""
        try:
            await project.client.get(NAMESPACE, namespace)
        except Forbidden:
            return True
        except NotFound as error:
            return error.about is not None
        return True

    def _is_refused_for_good(self, request: Request, error: ApiError) -> bool:
        """Whether the plane itself has answered long enough, without a break, that it will not remove a claim."""
        if not is_refusal(error) or self._ledger is None:
            self._refusals.pop(request, None)
            return False
        now = asyncio.get_running_loop().time()
        return now - self._refusals.setdefault(request, now) >= self._abandon_after

    def left_behind(self, project: Plane) -> Iterable[Request]:
        for claim in project.informer(RESOURCE_CLAIM).all() if self._named else ():
            namespace, name = claim.metadata.labels.get(INSTANCE_NAMESPACE), claimed_instance(claim.name)
            for cell in self._fleet.of_role(CELL) if namespace and name else ():
                is_left = cell.informer(INSTANCE).get(namespace or "", name) is None
                if is_left and self._is_ours(cell, claim):
                    yield Request(cell.name, namespace or "", name)

    async def sweep(self, cell: Plane, request: Request) -> None:
        """Deletes a claim whose Instance is gone: one that was handed over, or that could not be deleted in time.

        Not while a deployment asks for the Instance: it will be made, and keeps the grant.
        """
        claim = self._unused(cell, request)
        if claim is None or await _exists(cell, request):
            return
        try:
            await self.remove(cell, claim)
        except ApiError as error:
            if not is_refusal(error):
                raise
            _log.debug("claim without an instance cannot be deleted", claim=claim.name, error=str(error))

    def _unused(self, cell: Plane, request: Request) -> AbandonedClaim | None:
        """The claim for an Instance that nothing asks for, as far as our caches know."""
        namespace = cell.informer(NAMESPACE).get("", request.namespace)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        if not self._named or identity is None or not self._fleet.has(identity.project):
            return None
        project = self._fleet.plane(identity.project)
        claim = project.informer(RESOURCE_CLAIM).get(identity.namespace, claim_name(request.name))
        is_ours = claim is not None and self._is_ours(cell, claim) and not claim.metadata.deleting
        if not is_ours or self._is_wanted(cell, request):
            return None
        return AbandonedClaim(identity.project, identity.namespace, request.namespace, request.name)

    def _is_wanted(self, cell: Plane, request: Request) -> bool:
        """Whether a deployment asks for an Instance of this name; also while the hub cannot say."""
        hubs = self._fleet.of_role(HUB)
        if len(hubs) < len(self._fleet.known(HUB)):
            return True
        name, ordinal = deployment_of(request.name), ordinal_of(request.name) or 0
        found = [plane.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, name) for plane in (cell, *hubs)]
        return any(
            deployment is not None
            and not deployment.metadata.deleting
            and ordinal < deployment.spec.scale_settings.min_replicas
            for deployment in found
        )

    def forget(self, request: Request) -> None:
        self._denials.pop(request, None)
        self._refusals.pop(request, None)

    def _engaged(self, project: str) -> Plane:
        """The plane of a project. One that nobody has begun to engage may be about to be discovered."""
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

    async def _find(self, project: Plane, identity: Identity, instance: Instance) -> ResourceClaim | None:
        """Read from the server, not from the cache: the safety net is for events that never came."""
        try:
            return await project.client.get(RESOURCE_CLAIM, claim_name(instance.name), identity.namespace)
        except NotFound:
            return None

    async def _withdraw(
        self, project: Plane, identity: Identity, instance: Instance, claim: ResourceClaim
    ) -> ResourceClaim | None:
        """Deletes a denied claim as it was seen; what is there instead when it was decided anew in this moment."""
        try:
            await project.writer(self._controller).delete_if_unchanged(claim)
        except Conflict:
            return await self._find(project, identity, instance)
        return None

    async def _create(
        self, cell: Plane, project: Plane, identity: Identity, instance: Instance, age: timedelta
    ) -> Verdict:
        now = asyncio.get_running_loop().time()
        if self._closing.get(instance.namespace, now) > now:
            return _waiting()
        amounts = requests(instance.spec.runtime)
        body = _claim(identity, instance, self._cell_name(cell), amounts)
        try:
            await project.writer(self._controller).create(RESOURCE_CLAIM, body)
            if amounts.keys() == {INSTANCES}:
                _log.warning("claim of unknown size", cell=cell.name, instance=f"{instance.namespace}/{instance.name}")
            return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING, fresh=True)
        except AlreadyExists:
            claim = await project.client.get(RESOURCE_CLAIM, claim_name(instance.name), identity.namespace)
        except NotFound:
            sentence = f"Namespace {identity.namespace} does not exist in project {identity.project}"
            return _failed(reasons.QUOTA_NAMESPACE_NOT_FOUND, sentence)
        except (Forbidden, Invalid) as error:
            return self._refused(identity, instance, error)
        return self._read(instance, claim, age)

    def _refused(self, identity: Identity, instance: Instance, error: Forbidden | Invalid) -> Verdict:
        if error.caused_by(NAMESPACE_TERMINATING):
            # The Instance will follow. Until then nothing more is sent, and nobody is told of what has to be so.
            now = asyncio.get_running_loop().time()
            self._closing = {name: until for name, until in self._closing.items() if until > now}
            self._closing[instance.namespace] = now + _CLOSING_SECONDS
            return _waiting()
        if error.caused_by(reasons.PROJECT_SUSPENDED):
            sentence = f"Project {identity.project} is suspended; the instance waits until it is active again"
            return Verdict("False", reasons.PROJECT_SUSPENDED, sentence, failed=True, waits=True)
        return _failed(reasons.QUOTA_MISCONFIGURED, f"The quota system refused the claim: {error}")

    def _read(self, instance: Instance, claim: ResourceClaim, age: timedelta) -> Verdict:
        if not _is_for(instance.namespace, claim):
            return _failed(reasons.QUOTA_MISCONFIGURED, f"Claim {claim.name} belongs to another instance of that name")
        granted = conditions.find(conditions.of(claim), GRANTED)
        if claim.metadata.deleting or granted is None:
            return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING)
        match granted.status, granted.reason:
            case "True", _:
                return Verdict("True", reasons.QUOTA_AVAILABLE, granted.message)
            case _, reasons.PENDING_EVALUATION if age < YOUNG:
                return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING)
            case _, reasons.PENDING_EVALUATION:
                sentence = "ResourceClaim is pending: no AllowanceBucket configured for this project"
                return Verdict("Unknown", reasons.QUOTA_NO_BUDGET, sentence)
            case _, reasons.VALIDATION_FAILED:
                return Verdict("False", reasons.VALIDATION_FAILED, granted.message)
        return Verdict("False", reasons.QUOTA_EXCEEDED, granted.message)

    def _is_stale(self, cell: Plane, instance: Instance, claim: ResourceClaim, age: timedelta) -> bool:
        """Whether a denied claim is to be made anew: on the slow tiers, and not before it was known for one of them.

        By loop time: when the claim was created, another machine's clock says.
        """
        request = Request(cell.name, instance.namespace, instance.name)
        if not self._is_ours(cell, claim) or self._read(instance, claim, age).reason != reasons.QUOTA_EXCEEDED:
            self.forget(request)
            return False
        now = asyncio.get_running_loop().time()
        denial = self._denials.get(request)
        if denial is None or denial.claim != claim.metadata.uid:
            self._denials[request] = denial = _Denial(claim.metadata.uid, now)
        again = tier_at(age)
        return self._recreate_denied and again >= SLOW and now - denial.since >= again

    def _is_ours(self, cell: Plane, claim: ResourceClaim) -> bool:
        return _bearer(claim) == self._cell_name(cell)

    def to_instance(self, project: Plane, change: Change[ResourceClaim]) -> Iterable[Request | Drop]:
        """From a claim to the Instance it is for: by its labels and name, never by its resourceRef (a Project)."""
        if change.before is None and not _is_decided(change.object):
            return  # a claim that was just made is no news to who made it
        namespace = change.object.metadata.labels.get(INSTANCE_NAMESPACE)
        name = claimed_instance(change.object.name)
        if not namespace or not name:
            yield Drop("unlabelled", ordinary=True)  # other services have claims here too
            return
        for cell in self._fleet.of_role(CELL):
            # Also one that bears another cell's name, where the Instance is here: it has not been handed over yet.
            if self._is_ours(cell, change.object) or cell.informer(INSTANCE).get(namespace, name) is not None:
                yield Request(cell.name, namespace, name)


def is_refusal(error: ApiError) -> bool:
    """Whether the plane itself says that it will not, or is not there; a suspended project says so only for now."""
    is_no = isinstance(error, Unauthorized | Forbidden | NotFound) and error.answered
    return is_no and not error.caused_by(reasons.PROJECT_SUSPENDED)


def _is_decided(claim: ResourceClaim) -> bool:
    granted = conditions.find(conditions.of(claim), GRANTED)
    return granted is not None and granted.reason != reasons.PENDING_EVALUATION


def _bearer(claim: ResourceClaim) -> str:
    """The cell that releases the claim."""
    return claim.metadata.labels.get(SOURCE_CLUSTER, "")


def _is_for(namespace: str, claim: ResourceClaim) -> bool:
    """Whether a claim is for Instances of a namespace, which is one per namespace of a project, by its uid."""
    return claim.metadata.labels.get(INSTANCE_NAMESPACE) == namespace


async def _exists(cell: Plane, request: Request) -> bool:
    """By the word of the cell itself: our cache may have missed it."""
    try:
        await cell.client.get(INSTANCE, request.name, request.namespace)
    except NotFound:
        return False
    return True


def _nameless(instance: Instance) -> str:
    return f"Namespace {instance.namespace} does not say which project it belongs to"


def _waiting(error: ApiError | None = None) -> Verdict:
    """Nothing is wrong, and nothing can be learned yet."""
    return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING, failed=True, waits=True, error=error)


def _failed(reason: str, message: str, error: ApiError | None = None) -> Verdict:
    return Verdict("False", reason, message, failed=True, error=error)


def _claim(identity: Identity, instance: Instance, cell_name: str, amounts: Mapping[str, int]) -> Json:
    owner = {key: value for key in (CITY_CODE, WORKLOAD_UID) if (value := instance.metadata.labels.get(key))}
    labels = {SOURCE_CLUSTER: cell_name, INSTANCE_NAMESPACE: instance.namespace} | owner
    project = {"apiGroup": RESOURCE_MANAGER_GROUP, "kind": PROJECT_KIND.name, "name": identity.project}
    spec = {
        "consumerRef": project,
        "resourceRef": project,  # only a Project is registered to claim
        "requests": [{"resourceType": type_, "amount": amount} for type_, amount in amounts.items()],
    }
    return RESOURCE_CLAIM.body(claim_name(instance.name), identity.namespace, labels=labels) | {"spec": spec}
