"""One cell with its hub and its projects, in a simulation; the test plays quota, Karmada and the provider.

Entry point: `Site`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.names import claim_name
from datum_compute.api.quota import RESOURCE_CLAIM, ResourceClaim
from datum_compute.cell.write_delay import DELAY_SECONDS
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Condition, Json, KubeObject, as_dict
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes

GROUP = "compute.datumapis.com"
FINALIZERS = (f"{GROUP}/instance-controller", f"quota.{GROUP}/claim-cleanup")
NAMESPACE_NAME = "ns-1"
LABELS = {
    f"{GROUP}/workload-uid": "uid-of-hello",
    f"{GROUP}/workload-deployment-uid": "uid-of-web",
    f"{GROUP}/workload-deployment-name": "web",
    f"{GROUP}/workload-name": "hello",
    f"{GROUP}/placement-name": "main",
    f"{GROUP}/city-code": "DFW",
}
SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
    },
    "networkInterfaces": [{"network": {"name": "default"}}],
}
TEMPLATE: Json = {"metadata": {"labels": {"app": "hello"}}, "spec": SPEC}


class _Source(Struct, frozen=True):
    component: str = ""


class Event(KubeObject, frozen=True):
    """An event as these tests read it."""

    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    source: _Source = _Source()


_EVENT = Kind("", "v1", "Event", "events", Event)


class Between(Faults):
    """A fault injector through which the test can also answer a call itself, or act just before it."""

    instead: Callable[[Call], Awaitable[Answer | None]] | None = None

    async def call(self, call: Call) -> Answer:
        answer = await self.instead(call) if self.instead is not None else None
        return answer if answer is not None else await super().call(call)


class Site:
    """`build` returns the controllers; `planes` are served by role, each behind a fault injector."""

    def __init__(
        self,
        simulation: Simulation,
        build: Callable[[Fleet], Sequence[Reconciler]],
        projects: Sequence[str] = ("demo",),
        clock: Clock | None = None,  # of the cell's machine, where it differs
    ) -> None:
        self.simulation = simulation
        self._clock = clock or simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.faults: dict[str, Between] = {}
        served = {"cell": CELL, "hub": HUB} | dict.fromkeys(projects, PROJECT)
        self._servers = {name: InProcess(self.engine.serve(name, role)) for name, role in served.items()}
        self.cell, self.hub = self.engine.client("cell"), self.engine.client("hub")
        self.projects = {name: self.engine.client(name) for name in projects}
        self.project = self.projects[projects[0]]
        self._build = build
        self._running: asyncio.Task[None] | None = None
        self._engine_run: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self.writes = Writes()
        self.fleet = Fleet()
        for name in self._servers:
            self.engage(name)
        self.manager = Manager(self.fleet, self._build(self.fleet), self._clock)

    def engage(self, name: str) -> None:
        """Adds a plane, as discovery does."""
        self.faults[name] = Between(self._servers[name], self.simulation.random)
        self.fleet.add(self.plane(name))

    def plane(self, name: str) -> Plane:
        """A plane to engage, with the faults that it had before."""
        role = {"cell": CELL, "hub": HUB}.get(name, CLAIMS)
        return Plane(name, role, self.faults[name], writes=self.writes, generator=self.simulation.random)

    def leave(self, name: str) -> None:
        """Removes a plane from the fleet."""
        self.fleet.remove(name)

    async def start(self, labels: Mapping[str, str] | None = None) -> None:
        """Creates a namespace per project; those of hub and cell carry `labels`, by default the identity."""
        self._engine_run = asyncio.create_task(self.engine.run())
        for number, (name, project) in enumerate(self.projects.items(), 1):
            labels_ = hub_labels(name, "default") if labels is None else labels
            for client in (self.cell, self.hub):
                await client.create(NAMESPACE, NAMESPACE.body(f"ns-{number}", labels=dict(labels_)))
            await self.simulation.settle()
            try:
                await project.get(NAMESPACE, "default")
            except NotFound:
                await project.create(NAMESPACE, NAMESPACE.body("default"))
        self._running = asyncio.create_task(self.manager.run())
        await self.settle()

    async def restart(self, taken_away: Sequence[str] = ()) -> None:
        """Starts new controllers with empty memories over the same planes, some of which do not answer at first."""
        await self._end()
        self._begin()
        for name in taken_away:
            self.faults[name].take_away()
        self._running = asyncio.create_task(self.manager.run())
        await self.settle()

    async def _end(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.check()

    async def stop(self) -> None:
        await self._end()
        assert self._engine_run is not None
        self._engine_run.cancel()
        await asyncio.gather(self._engine_run, return_exceptions=True)
        self.engine.close()

    async def settle(self) -> None:
        await self.simulation.settle()
        self.check()

    async def advance(self, seconds: float) -> None:
        await self.simulation.advance(seconds)
        self.check()

    def check(self) -> None:
        for controller in self.manager.controllers.values():
            assert controller.crashes == []

    # Deliveries by Karmada

    async def deploy(
        self,
        replicas: int = 1,
        *,
        name: str = "web",
        on_hub: bool = True,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        spec = {
            "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
            "placementName": "main",
            "cityCode": "DFW",
            "template": TEMPLATE,
            "scaleSettings": {"minReplicas": replicas},
        }
        marks = dict(annotations or {})
        if on_hub:
            original = WORKLOAD_DEPLOYMENT.body(name, NAMESPACE_NAME) | {"spec": spec}
            created = await self.hub.create(WORKLOAD_DEPLOYMENT, original)
            marks["resourcetemplate.karmada.io/uid"] = created.metadata.uid
        labels = {"karmada.io/managed": "true"}
        body = WORKLOAD_DEPLOYMENT.body(name, NAMESPACE_NAME, labels=labels, annotations=marks)
        await self.cell.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
        await self.settle()

    async def hub_deployment(self) -> None:
        """Only what the write-back needs on the hub."""
        spec = {
            "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
            "placementName": "main",
            "cityCode": "DFW",
            "template": TEMPLATE,
            "scaleSettings": {"minReplicas": 1},
        }
        await self.hub.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NAMESPACE_NAME) | {"spec": spec})
        await self.settle()

    async def deployment(self, name: str = "web") -> WorkloadDeployment:
        return await self.cell.get(WORKLOAD_DEPLOYMENT, name, NAMESPACE_NAME)

    # Instances created by hand

    async def create(
        self,
        name: str = "web-0",
        gates: Sequence[str] | None = ("Quota",),
        *,
        labels: Mapping[str, str] | None = None,
        spec: Json = SPEC,
    ) -> None:
        labels_ = dict(LABELS | {f"{GROUP}/instance-index": name.rpartition("-")[2]} if labels is None else labels)
        if gates is not None:
            controller = {"templateHash": "0123456789", "schedulingGates": [{"name": gate} for gate in gates]}
            spec = spec | {"controller": controller}
        body = INSTANCE.body(name, NAMESPACE_NAME, labels=labels_, finalizers=list(FINALIZERS))
        await self.cell.create(INSTANCE, body | {"spec": spec})
        await self.advance(DELAY_SECONDS)

    async def instance(self, name: str = "web-0") -> Instance:
        return await self.cell.get(INSTANCE, name, NAMESPACE_NAME)

    async def instances(self) -> list[Instance]:
        return (await self.cell.list(INSTANCE)).items

    async def gates(self, name: str = "web-0") -> list[str]:
        controller = (await self.instance(name)).spec.controller
        return [gate.name for gate in controller.scheduling_gates] if controller else []

    async def condition(self, type_: str, name: str = "web-0") -> tuple[str, str, str]:
        found = condition_of(await self.instance(name), type_)
        assert found is not None, f"{name} has no {type_}"
        return found.status, found.reason, found.message

    async def report(self, name: str = "web-0", **reported: tuple[str, str]) -> None:
        """Sets the provider's conditions: type to status and reason."""
        instance = await self.instance(name)
        before = instance.status.conditions if instance.status else ()
        now = self.simulation.now()
        wanted = [
            conditions.condition(type_, *fields, "as reported", generation=1, now=now)
            for type_, fields in reported.items()
        ]
        status = as_dict(instance.status_json) | {"conditions": conditions.to_json(conditions.updated(before, wanted))}
        if instance.spec.controller is not None:
            status["controller"] = {"observedTemplateHash": instance.spec.controller.template_hash}
        await self.cell.replace_status(INSTANCE, instance, status)
        await self.settle()

    async def runs(self, name: str = "web-0") -> None:
        await self.report(name, Programmed=("True", "Programmed"), Available=("True", "Available"))

    async def delete(self, name: str = "web-0") -> None:
        await self.cell.delete(INSTANCE, name, NAMESPACE_NAME)
        await self.advance(0.1)  # each finalizer has its own controller, and the two may conflict

    async def copies(self) -> list[str]:
        return sorted(copy.name for copy in (await self.hub.list(INSTANCE)).items)

    # The quota system

    def ask_quota(self, name: str = "web-0") -> None:
        """Starts a pass, as a change that concerns quota would."""
        self.manager.controllers["quota-gate"].enqueue(Request("cell", NAMESPACE_NAME, name))

    async def claim(self, name: str = "web-0") -> ResourceClaim:
        return await self.project.get(RESOURCE_CLAIM, claim_name(name), "default")

    async def claims(self) -> list[str]:
        return sorted(claim.name for claim in (await self.project.list(RESOURCE_CLAIM)).items)

    async def decide(self, status: str, reason: str, message: str, name: str = "web-0") -> None:
        claim = await self.claim(name)
        granted = conditions.condition("Granted", status, reason, message, generation=1, now=self.simulation.now())
        await self.project.replace_status(RESOURCE_CLAIM, claim, {"conditions": conditions.to_json([granted])})
        await self.settle()

    async def grant(self, name: str = "web-0") -> None:
        await self.decide("True", "QuotaAvailable", "granted", name)

    async def deny(self, name: str = "web-0") -> None:
        await self.decide("False", "QuotaExceeded", "Requested 1 instance, 0 available.", name)

    # Events

    async def events(self, name: str = "web-0") -> list[tuple[str, str]]:
        """Reason and message of each event in order; repeated events are listed repeatedly."""
        events = [event for event in (await self.cell.list(_EVENT)).items if event.name.startswith(f"{name}.")]
        events.sort(key=lambda event: event.metadata.creation_timestamp or self.simulation.now())
        return [(event.reason, event.message) for event in events for _ in range(event.count)]

    async def event_reasons(self, name: str = "web-0") -> list[str]:
        return [reason for reason, _ in await self.events(name)]


def condition_of(instance: Instance, type_: str) -> Condition | None:
    return conditions.find(instance.status.conditions if instance.status else (), type_)
