"""Runs Instances as Pods of their cell. Entry point: `PodsProvider`."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import COMPUTE_LABELS
from datum_compute.api.labels import PODS_FINALIZER as FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import is_foreign, waking
from datum_compute.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from datum_compute.kube.meta import missing_or_different
from datum_compute.providers import report
from datum_compute.providers.pod_shape import labels_of, left_out, pod_of, runs_in_pod
from datum_compute.providers.pod_state import CRASHED, FAILED, POD, Pod, address_of, report_of
from datum_compute.providers.report import Report, reported
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, controller_of, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

_FIRST_WAIT, _LONGEST_WAIT = 30.0, 600.0
TAKEN = Report("Unknown", report.PROVISIONING.reason, "The site still has something else of the instance's name")

_log = structlog.get_logger(__name__)


class _Failures(Struct):
    """Of one Instance, since it last ran."""

    count: int = 0
    again_at: float = 0.0


class PodsProvider:
    """One Pod an Instance, of its name, made anew when it is lost or has failed.

    A failed one is replaced at once, the next after 30 s, then after twice as long each time, up to ten minutes. How
    often it failed is kept in memory only: a restart of this process is a new chance.
    """

    name = "pods-provider"

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._failures: dict[str, _Failures] = {}  # by uid of the Instance

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, INSTANCE, itself), Source(CELL, POD, controller_of(INSTANCE)), waking(INSTANCE))

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        instance = plane.informer(INSTANCE).get(request.namespace, request.name)
        if instance is None or is_foreign(plane, request.namespace):
            return
        write = plane.writer(self.name)
        pod = plane.informer(POD).get(instance.namespace, instance.name)
        if instance.metadata.deleting:
            await self._tear_down(plane, write, instance)
            return
        if instance.spec.controller is not None and instance.spec.controller.scheduling_gates:
            return
        if not runs_in_pod(instance):
            return
        instance = await write.add_finalizer(INSTANCE, instance, FINALIZER)
        if pod is None:
            pod = await self._start(plane, write, instance)
        if not _is_of(pod, instance):
            await self._tell(write, instance, TAKEN, "")
            raise Unfinished(f"{pod.namespace}/{pod.name} belongs to somebody else")
        await self._relabel(write, instance, pod)
        said = await self._judge(write, instance, pod, pass_)
        await self._tell(write, instance, said, address_of(pod))

    async def _start(self, plane: Plane, write: Writer, instance: Instance) -> Pod:
        try:
            body = pod_of(instance)
        except ValueError as error:  # an amount that no machine has
            await self._tell(write, instance, report.MISCONFIGURED, "")
            raise Unfinished(f"{instance.namespace}/{instance.name} cannot become a Pod: {error}") from None
        if disks := left_out(instance):
            _log.warning("disks left out", instance=f"{instance.namespace}/{instance.name}", volumes=disks)
        try:
            return await write.create(POD, body)
        except AlreadyExists:
            return await plane.client.get(POD, instance.name, instance.namespace)
        except (BadRequest, Forbidden, Invalid) as error:
            # Told in our words: what the server says is about a Pod, which users have never heard of.
            _log.warning("pod refused", instance=f"{instance.namespace}/{instance.name}", error=str(error))
            await self._tell(write, instance, report.MISCONFIGURED, "")
            raise

    async def _judge(self, write: Writer, instance: Instance, pod: Pod, pass_: Pass) -> Report:
        """What the Pod says; one that has failed for good is replaced, when its time has come."""
        said, uid = report_of(pod), instance.metadata.uid
        if said.running:
            self._failures.pop(uid, None)
        if pod.metadata.deleting or pod.status is None or pod.status.phase != FAILED:
            return said
        failures = self._failures.setdefault(uid, _Failures())
        now = asyncio.get_running_loop().time()
        if now < failures.again_at:
            pass_.no_later_than(failures.again_at - now)
            return CRASHED
        failures.again_at = now + min(_FIRST_WAIT * 2**failures.count, _LONGEST_WAIT)
        failures.count += 1
        await write.delete(POD, pod)
        return CRASHED

    async def _relabel(self, write: Writer, instance: Instance, pod: Pod) -> None:
        wanted = labels_of(instance)
        changed: dict[str, str | None] = dict(missing_or_different(wanted, pod.metadata.labels))
        changed |= dict.fromkeys(key for key in COMPUTE_LABELS if key in pod.metadata.labels and key not in wanted)
        if changed and not pod.metadata.deleting:
            await write.patch(POD, pod, {"metadata": {"labels": changed}})

    async def _tear_down(self, plane: Plane, write: Writer, instance: Instance) -> None:
        """The Pod is deleted by name: its owner, which would take it along, waits for this finalizer."""
        if FINALIZER not in instance.metadata.finalizers:
            return
        self._failures.pop(instance.metadata.uid, None)
        pod = plane.informer(POD).get(instance.namespace, instance.name)
        if pod is None:  # as far as we have heard; what still runs must not be let go of
            with suppress(NotFound):
                pod = await plane.client.get(POD, instance.name, instance.namespace)
        if pod is not None and _is_of(pod, instance):
            if not pod.metadata.deleting:
                await write.delete(POD, pod)
            await self._tell(write, instance, report.STOPPING, "")
            return
        await write.remove_finalizers(INSTANCE, instance, FINALIZER)

    async def _tell(self, write: Writer, instance: Instance, said: Report, address: str) -> None:
        """The Pod has one address, which is that of the first interface."""
        others = [""] * (len(instance.spec.network_interfaces) - 1)
        await write.status(INSTANCE, instance, reported(instance, said, [address, *others], self._clock.now()))


def _is_of(pod: Pod, instance: Instance) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == instance.metadata.uid
