"""Simulates Instances, with configurable delays and failures. Entry points: `SimulatedProvider`, `Behaviour`."""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct

from datum_compute.api.addresses import addresses_of
from datum_compute.api.instance import INSTANCE, PROGRAMMED, Instance
from datum_compute.api.instance_types import CATALOG
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SIMULATE, WORKLOAD_NAME
from datum_compute.api.labels import SIMULATED_FINALIZER as FINALIZER
from datum_compute.api.template import Port
from datum_compute.federation.identity import Identity
from datum_compute.federation.lines import Origin, nanoseconds
from datum_compute.federation.lives import Life, Recorder
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.providers import report
from datum_compute.providers.report import Report, status_with, unavailable
from datum_compute.runtime import Pass, Source, itself


class Failure(Enum):
    """Failures to simulate, chosen by annotation `compute.datumapis.com/simulate` or by the tag of an image."""

    IMAGE_UNAVAILABLE = "image-unavailable"
    CRASHING = "crashing"
    MISCONFIGURED = "configuration-error"
    SLOW_STOP = "slow-stop"
    OUT_OF_MEMORY = "out-of-memory"


IMAGE_UNAVAILABLE, CRASHING, MISCONFIGURED, SLOW_STOP, OUT_OF_MEMORY = Failure
_BY_NAME = {failure.value: failure for failure in Failure}


class Behaviour(Struct, frozen=True):
    """Defaults for all Instances. Random choices depend only on the seed and the Instance."""

    start_seconds: float = 0.0
    stop_seconds: float = 0.0
    slow_stop_seconds: float = 60.0
    jitter: float = 0.0  # how much longer a start or stop may take, as a fraction
    crash_rate: float = 0.0  # the fraction of Instances that never start
    seed: int = 0
    wait_for_addresses: bool = False  # whether Instances start only once they have addresses
    fails: Callable[[Instance], Failure | None] = lambda instance: None


class SimulatedProvider:
    """Reports Programmed, Available, addresses and the template hash of Instances, as any provider would.

    The progress of starts and stops is kept in memory only, so they begin anew after a restart of this process.
    Running Instances continue to run. `recorder` is told which of them run, for those who read their logs.
    """

    name = "simulated-provider"

    def __init__(self, behaviour: Behaviour, recorder: Recorder | None = None) -> None:
        self.behaviour = behaviour
        self._recorder = recorder
        self._since: dict[tuple[str, bool], float] = {}  # by uid, and whether it is stopping

    def sources(self) -> Sequence[Source[Any]]:
        instances = Source(CELL, INSTANCE, itself, scope=CELL_NAMESPACES)
        return (instances,) if self._recorder is None else (instances, Source(CELL, NAMESPACE))

    async def reconcile(self, pass_: Pass) -> None:
        write, instance = pass_.write, pass_.get(INSTANCE)
        if instance is None:
            return
        if instance.metadata.deleting:
            if self._recorder is not None:
                self._recorder.end(instance.metadata.uid, nanoseconds(pass_.now()))
            if FINALIZER not in instance.metadata.finalizers:
                return
            if self._elapsed(instance, pass_):
                await write.remove_finalizers(instance, FINALIZER)
                self._forget(instance)
            else:
                await write.status(instance, _status(instance, report.STOPPING, pass_.now()))
            return
        if instance.spec.controller is not None and instance.spec.controller.scheduling_gates:
            return
        if self.behaviour.wait_for_addresses and addresses_of(instance) is None:
            return
        instance = await write.add_finalizer(instance, FINALIZER)
        state = self._report(instance, pass_)
        instance = await write.status(instance, _status(instance, state, pass_.now()))
        if self._recorder is not None and state in (report.RUNNING, report.CRASHING):
            self._record(self._recorder, instance, pass_, crashes=state is report.CRASHING)

    def _record(self, recorder: Recorder, instance: Instance, pass_: Pass, *, crashes: bool) -> None:
        namespace = pass_.informer(NAMESPACE).get("", instance.namespace)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        start = _started(instance)
        if identity is None or start is None:
            return
        for container, image, port in _containers(instance):
            origin = _origin(instance, identity, container)
            recorder.begin(Life(origin, nanoseconds(start), image, port, crashes))

    def _report(self, instance: Instance, pass_: Pass) -> Report:
        match self._failure(instance):
            case Failure.IMAGE_UNAVAILABLE:
                return unavailable(next(iter(_images(instance)), "of the machine"))
            case Failure.CRASHING:
                return report.CRASHING
            case Failure.MISCONFIGURED:
                return report.MISCONFIGURED
            case Failure.OUT_OF_MEMORY:
                type_ = CATALOG.get(instance.spec.runtime.resources.instance_type)
                return report.out_of_memory(type_.mebibytes if type_ is not None else 0)
        return report.RUNNING if _runs(instance) or self._elapsed(instance, pass_) else report.PROVISIONING

    def _failure(self, instance: Instance) -> Failure | None:
        """The failure from the annotation, else from the tag of an image, else by default."""
        failure = _BY_NAME.get(instance.metadata.annotations.get(SIMULATE, "")) or _by_tag(instance)
        if failure is None:
            failure = self.behaviour.fails(instance)
        if failure is None and self._draw(instance, "crash") < self.behaviour.crash_rate:
            return Failure.CRASHING
        return failure

    def _elapsed(self, instance: Instance, pass_: Pass) -> bool:
        """Whether the start or stop is complete; if not, the request runs again when it is."""
        stopping = instance.metadata.deleting
        needed = self._seconds(instance, stopping=stopping)
        if needed <= 0:
            return True
        now = asyncio.get_running_loop().time()
        remaining = self._since.setdefault((instance.metadata.uid, stopping), now) + needed - now
        if remaining > 0:
            pass_.no_later_than(remaining)
        return remaining <= 0

    def _seconds(self, instance: Instance, *, stopping: bool) -> float:
        seconds = self.behaviour.start_seconds
        if stopping:
            slow = self._failure(instance) is Failure.SLOW_STOP
            seconds = self.behaviour.slow_stop_seconds if slow else self.behaviour.stop_seconds
        return seconds * (1 + self.behaviour.jitter * self._draw(instance, "stop" if stopping else "start"))

    def _draw(self, instance: Instance, purpose: str) -> float:
        """A random number from 0 to 1 that does not depend on other Instances."""
        return random.Random(f"{self.behaviour.seed}/{purpose}/{instance.metadata.uid}").random()

    def _forget(self, instance: Instance) -> None:
        for stopping in (False, True):
            self._since.pop((instance.metadata.uid, stopping), None)


