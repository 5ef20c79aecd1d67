"""Whether an Instance may run by the project's quota. Entry points: `Quota`, `Claims`, `Disabled`, `tier`, `kept`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Protocol

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE, QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import INSTANCE_NAMESPACE, SOURCE_CLUSTER
from datum_compute.api.names import claim_name
from datum_compute.api.quota import GRANTED, INSTANCES, RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import RESOURCE_MANAGER_GROUP
from datum_compute.cell.gates import gates
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.sizing import requests
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Request

YOUNG = timedelta(seconds=60)  # until then a claim nobody has decided is no news
COMPONENT = "instance-controller"  # who tells events about Instances
_LABEL_READ_SECONDS = 5.0
_WAITING = "Waiting for quota evaluation"

_log = structlog.get_logger(__name__)

CellName = Callable[[Plane], str]
"""What a cell calls itself on claims and hub copies."""

IsGone = Callable[[str], Awaitable[bool]]
"""Whether a project is known to exist no more; one that only cannot be reached is not gone."""


async def nobody_knows(project: str) -> bool:
    return False


class Verdict(Struct, frozen=True):
    """What is known now. `status` is that of the condition: True opens the gate, False keeps it shut.

    `failed` means that nothing could be learned: told, tried again, and never held against what already runs; `error`
    is why, where somebody did not answer. `fresh` means that the question was put only now.
    """

    status: str
    reason: str
    message: str
    failed: bool = False
    fresh: bool = False
    error: ApiError | None = None

    @property
    def granted(self) -> bool:
        return self.status == "True"

    @property
    def denied(self) -> bool:
        return self.status == "False"


class Quota(Protocol):
    async def evaluate(self, cell: Plane, instance: Instance) -> Verdict: ...

    async def release(self, cell: Plane, instance: Instance) -> None:
        """Gives back what the Instance holds; raising keeps its finalizer."""
        ...


class Disabled:
    """No credential for a quota system is configured: nothing is asked for, everything may run."""

    def __init__(self) -> None:
        _log.error("quota is not enforced: no credential for it is configured")

    async def evaluate(self, cell: Plane, instance: Instance) -> Verdict:
        return Verdict("True", reasons.QUOTA_DISABLED, "Quota enforcement disabled: no credential configured")

    async def release(self, cell: Plane, instance: Instance) -> None:
        pass


_TIERS = ((60, 1.0), (300, 15.0), (600, 60.0))
_LAST_TIER = 300.0
_SLOW = 60.0  # from this tier on a denied claim is asked anew


def tier(verdict: Verdict, age: timedelta) -> float | None:
    """How soon to ask again while there is no grant, by the age of the Instance; None once there is one.

    Never by the condition's transition time: that stays 1970 until the first verdict.
    """
    if verdict.granted:
        return None
    return _tier(age)


def _tier(age: timedelta) -> float:
    return next((again for below, again in _TIERS if age.total_seconds() < below), _LAST_TIER)


def kept(instance: Instance, verdict: Verdict) -> Verdict:
    """What the condition shall say: what it says already, where `verdict` is no better answer.

    What runs stays as it is while the quota system cannot be asked (R18), also when its claim was not decided yet, and
    a denied one while its claim, made anew, waits to be decided (R9): only a real verdict changes any of them.
    """
    said = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    if said is None:
        return verdict
    if verdict.failed and said.status != "False" and QUOTA_GATE not in gates(instance):
        return Verdict(said.status, said.reason, said.message, failed=True)
    if verdict.status == "Unknown" and (said.status, said.reason) == ("False", reasons.QUOTA_EXCEEDED):
        return Verdict("False", said.reason, said.message)
    return verdict


class Claims:
    """One claim an Instance on its project's plane: never changed, deleted with it.

    A denial is final where Milo decides, so on the slow tiers a denied claim is deleted and made anew (R9).
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        cell_name: CellName,
        controller: str,
        *,
        recreate_denied: bool = True,
        is_gone: IsGone = nobody_knows,
        metrics: Metrics | None = None,
    ) -> None:
        self._fleet = fleet
        self._is_gone = is_gone
        self._clock = clock
        self._cell_name = cell_name
        self._controller = controller
        self._recreate_denied = recreate_denied
        self._metrics = metrics or Metrics()
        self._metrics.enforcement_enabled.set(1)

    async def evaluate(self, cell: Plane, instance: Instance) -> Verdict:
        verdict = await self._ask(cell, instance)
        self._metrics.evaluated(verdict.reason)
        return verdict

    async def _ask(self, cell: Plane, instance: Instance) -> Verdict:
        try:
            identity = await self._identity(cell, instance.namespace)
        except ApiError as error:
            sentence = "The namespace that says which project this is cannot be read; the instance waits until it can"
            return _failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, sentence, error)
        if identity is None:
            return _failed(reasons.QUOTA_PROJECT_ID_UNRESOLVABLE, _nameless(instance))
        try:
            project = self._fleet.plane(identity.project)
            claim = await self._find(project, identity, instance)
            if claim is not None and self._is_stale(cell, instance, claim):
                claim = await self._withdraw(project, identity, instance, claim)
            if claim is None:
                return await self._create(cell, project, identity, instance)
        except ApiError as error:
            # Always in the same words: those of the error change from try to try, and are for who reads the log.
            sentence = "The quota system cannot be reached; the instance waits until it can"
            return _failed(reasons.QUOTA_BACKEND_UNAVAILABLE, sentence, error)
        return self._read(cell, instance, claim)

    async def release(self, cell: Plane, instance: Instance) -> None:
        identity = await self._identity(cell, instance.namespace)
        if identity is None:
            # Nobody can ever tell where the claim is; holding the Instance back would not find it.
            sentence = f"{_nameless(instance)}; its quota claim, if any, cannot be located and is left behind"
            _log.error("quota claim orphaned", cell=cell.name, instance=f"{instance.namespace}/{instance.name}")
            self._metrics.claims_orphaned.inc()
            cell.events.warning(
                COMPONENT, INSTANCE, instance, reasons.QUOTA_CLAIM_ORPHANED, sentence, now=self._clock.now()
            )
            return
        try:
            project = self._fleet.plane(identity.project)
        except NotEngaged:
            if await self._is_gone(identity.project):
                return  # and the claim with it
            raise
        claim = await self._find(project, identity, instance)
        if claim is not None and self._is_ours(cell, instance, claim):
            await project.writer(self._controller).delete(RESOURCE_CLAIM, claim)

    async def _identity(self, cell: Plane, name: str) -> Identity | None:
        namespace = cell.informer(NAMESPACE).get("", name)
        if namespace is None:
            try:
                async with asyncio.timeout(_LABEL_READ_SECONDS):
                    namespace = await cell.client.get(NAMESPACE, name)
            except TimeoutError:
                raise Unavailable(f"no answer in {_LABEL_READ_SECONDS:.0f} s", plane=cell.name) from None
        return Identity.of(namespace.metadata.labels)

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
            await project.writer(self._controller).delete_seen(RESOURCE_CLAIM, claim)
        except Conflict:
            return await self._find(project, identity, instance)
        return None

    async def _create(self, cell: Plane, project: Plane, identity: Identity, instance: Instance) -> Verdict:
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
            return _failed(reasons.QUOTA_MISCONFIGURED, f"The quota system refused the claim: {error}")
        return self._read(cell, instance, claim)

    def _read(self, cell: Plane, instance: Instance, claim: ResourceClaim) -> Verdict:
        if not self._is_ours(cell, instance, claim):
            owner = claim.metadata.labels.get(SOURCE_CLUSTER, "nobody we know")
            return _failed(reasons.QUOTA_MISCONFIGURED, f"Claim {claim.name} belongs to {owner}")
        granted = conditions.find(conditions.of(claim), GRANTED)
        if claim.metadata.deleting or granted is None:
            return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING)
        match granted.status, granted.reason:
            case "True", _:
                return Verdict("True", reasons.QUOTA_AVAILABLE, granted.message)
            case _, reasons.PENDING_EVALUATION if self._age(instance) < YOUNG:
                return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING)
            case _, reasons.PENDING_EVALUATION:
                sentence = "ResourceClaim is pending: no AllowanceBucket configured for this project"
                return Verdict("Unknown", reasons.QUOTA_NO_BUDGET, sentence)
            case _, reasons.VALIDATION_FAILED:
                return Verdict("False", reasons.VALIDATION_FAILED, granted.message)
        return Verdict("False", reasons.QUOTA_EXCEEDED, granted.message)

    def _is_stale(self, cell: Plane, instance: Instance, claim: ResourceClaim) -> bool:
        """Whether a denied claim is to be made anew: on the slow tiers, and not before it is as old as its tier."""
        again = _tier(self._age(instance))
        return (
            self._recreate_denied
            and again >= _SLOW
            and self._age(claim).total_seconds() >= again
            and not claim.metadata.deleting
            and self._is_ours(cell, instance, claim)
            and self._read(cell, instance, claim).reason == reasons.QUOTA_EXCEEDED
        )

    def _is_ours(self, cell: Plane, instance: Instance, claim: ResourceClaim) -> bool:
        labels = claim.metadata.labels
        return (labels.get(SOURCE_CLUSTER), labels.get(INSTANCE_NAMESPACE)) == (
            self._cell_name(cell),
            instance.namespace,
        )

    def _age(self, object_: KubeObject) -> timedelta:
        now = self._clock.now()
        return now - (object_.metadata.creation_timestamp or now)

    def to_instance(self, project: Plane, change: Change[ResourceClaim]) -> Iterable[Request | Drop]:
        """From a claim to the Instance it is for: by its labels and name, never by its resourceRef (a Project)."""
        if change.before is None and not _is_decided(change.object):
            return  # a claim that was just made is no news to who made it
        labels = change.object.metadata.labels
        namespace = labels.get(INSTANCE_NAMESPACE)
        prefix = claim_name("")
        if not namespace or not change.object.name.startswith(prefix):
            yield Drop("unlabelled")
            return
        for cell in self._fleet.of_role(CELL):
            if self._cell_name(cell) == labels.get(SOURCE_CLUSTER):
                yield Request(cell.name, namespace, change.object.name.removeprefix(prefix))


def _is_decided(claim: ResourceClaim) -> bool:
    granted = conditions.find(conditions.of(claim), GRANTED)
    return granted is not None and granted.reason != reasons.PENDING_EVALUATION


def _nameless(instance: Instance) -> str:
    return f"Namespace {instance.namespace} does not say which project it belongs to"


def _failed(reason: str, message: str, error: ApiError | None = None) -> Verdict:
    return Verdict("False", reason, message, failed=True, error=error)


def _claim(identity: Identity, instance: Instance, cell_name: str, amounts: Mapping[str, int]) -> Json:
    labels = {SOURCE_CLUSTER: cell_name, INSTANCE_NAMESPACE: instance.namespace}
    project = {"apiGroup": RESOURCE_MANAGER_GROUP, "kind": PROJECT_KIND.name, "name": identity.project}
    spec = {
        "consumerRef": project,
        "resourceRef": project,  # only a Project is registered to claim
        "requests": [{"resourceType": type_, "amount": amount} for type_, amount in amounts.items()],
    }
    return RESOURCE_CLAIM.body(claim_name(instance.name), identity.namespace, labels=labels) | {"spec": spec}
