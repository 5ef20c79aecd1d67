"""Runs Instances in imagination, with settable delays and failures. Entry point: `SimulatedProvider`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import AVAILABLE, INSTANCE, PROGRAMMED, Instance
from datum_compute.api.labels import SIMULATED_FINALIZER as FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Pass, Request


class Failure(Struct, frozen=True):
    """How an Instance fails to start."""

    reason: str
    message: str


IMAGE_UNAVAILABLE = Failure(reasons.IMAGE_UNAVAILABLE, "The image cannot be pulled")
CRASHING = Failure(reasons.INSTANCE_CRASHING, "The instance keeps failing to start")
MISCONFIGURED = Failure(reasons.CONFIGURATION_ERROR, "The instance was refused because of its configuration")


class Behaviour(Struct, frozen=True):
    start_seconds: float = 0.0
    stop_seconds: float = 0.0
    fails: Callable[[Instance], Failure | None] = lambda instance: None


class SimulatedProvider:
    """Writes what the provider contract allows: Programmed, Available and the hash of the template that runs.

    How long something has been starting or stopping is kept in memory only: after a restart of this process it takes
    its time again. What runs goes on running.
    """

    name = "simulated-provider"

    def __init__(self, fleet: Fleet, clock: Clock, behaviour: Behaviour) -> None:
        self._fleet = fleet
        self._clock = clock
        self.behaviour = behaviour
        self._since: dict[tuple[str, bool], float] = {}  # by uid and whether it stops

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, INSTANCE, itself),)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        instance = plane.informer(INSTANCE).get(request.namespace, request.name)
        if instance is None:
            return
        write = plane.writer(self.name)
        if instance.metadata.deleting:
            if FINALIZER in instance.metadata.finalizers and self._elapsed(instance, pass_):
                await write.remove_finalizers(INSTANCE, instance, FINALIZER)
                self._forget(instance)
            return
        if instance.spec.controller is not None and instance.spec.controller.scheduling_gates:
            return
        instance = await write.add_finalizer(INSTANCE, instance, FINALIZER)
        started = _runs(instance) or self._elapsed(instance, pass_)
        await write.status(INSTANCE, instance, self._report(instance, started))

    def _elapsed(self, instance: Instance, pass_: Pass) -> bool:
        """Whether starting or stopping has taken its time; if not, the pass comes back when it has."""
        stopping = instance.metadata.deleting
        needed = self.behaviour.stop_seconds if stopping else self.behaviour.start_seconds
        if needed <= 0:
            return True
        now = asyncio.get_running_loop().time()
        left = self._since.setdefault((instance.metadata.uid, stopping), now) + needed - now
        if left > 0:
            pass_.no_later_than(left)
        return left <= 0

    def _forget(self, instance: Instance) -> None:
        for stopping in (False, True):
            self._since.pop((instance.metadata.uid, stopping), None)

    def _report(self, instance: Instance, started: bool) -> Json:
        failure = self.behaviour.fails(instance)
        status = plain(instance.status_json)
        before = instance.status.conditions if instance.status else ()
        if failure is not None:
            available, programmed = (
                (failure.reason, failure.message),
                (reasons.PROGRAMMING_IN_PROGRESS, failure.message),
            )
            wanted = self._conditions(instance, "Unknown", available, programmed)
        elif not started:
            message = "The instance is being provisioned"
            wanted = self._conditions(
                instance, "Unknown", (reasons.PROVISIONING, message), (reasons.PROGRAMMING_IN_PROGRESS, message)
            )
        else:
            message = "The instance is available"
            wanted = self._conditions(instance, "True", (reasons.AVAILABLE, message), (reasons.PROGRAMMED, message))
            if instance.spec.controller is not None:
                status["controller"] = {"observedTemplateHash": instance.spec.controller.template_hash}
        return status | {"conditions": conditions.to_json(conditions.updated(before, wanted))}

    def _conditions(
        self, instance: Instance, status: str, available: tuple[str, str], programmed: tuple[str, str]
    ) -> list[Condition]:
        generation, now = instance.metadata.generation, self._clock.now()
        return [
            conditions.condition(AVAILABLE, status, *available, generation=generation, now=now),
            conditions.condition(PROGRAMMED, status, *programmed, generation=generation, now=now),
        ]


def _runs(instance: Instance) -> bool:
    status = instance.status
    return status is not None and status.controller is not None and conditions.is_true(status.conditions, PROGRAMMED)