def _status(instance: Instance, state: Report, now: datetime) -> Json:
    addresses = [entry[0] if entry else "" for entry in addresses_of(instance) or ()]
    return status_with(instance, state, addresses, now)


def _runs(instance: Instance) -> bool:
    return conditions.is_true(conditions.of(instance), PROGRAMMED)


def _started(instance: Instance) -> datetime | None:
    """Known to every process from the object alone, so that the lines of an Instance stay the same."""
    programmed = conditions.find(conditions.of(instance), PROGRAMMED)
    if programmed is not None and programmed.status == "True":
        return programmed.last_transition_time
    return instance.metadata.creation_timestamp


def _origin(instance: Instance, identity: Identity, container: str) -> Origin:
    labels = instance.metadata.labels
    return Origin(
        project=identity.project,
        namespace=identity.namespace,
        workload=labels.get(WORKLOAD_NAME, ""),
        placement=labels.get(PLACEMENT_NAME, ""),
        city=labels.get(CITY_CODE, ""),
        instance=instance.name,
        generation=instance.metadata.uid,
        container=container,
    )


def _containers(instance: Instance) -> list[tuple[str, str, int]]:
    """The name, image and first port of each container; a virtual machine counts as one without a name."""
    runtime = instance.spec.runtime
    if runtime.sandbox is None:
        ports = runtime.virtual_machine.ports if runtime.virtual_machine is not None else ()
        return [("", "the virtual machine", _first_port(ports))]
    return [(container.name, container.image, _first_port(container.ports)) for container in runtime.sandbox.containers]


def _first_port(ports: Sequence[Port]) -> int:
    return ports[0].port if ports else 0


def _by_tag(instance: Instance) -> Failure | None:
    # Searches the text first: the decoded runtime stays in memory, and hardly any Instance has such a tag.
    text = bytes(instance.spec.runtime_json)
    if not any(f':{name}"'.encode() in text for name in _BY_NAME):
        return None
    return next(filter(None, (_BY_NAME.get(image.rpartition(":")[2]) for image in _images(instance))), None)


def _images(instance: Instance) -> list[str]:
    sandbox = instance.spec.runtime.sandbox
    return [container.image for container in sandbox.containers] if sandbox else []
