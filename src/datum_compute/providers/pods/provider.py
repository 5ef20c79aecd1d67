"""Runs Instances as Pods of their cell. Entry point: `PodsProvider`."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import COMPUTE_LABELS
from datum_compute.api.labels import PODS_FINALIZER as FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from datum_compute.kube.meta import KubeObject, as_dict
from datum_compute.kube.patches import changes, difference
from datum_compute.providers import report
from datum_compute.providers.pods.policy import NETWORK_POLICY, policy_of
from datum_compute.providers.pods.settings import PodSettings
from datum_compute.providers.pods.shape import labels_of, pod_of, runs_in_pod, unsupported_volumes
from datum_compute.providers.pods.state import CRASHED, FAILED, POD, Pod, address_of, report_of
from datum_compute.providers.report import Report, status_with
from datum_compute.runtime import Pass, Problems, Source, Unfinished, controller_of, itself

_FIRST_WAIT, _LONGEST_WAIT = 30.0, 600.0
UNPROTECTED = Report(
    "Unknown",
    reasons.NETWORK_FAILED_TO_CREATE,
    "The site cannot limit who reaches the instance, so it is not started",
)

_log = structlog.get_logger(__name__)


class _Failures(Struct):
    """Failures of an Instance since it last ran."""

    count: int = 0
    again_at: float = 0.0


class PodsProvider:
    """Runs each Instance in a Pod of the same name, and replaces Pods that are lost or have failed.

    The first failed Pod is replaced at once, the next after 30 s, and then after twice as long each time, up to ten
    minutes. Failures are counted in memory only, so a restart of this process begins anew.
    """

    name = "pods-provider"

    def __init__(self, settings: PodSettings = PodSettings()) -> None:  # noqa: B008 - frozen
        self._settings = settings
        self._failures: dict[str, _Failures] = {}  # by uid of the Instance

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, INSTANCE, itself, scope=CELL_NAMESPACES),
            Source(CELL, POD, controller_of(INSTANCE)),
            Source(CELL, NETWORK_POLICY, controller_of(INSTANCE), best_effort=True),
        )

    async def reconcile(self, pass_: Pass) -> None:
        instance = pass_.get(INSTANCE)
        if instance is None:
            return
        pod = pass_.informer(POD).get(instance.namespace, instance.name)
        if instance.metadata.deleting:
            await self._tear_down(pass_, instance)
            return
        if instance.spec.controller is not None and instance.spec.controller.scheduling_gates:
            return
        if not runs_in_pod(instance):
            return
        instance = await pass_.write.add_finalizer(instance, FINALIZER)
        problems = Problems()
        with problems.collect("The network policy"):
            await self._protect(pass_, instance, starting=pod is None)
        if pod is None:
            await self._hold_back(pass_, instance, problems)
            pod = await self._start(pass_, instance)
        if not _is_of(pod, instance):
            await self._report(pass_, instance, report.TAKEN, "")
            raise Unfinished(f"{pod.namespace}/{pod.name} belongs to somebody else")
        await self._relabel(pass_, instance, pod)
        state = await self._state(pass_, instance, pod)
        await self._report(pass_, instance, state, address_of(pod))
        problems.raise_worst()

    async def _protect(self, pass_: Pass, instance: Instance, *, starting: bool) -> None:
        """Applies the network policy, before the Pod is created so that it is never unprotected."""
        wanted = policy_of(instance, self._settings)
        actual = pass_.informer(NETWORK_POLICY).get(instance.namespace, instance.name)
        # Where policies cannot be watched, one is created with the Pod and not updated later.
        if actual is None and wanted is not None and (starting or pass_.serves(NETWORK_POLICY)):
            actual = await pass_.write.ensure(NETWORK_POLICY, wanted)
        if actual is None:
            return
        if not _is_of(actual, instance):
            if wanted is not None:
                raise Unfinished(f"NetworkPolicy {actual.namespace}/{actual.name} belongs to somebody else")
        elif wanted is None:
            await pass_.write.delete(actual)
        elif change := difference(as_dict(actual.spec_json), wanted["spec"]):
            await pass_.write.patch_if_unchanged(actual, {"spec": change})

    async def _hold_back(self, pass_: Pass, instance: Instance, problems: Problems) -> None:
        """An Instance does not start without its policy; one that runs already continues."""
        for problem in problems:
            _log.warning("policy refused", instance=f"{instance.namespace}/{instance.name}", error=str(problem.error))
            if isinstance(problem.error, BadRequest | Invalid):
                await self._report(pass_, instance, report.MISCONFIGURED, "")
            elif isinstance(problem.error, Unfinished):
                await self._report(pass_, instance, report.TAKEN, "")
            elif problem.is_refusal or isinstance(problem.error, NotFound):
                await self._report(pass_, instance, UNPROTECTED, "")
        problems.raise_worst()

    async def _start(self, pass_: Pass, instance: Instance) -> Pod:
        try:
            body = pod_of(instance, self._settings)
        except ValueError as error:  # an invalid amount of a resource
            await self._report(pass_, instance, report.MISCONFIGURED, "")
            raise Unfinished(f"{instance.namespace}/{instance.name} cannot become a Pod: {error}") from None
        if disks := unsupported_volumes(instance):
            _log.warning("disks not supported", instance=f"{instance.namespace}/{instance.name}", volumes=disks)
        if (class_ := as_dict(instance.spec.runtime_json).get("class")) and class_ != body["spec"]["runtimeClassName"]:
            _log.warning("runtime class replaced", instance=f"{instance.namespace}/{instance.name}", requested=class_)
        try:
            return await pass_.write.create(POD, body)
        except AlreadyExists:
            return await pass_.client.get(POD, instance.name, instance.namespace)
        except (BadRequest, Forbidden, Invalid) as error:
            # Not reported as the server put it, because users do not know about Pods.
            _log.warning("pod refused", instance=f"{instance.namespace}/{instance.name}", error=str(error))
            await self._report(pass_, instance, report.MISCONFIGURED, "")
            raise

    async def _state(self, pass_: Pass, instance: Instance, pod: Pod) -> Report:
        """The report for a Pod, which is replaced if it has failed for good and its waiting time is over."""
        state, uid = report_of(pod), instance.metadata.uid
        if state.running:
            self._failures.pop(uid, None)
        if pod.metadata.deleting or pod.status is None or pod.status.phase != FAILED:
            return state
        failures = self._failures.setdefault(uid, _Failures())
        now = asyncio.get_running_loop().time()
        if now < failures.again_at:
            pass_.no_later_than(failures.again_at - now)
            return CRASHED
        failures.again_at = now + wait_after(failures.count)
        failures.count += 1
        await pass_.write.delete(pod)
        return CRASHED

    async def _relabel(self, pass_: Pass, instance: Instance, pod: Pod) -> None:
        patch = changes(pod, labels={**dict.fromkeys(COMPUTE_LABELS), **labels_of(instance)})
        if patch and not pod.metadata.deleting:
            await pass_.write.patch(pod, patch)

    async def _tear_down(self, pass_: Pass, instance: Instance) -> None:
        """Deletes the Pod explicitly, because it is garbage-collected only after this finalizer is removed."""
        if FINALIZER not in instance.metadata.finalizers:
            return
        self._failures.pop(instance.metadata.uid, None)
        pod = pass_.informer(POD).get(instance.namespace, instance.name)
        if pod is None:  # the cache may lag, and an Instance must not be released while it runs
            with suppress(NotFound):
                pod = await pass_.client.get(POD, instance.name, instance.namespace)
        if pod is not None and _is_of(pod, instance):
            if not pod.metadata.deleting:
                await pass_.write.delete(pod)
            await self._report(pass_, instance, report.STOPPING, "")
            return
        policy = pass_.informer(NETWORK_POLICY).get(instance.namespace, instance.name)
        if policy is not None and _is_of(policy, instance):
            with suppress(Forbidden):  # it is garbage-collected with its owner anyway
                await pass_.write.delete(policy)
        await pass_.write.remove_finalizers(instance, FINALIZER)

    async def _report(self, pass_: Pass, instance: Instance, state: Report, address: str) -> None:
        """`address` belongs to the first interface, because a Pod has only one."""
        others = [""] * (len(instance.spec.network_interfaces) - 1)
        await pass_.write.status(instance, status_with(instance, state, [address, *others], pass_.now()))


def wait_after(failures: int) -> float:
    """Seconds until the next failed Pod of an Instance is replaced, by the number of those replaced before."""
    return float(min(_FIRST_WAIT * 2 ** min(failures, 10), _LONGEST_WAIT))


def _is_of(object_: KubeObject, instance: Instance) -> bool:
    owner = object_.metadata.controller
    return owner is not None and owner.uid == instance.metadata.uid
