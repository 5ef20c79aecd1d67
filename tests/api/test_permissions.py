"""Every call of the controllers is allowed, and everything allowed is called.

Each process runs against a server that refuses whatever the table does not grant to its identity, as a real one would.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from datum_compute.api.accounts import MANAGEMENT, cell_account, username
from datum_compute.api.crd import ROLES
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, MANAGED, ORIGINAL_UID, PROPAGATION_POLICY, RESOURCE_BINDING, WORK
from datum_compute.api.labels import CITY_CODE, SOURCE_CLUSTER, TOPOLOGY_CITY, UPSTREAM_NAMESPACE, WORKLOAD_UID
from datum_compute.api.names import hub_namespace
from datum_compute.api.networking import LOCATION_BINDING, NETWORK, NETWORK_BINDING
from datum_compute.api.permissions import (
    CELL_LEASE,
    MANAGEMENT_LEASE,
    PERMISSIONS,
    WEBHOOK_SECRET,
    On,
    Rule,
    When,
    Who,
)
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.cell.ledger import AbandonedClaim, Ledger
from datum_compute.cell.name_lease import NameLease
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.federation.withdrawals import Note, annotation
from datum_compute.karmada.execution_spaces import ExecutionSpaces
from datum_compute.karmada.propagation import NamespacePropagation, Propagation
from datum_compute.kube.admission import User
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import EVENT, NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.reviews import ACCESS_REVIEW, Caller, authenticate, may, own_name
from datum_compute.kube.transport import Answer, Call, Link, Transport
from datum_compute.local.engine import compute_engine
from datum_compute.operator.certificates import Pair
from datum_compute.operator.config import SelfSigned
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.operator.issuer import Issuer
from datum_compute.operator.logs import FollowedFrontProxy
from datum_compute.platform.addresses import AddressController
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.platform.locations import CellLocations, LocationBindings
from datum_compute.platform.networks import NetworkController
from datum_compute.platform.projects import ProjectController
from datum_compute.platform.quota import QuotaBroker
from datum_compute.providers.pods.policy import NETWORK_POLICY
from datum_compute.providers.pods.provider import PodsProvider
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from datum_compute.telemetry.callers.identity import Rules
from datum_compute.telemetry.callers.project_access import ProjectAccess
from datum_compute.telemetry.cells.hub_instances import HubInstances, HubSites
from datum_compute.telemetry.cells.sites import Door
from datum_compute.telemetry.cells.source import CellSource
from datum_compute.telemetry.exec.pods import PodRunner
from datum_compute.telemetry.query import Query
from datum_compute.telemetry.sources import Reader, Window
from tests import policies
from tests.events import warnings
from tests.karmada_objects import bind, keep, names_of, serve
from tests.operator.registrations import HOST, HOST_NAMESPACE, Host
from tests.providers.site import with_pods
from tests.scenarios.federation import Federation, Project, template
from tests.telemetry.sites import target

ROOT_PLANE, HUB_PLANE, DEMO = "root", "hub", "demo"
CELLS = {"DFW": "cell-dfw", "AMS": "cell-ams"}

PLURALS = {(kind.api_version, kind.name): kind.plural for kinds in ROLES.values() for kind in kinds}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Use(NamedTuple):
    who: Who
    on: On
    verb: str
    group: str
    resource: str  # with its subresource


def uses(who: Who, on: On, call: Call) -> Iterator[Use]:
    """The permissions that a server requires for a call."""
    match call.path.strip("/").split("/"):
        case ["api", _, *rest]:
            group = ""
        case ["apis", group, _, *rest]:
            pass
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    resource, named = rest[0], len(rest) > 1
    reading = "watch" if call.query.get("watch") == "true" else "get" if named else "list"
    below = rest[2:3] if rest[2:3] == ["proxy"] else rest[2:]  # what comes after it is another server's
    yield Use(who, on, VERBS.get(call.method, reading), group, "/".join([resource, *below]))
    for owner in owners(call):
        if owner.get("blockOwnerDeletion"):  # required by the admission plugin OwnerReferencesPermissionEnforcement
            group = owner["apiVersion"].rpartition("/")[0]
            yield Use(who, on, "update", group, f"{PLURALS[owner['apiVersion'], owner['kind']]}/finalizers")


def owners(call: Call) -> list[dict[str, Any]]:
    body = msgspec.json.decode(call.body) if call.body and call.method != "DELETE" else {}
    return list(body.get("metadata", {}).get("ownerReferences", ()))


def granted(rules: Iterable[tuple[Who, On, Rule]]) -> set[Use]:
    return {
        Use(who, on, verb, rule.group, resource)
        for who, on, rule in rules
        for resource in rule.resources
        for verb in rule.verbs
    }


ROWS = [(who, on, rule) for (who, on), rules in PERMISSIONS.items() for rule in rules]
TABLE = granted(ROWS)

# What users look into: served by compute-manager on request, and by separate services upstream.
SERVED = (When.LOGS, When.EXEC, When.FRONT_PROXY)
OF_KARMADA = granted(row for row in ROWS if row[0] is Who.KARMADA)  # which calls for us


class Guarded:
    """A transport that records what an identity uses on a plane, and refuses what it was not granted."""

    def __init__(self, transport: Transport, who: Who, on: On, used: set[Use], refused: set[Use]) -> None:
        self._transport = transport
        self._who, self._on = who, on
        self._used, self._refused = used, refused

    def _check(self, call: Call) -> None:
        required = set(uses(self._who, self._on, call))
        self._used |= required
        if missing := required - TABLE:
            self._refused |= missing
            raise Forbidden(f"{missing} is not in the table")

    async def call(self, call: Call) -> Answer:
        self._check(call)
        return await self._transport.call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self._check(call)
        async with self._transport.stream(call) as lines:
            yield lines


class Named:
    """A server that knows its callers, and enforces the policies."""

    def __init__(self, server: PlaneServer, user: str) -> None:
        self._server = server
        self._user = User(user, ("system:authenticated",))

    async def answer(self, call: Call) -> Answer:
        return await self._server.answer(call, self._user)

    def watch(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._server.watch(call)


ON = {ROOT: On.ROOT, PROJECT: On.PROJECT, HUB: On.HUB, CELL: On.CELL, CLAIMS: On.PROJECT}


class GuardedFederation:
    """Management, cells and built-ins as separate processes; the substitutes for Karmada and Milo are not checked."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engine = compute_engine(
            clock=simulation, uids=CountedUids(), generator=simulation.random, admit=policies.admit
        )
        self.used: set[Use] = set()
        self.refused: set[Use] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._managers: list[Manager] = []

    @property
    def hub(self) -> Client:
        return self.engine.client(HUB_PLANE)

    @property
    def cells(self) -> dict[str, Client]:
        return {city: self.engine.client(cell) for city, cell in CELLS.items()}

    def project_client(self, project: str) -> Client:
        return self.engine.client(project)

    def user_client(self, project: str) -> Client:
        transport = InProcess(Named(self.engine.serve(project, PROJECT), "ada"))
        return Client(project, Guarded(transport, Who.USER, On.PROJECT, self.used, self.refused))

    async def until(self, condition: Any, within: float, what: str) -> None:
        await self.simulation.until(condition, within, what)

    def _plane(self, name: str, role: str, who: Who | None, cell: str = "") -> Plane:
        server = self.engine.serve(name, PROJECT if role == CLAIMS else role)
        transport: Transport = InProcess(server)
        if who is not None:
            account = cell_account(cell) if cell else MANAGEMENT
            named = InProcess(Named(server, username(account)))
            transport = Guarded(named, who, ON[role], self.used, self.refused)
        return Plane(name, role, transport, writes=Writes(), generator=self.simulation.random)

    def _start(self, fleet: Fleet, reconcilers: list[Reconciler]) -> None:
        self._managers.append(Manager(fleet, reconcilers, self.simulation))
        self._tasks.append(asyncio.create_task(self._managers[-1].run()))

    async def start(self) -> None:
        cells = list(CELLS.values())
        milo, catalog, karmada, management = Fleet(), Fleet(), Fleet(), Fleet()
        milo.add(self._plane(ROOT_PLANE, ROOT, None))
        catalog.add(self._plane(ROOT_PLANE, ROOT, None))
        for name, role in {HUB_PLANE: HUB, **dict.fromkeys(cells, CELL)}.items():
            karmada.add(self._plane(name, role, None))
        for name, role in {ROOT_PLANE: ROOT, HUB_PLANE: HUB}.items():
            management.add(self._plane(name, role, Who.MANAGEMENT))
        self._tasks.append(asyncio.create_task(self.engine.run()))
        self._start(milo, [ProjectController(self._open)])
        has_deleted = self.engine.has_deleted
        self._start(
            karmada,
            [
                NamespacePropagation(karmada, HUB_PLANE, has_deleted),
                Propagation(karmada, HUB_PLANE, has_deleted),
                ExecutionSpaces(),
            ],
        )
        self.end_karmada = self._tasks[-1].cancel
        self._start(
            catalog,
            [
                ProjectDiscovery(catalog, self._in_project(Who.MANAGEMENT)),
                EntitlementController(cities=["DFW"], limits=DEFAULT_LIMITS),
                QuotaBroker(),
            ],
        )
        self._start(
            management,
            [
                ProjectDiscovery(management, self._in_project(Who.MANAGEMENT)),
                LocationBindings(management),
                *management_controllers(management, HUB_PLANE, networking=True),
            ],
        )
        for name in cells:
            await self.engine.client(name).create(NAMESPACE, NAMESPACE.body("kube-system"))
            self._start_cell(name)
        for city, name in CELLS.items():
            await self.hub.create(CLUSTER, CLUSTER.body(name, labels={TOPOLOGY_CITY: city}))
        await self.engine.client(ROOT_PLANE).create(PROJECT_KIND, PROJECT_KIND.body(DEMO) | {"spec": {}})
        await self.until(self._is_open, 30, "the project is open")
        body = SERVICE_ENTITLEMENT.body(SERVICE_OBJECT) | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}}
        await self.project_client(DEMO).create(SERVICE_ENTITLEMENT, body)
        network = NETWORK.body("default", "default") | {"spec": {"ipam": {"mode": "Auto"}}}
        await self.project_client(DEMO).create(NETWORK, network)
        await self.until(self._offers, 30, "the project has cities")

    def _start_cell(self, name: str) -> None:
        fleet, clock = Fleet(), self.simulation
        for plane, role in {name: CELL, HUB_PLANE: HUB}.items():
            fleet.add(self._plane(plane, role, Who.CELL, name))
        self._start(
            fleet,
            [
                ClaimDiscovery(fleet, lambda project: self._plane(project, CLAIMS, Who.CELL, name)),
                NameLease(fleet, clock, name),
                *cell_controllers(fleet, clock, lambda plane: plane.name, networking=True),
                *(CellLocations(), NetworkController(), AddressController()),
                SimulatedProvider(Behaviour(start_seconds=0.3, stop_seconds=0.2)),
            ],
        )

    def _in_project(self, who: Who) -> Any:
        return lambda project: self._plane(project, PROJECT, who)

    def _open(self, name: str) -> Client:
        self.engine.serve(name, PROJECT)
        return self.engine.client(name)

    async def _is_open(self) -> bool:
        return self.engine.plane(DEMO) is not None

    async def _offers(self) -> bool:
        return len((await self.project_client(DEMO).list(LOCATION_BINDING)).items) == len(CELLS)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert [
            crash
            for manager in self._managers
            for controller in manager.controllers.values()
            for crash in controller.crashes
        ] == []


async def whole_life(engine: GuardedFederation) -> None:
    """Everything the controllers do: create, roll out, scale, move, repair changes by others, delete."""
    federation = Federation(engine)
    project = federation.project(DEMO)
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", 2)
    await spoil(engine, await project.hub_namespace())
    await project.place("web", ["DFW", "AMS"], 1)
    await project.until_ready("web", 2)
    await project.place("web", ["AMS"], 1)
    await project.until_ready("web", 1)
    await project.deploy("bad", ["AMS"], image="registry.example/hello:crashing")
    namespace = await project.hub_namespace()

    async def is_reported() -> bool:
        name = "bad-main-ams-0"
        return bool(await warnings(project.client, name) and await warnings(engine.cells["AMS"], name, namespace))

    await federation.until(is_reported, "cell and project have an event about an instance that crashes")
    for name in ("web", "bad"):
        await project.delete(name)
        await project.until_gone(name)

    async def nothing_is_left() -> bool:
        claims = (await project.client.list(RESOURCE_CLAIM)).items
        return not claims and not [
            instance for cell in engine.cells.values() for instance in (await cell.list(INSTANCE)).items
        ]

    await federation.until(nothing_is_left, "instances and claims are gone")
    await leave_behind(engine, project)


async def leave_behind(engine: GuardedFederation, project: Project) -> None:
    """Waits until leftovers of Karmada in a cell and on the hub are deleted."""
    cell, namespace = engine.cells["AMS"], await project.hub_namespace()
    engine.end_karmada()
    await serve(engine.hub)
    await bind(engine.hub, "again-main-ams", namespace, "uid-of-an-earlier-one")
    await project.deploy("again", ["AMS"])
    annotations = await keep(engine.hub, "forgotten", namespace) | {ORIGINAL_UID: "uid-of-the-original"}
    noted = {"metadata": {"annotations": annotation([Note("forgotten", "uid-of-the-original")])}}
    await engine.hub.merge_patch(NAMESPACE, namespace, "", noted)
    spec = {
        "workloadRef": {"name": "web", "uid": "uid-of-web"},
        "placementName": "main",
        "cityCode": "AMS",
        "template": template(),
        "scaleSettings": {"minReplicas": 1},
    }
    body = WORKLOAD_DEPLOYMENT.body("forgotten", namespace, labels={MANAGED: "true"}, annotations=annotations)
    await cell.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})

    for name, notes in {"ns-gone": [Note("web", "1")], "ns-unknown": []}.items():
        labels, marks = hub_labels(DEMO, "gone"), {key: value for key, value in annotation(notes).items() if value}
        await engine.hub.create(NAMESPACE, NAMESPACE.body(name, labels=labels, annotations=marks))

    async def removed() -> bool:
        left = (await names_of(cell, WORKLOAD_DEPLOYMENT), await names_of(engine.hub, WORK))
        namespaces = [name for name in await names_of(engine.hub, NAMESPACE) if name in ("ns-gone", "ns-unknown")]
        return left == ([], []) and not await names_of(engine.hub, RESOURCE_BINDING) and namespaces == ["ns-unknown"]

    await engine.until(removed, 1500, "what was forgotten is removed")
    await engine.hub.create(NAMESPACE, NAMESPACE.body("default"))
    await engine.hub.create(CLUSTER, CLUSTER.body("spare", labels={TOPOLOGY_CITY: "DFW"}))

    async def is_reported() -> bool:
        return bool((await engine.hub.list(EVENT)).items)

    await engine.until(is_reported, 60, "the hub has an event about a cluster on standby")


async def spoil(engine: GuardedFederation, namespace: str) -> None:
    """Waits until changes by others are repaired."""
    hub, project, cell = engine.hub, engine.project_client(DEMO), engine.cells["DFW"]

    async def is_projected() -> bool:
        return len((await hub.list(INSTANCE)).items) == len((await project.list(INSTANCE)).items) == 2

    await engine.until(is_projected, 30, "the cell has its name, and its instances are projected")
    spoiled = {"metadata": {"labels": {WORKLOAD_UID: "forged", CITY_CODE: "forged"}}}
    await hub.merge_patch(NAMESPACE, namespace, "", {"metadata": {"labels": {UPSTREAM_NAMESPACE: None}}})
    by_name = {"placement": {"clusterAffinity": {"clusterNames": ["cell-dfw"]}}}
    await hub.merge_patch(PROPAGATION_POLICY, "city-dfw", namespace, {"spec": by_name})
    await hub.merge_patch(INSTANCE, "web-main-dfw-0", namespace, spoiled)
    await project.merge_patch(INSTANCE, "web-main-dfw-0", "default", spoiled)
    await cell.merge_patch(INSTANCE, "web-main-dfw-0", namespace, spoiled)
    other = {"spec": {"network": {"name": "forged"}}}
    await cell.merge_patch(NETWORK_BINDING, "web-main-dfw-net-0", namespace, other)

    async def mended() -> bool:
        labels = [
            (await client.get(INSTANCE, "web-main-dfw-0", place)).metadata.labels
            for client, place in ((hub, namespace), (project, "default"), (cell, namespace))
        ]
        home = (await hub.get(NAMESPACE, namespace)).metadata.labels
        policy = await hub.get(PROPAGATION_POLICY, "city-dfw", namespace)
        binding = await cell.get(NETWORK_BINDING, "web-main-dfw-net-0", namespace)
        mended = UPSTREAM_NAMESPACE in home and b"clusterNames" not in bytes(policy.spec_json)
        mended = mended and binding.spec.network.name == "default"
        return mended and all(entry[CITY_CODE] == "DFW" for entry in labels)

    await engine.until(mended, 60, "what was spoiled is put right")
    ghost = INSTANCE.body("ghost-0", namespace, labels={SOURCE_CLUSTER: "former", CITY_CODE: "DFW"})
    await hub.create(INSTANCE, ghost | {"spec": template()["spec"]})
    former = {"metadata": {"labels": {SOURCE_CLUSTER: "former"}}}
    await project.merge_patch(RESOURCE_CLAIM, "instance-web-main-dfw-0", "default", former)

    async def handed_over() -> bool:
        claim = await project.get(RESOURCE_CLAIM, "instance-web-main-dfw-0", "default")
        is_left = any(copy.name == "ghost-0" for copy in (await hub.list(INSTANCE)).items)
        return claim.metadata.labels[SOURCE_CLUSTER] == "cell-dfw" and not is_left

    await engine.until(handed_over, 700, "copies and claims of a cell that is gone are handed over")


async def lived(simulation: Simulation) -> GuardedFederation:
    engine = GuardedFederation(simulation)
    await engine.start()
    try:
        await whole_life(engine)
    finally:
        assert engine.refused == set()
    await engine.stop()
    return engine


async def in_a_pod(simulation: Simulation) -> set[Use]:
    """What the pods provider does for an Instance that starts, gets another label and policy, and is deleted."""
    engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
    used: set[Use] = set()
    refused: set[Use] = set()
    with with_pods():
        transport = Guarded(InProcess(engine.serve("cell", CELL)), Who.CELL, On.CELL, used, refused)
    fleet = Fleet()
    fleet.add(Plane("cell", CELL, transport, writes=Writes(), generator=simulation.random))
    manager = Manager(fleet, [PodsProvider()], simulation)
    tasks = [asyncio.create_task(engine.run()), asyncio.create_task(manager.run())]
    client = engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("ns"))
    spec = template()["spec"] | {"networkInterfaces": [{"network": {"name": "default"}, "networkPolicy": {}}]}
    await client.create(INSTANCE, INSTANCE.body("web-0", "ns") | {"spec": spec})
    await simulation.advance(1)
    await client.merge_patch(NETWORK_POLICY, "web-0", "ns", {"spec": {"ingress": [{}]}})
    await client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"labels": {CITY_CODE: "DFW"}}})
    await simulation.advance(1)
    await client.delete(INSTANCE, "web-0", "ns")
    await simulation.advance(1)
    assert (await client.list(INSTANCE)).items == []
    assert refused == set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used


class Reviewer:
    """Authenticates everybody and allows everything."""

    async def call(self, call: Call) -> Answer:
        user = {"username": "ada"}
        status: Json = {"authenticated": True, "user": user, "userInfo": user}
        if call.path == ACCESS_REVIEW.path():
            status = {"allowed": True}
        return Answer(201, msgspec.json.encode({"metadata": {}, "status": status}))

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("reviews are not watched")


async def around_the_controllers(simulation: Simulation) -> set[Use]:
    """What a process does besides: leader election, metrics, admission and its certificate, internal discovery of
    projects, and remembering claims that it could not delete."""
    engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
    used: set[Use] = set()
    refused: set[Use] = set()
    for name, role, who, on in ((ROOT_PLANE, ROOT, Who.MANAGEMENT, On.HOST), ("cell", CELL, Who.CELL, On.CELL)):
        host = Client(name, Guarded(InProcess(engine.serve(name, role)), who, on, used, refused))
        await engine.client(name).create(NAMESPACE, NAMESPACE.body("compute-system"))
        election = Election(host, "compute-system", "lease", "one", simulation, simulation.random)
        await election.acquire()
        await election.release()
        reviewer = Client(name, Guarded(Reviewer(), who, on, used, refused))
        caller = await authenticate(reviewer, "token")
        assert caller is not None
        assert await may(reviewer, caller, {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}})
    with_webhooks = Host(engine)
    await with_webhooks.prepare()
    await with_webhooks.register()
    host = Client(HOST, Guarded(with_webhooks.transport, Who.MANAGEMENT, On.HOST, used, refused))
    for hosts in ((), ("compute.example",)):  # the second needs another certificate
        await Issuer(host, HOST_NAMESPACE, SelfSigned(hosts=hosts), simulation).read()
    ledger, claim = Ledger("compute-system", "tester"), AbandonedClaim(DEMO, "default", "ns", "web-0")
    guarded = Guarded(InProcess(engine.serve("cell", CELL)), Who.CELL, On.CELL, used, refused)
    cell = Plane("cell", CELL, guarded, writes=Writes(), generator=simulation.random)
    await ledger.add(cell, claim)
    await ledger.remove(cell, [claim])
    project = Client(DEMO, Guarded(Reviewer(), Who.MANAGEMENT, On.PROJECT, used, refused))
    assert await may(project, Caller("ada"), {"resourceAttributes": {"resource": "networks", "verb": "use"}})
    assert await own_name(project) == "ada"
    fleet = Fleet()
    root = Guarded(InProcess(engine.serve(ROOT_PLANE, ROOT)), Who.MANAGEMENT, On.ROOT, used, refused)
    fleet.add(Plane(ROOT_PLANE, ROOT, root, writes=Writes(), generator=simulation.random))

    def unreachable(project: str) -> Plane:
        raise AssertionError("there are no projects")

    manager = Manager(fleet, [ProjectDiscovery(fleet, unreachable, internal=True)], simulation)
    running = asyncio.create_task(manager.run())
    await simulation.settle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert refused == set()
    return used


class Site(Guarded):
    """A door to the site of an Instance without a line."""

    @asynccontextmanager
    async def pieces(self, call: Call, silence: float | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        self._check(call)

        async def nothing() -> AsyncIterator[bytes]:
            lines: list[bytes] = []
            for line in lines:
                yield line

        yield nothing()

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        self._check(Call("GET", path))
        if self._on is On.CELL:
            self._check(Call("POST", path))  # since Kubernetes 1.35 the API server asks for both
        raise Unavailable("nothing runs here")


async def serving_logs(simulation: Simulation) -> set[Use]:
    """What a process does to serve logs and run commands: recognize the front proxy and callers, and read and run at
    sites, by both ways."""
    engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
    used: set[Use] = set()
    refused: set[Use] = set()

    async def pair() -> Pair:
        return Pair(b"", b"")

    for on in (On.ROOT, On.HOST):
        root = InProcess(engine.serve(on.value, ROOT))
        await FollowedFrontProxy(
            lambda root=root, on=on: Client(on.value, Guarded(root, Who.MANAGEMENT, on, used, refused))  # type: ignore[misc]
        ).beside(pair)()
    project = Client(DEMO, Guarded(Reviewer(), Who.MANAGEMENT, On.PROJECT, used, refused))
    projects = SimpleNamespace(client=lambda name: project, namespaces=lambda name: ["default"])
    access = ProjectAccess(Rules(passed_on=False, by_path=True), projects, simulation)
    reader = await access(DEMO, {"path": "/", "headers": [(b"authorization", b"Bearer token")]})
    assert reader == Reader(DEMO, frozenset({"default"}))
    hub, cell = (Site(Reviewer(), Who.MANAGEMENT, on, used, refused) for on in (On.HUB, On.CELL))
    fleet = Fleet()
    fleet.add(
        Plane(HUB_PLANE, HUB, InProcess(engine.serve(HUB_PLANE, HUB)), writes=Writes(), generator=simulation.random)
    )
    await engine.client(HUB_PLANE).create(CLUSTER, CLUSTER.body("dfw"))
    HubInstances(fleet, HUB_PLANE)
    running = asyncio.create_task(fleet.run())
    await simulation.settle()
    instances: Any = SimpleNamespace(targets=lambda reader: [target()])

    async def read(own: Door | None) -> None:
        sites = HubSites(fleet, HUB_PLANE, lambda: hub, lambda name: own)
        source = CellSource(instances, sites, simulation)
        assert await source.read(reader, Query(()), Window(0, 1, 1)) == []
        with suppress(Unstartable):
            await PodRunner(sites).run("dfw", "default", target().instance, "", Command(("sh",), "app"))

    await read(None)
    await read(cell)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert refused == set()
    return used


@pytest.fixture(scope="module")
def used() -> set[Use]:
    """Servers refuse whatever is not in the table."""
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        controllers = runner.run(lived(loop)).used | runner.run(in_a_pod(loop))
        return controllers | runner.run(around_the_controllers(loop)) | runner.run(serving_logs(loop))


def test_the_roles_allow_every_call_of_the_controllers(used: set[Use]) -> None:
    assert used - TABLE == set()


def test_the_controllers_use_everything_that_the_roles_allow(used: set[Use]) -> None:
    """Except for users and viewers, who are not programs. The verbs for reading count as one."""
    assert {
        use
        for use in TABLE - used
        if use not in OF_KARMADA
        if use.who not in (Who.USER, Who.VIEWER)
        and not (use.verb == "get" and use._replace(verb="list") in TABLE & used)
        if (use.resource, use.verb) != ("events", "patch")  # needed only when an event repeats
    } == set()
    assert {use.resource for use in used if use.who is Who.USER} == {"workloads"}
    assert {use.verb for use in used if use.resource == "resourceclaims" and use.who is Who.CELL} == {
        *("get", "list", "watch", "create", "delete")
    }


def test_optional_features_use_everything_that_their_roles_allow(used: set[Use]) -> None:
    """So that no rule is optional only because nothing uses it. Except for users, who are not programs."""
    of_programs = set(When) - {When.CITY_RESTART}
    assert {rule.when for who, on, rule in ROWS if granted([(who, on, rule)]) & used} == of_programs


READ = "get list watch"
WRITE = f"{READ} create update patch delete"
STATUS = "get update patch"

# The permissions that upstream grants: identity and plane, group, then resource and verbs.
UPSTREAM: list[tuple[Who, On, str, dict[str, str]]] = [
    (Who.MANAGEMENT, On.HOST, "coordination.k8s.io", {"leases": "get create update"}),
    (Who.MANAGEMENT, On.HOST, "authentication.k8s.io", {"tokenreviews": "create"}),
    (Who.MANAGEMENT, On.HOST, "authorization.k8s.io", {"subjectaccessreviews": "create"}),
    (Who.MANAGEMENT, On.ROOT, "resourcemanager.miloapis.com", {"projects": READ}),
    (Who.MANAGEMENT, On.ROOT, "infrastructure.miloapis.com", {"projectcontrolplanes": READ}),
    (Who.MANAGEMENT, On.PROJECT, "", {"namespaces": READ, "events": "create patch"}),
    (
        Who.MANAGEMENT,
        On.PROJECT,
        "compute.datumapis.com",
        {
            "workloads": f"{READ} update patch",
            "workloads/status": STATUS,
            "workloads/finalizers": "update",
            "workloaddeployments": WRITE,
            "workloaddeployments/status": STATUS,
            "workloaddeployments/finalizers": "update",
            "instances": WRITE,
            "instances/status": STATUS,
        },
    ),
    (
        Who.MANAGEMENT,
        On.PROJECT,
        "networking.datumapis.com",
        {"networks": READ, "locationbindings": READ, "locations": READ},
    ),
    (Who.MANAGEMENT, On.PROJECT, "authorization.k8s.io", {"subjectaccessreviews": "create"}),
    (Who.MANAGEMENT, On.HUB, "", {"namespaces": f"{READ} create update patch"}),
    (Who.MANAGEMENT, On.HUB, "compute.datumapis.com", {"workloaddeployments": WRITE, "instances": READ}),
    (Who.MANAGEMENT, On.HUB, "policy.karmada.io", {"propagationpolicies": WRITE}),
    (Who.MANAGEMENT, On.HUB, "cluster.karmada.io", {"clusters": READ}),
    (
        Who.CELL,
        On.CELL,
        "",
        {"namespaces": READ, "events": "create patch", "pods": f"{READ} create patch delete"},
    ),
    (
        Who.CELL,
        On.CELL,
        "compute.datumapis.com",
        {
            "workloaddeployments": f"{READ} update patch",
            "workloaddeployments/status": STATUS,
            "workloaddeployments/finalizers": "update",
            "instances": WRITE,
            "instances/status": STATUS,
            "instances/finalizers": "update",
        },
    ),
    (
        Who.CELL,
        On.CELL,
        "networking.datumapis.com",
        {
            "locations": READ,
            "networkcontexts": READ,
            "subnets": READ,
            "networkbindings": WRITE,
            "subnetclaims": WRITE,
        },
    ),
    (Who.CELL, On.CELL, "coordination.k8s.io", {"leases": "get create update"}),
    (Who.CELL, On.HUB, "", {"namespaces": READ}),
    (
        Who.CELL,
        On.HUB,
        "compute.datumapis.com",
        {
            "workloaddeployments": READ,
            "workloaddeployments/finalizers": "update",
            "instances": WRITE,
            "instances/status": STATUS,
        },
    ),
    (Who.CELL, On.PROJECT, "quota.miloapis.com", {"resourceclaims": f"{READ} create delete"}),
]

# What the commands need, and what users do to the same objects directly.
COMMANDS: list[tuple[str, dict[str, str]]] = [
    (
        "compute.datumapis.com",
        {
            "workloads": WRITE,  # deploy, destroy, scale, undo, restart; a direct merge patch
            "workloaddeployments": f"{READ} update patch",  # status, rollout status, restart --city
            "instances": READ,  # instances, and why a city waits
            "instances/log": "get",  # logs
            "instances/exec": "create",  # exec
        },
    ),
    ("o11y.miloapis.com", {"logs/api": "get"}),  # logs behind an aggregator
    ("run.compute.datumapis.com", {"instances/exec": "get"}),  # exec behind an aggregator
    ("", {"configmaps": "get create update delete", "events": READ}),  # history, which destroy deletes; describe
    ("networking.datumapis.com", {"networks": "get create use", "locationbindings": READ, "locations": READ}),
    ("quota.miloapis.com", dict.fromkeys(("allowancebuckets", "resourceregistrations", "resourceclaims"), READ)),
    ("services.miloapis.com", {"serviceentitlements": f"{READ} create"}),  # the gate, and access request
]


def upstream() -> set[Use]:
    return {
        Use(who, on, verb, group, resource)
        for who, on, group, resources in UPSTREAM
        for resource, verbs in resources.items()
        for verb in verbs.split()
    }


OWNED = {("networkbindings", "delete"), ("subnetclaims", "delete"), ("subnetclaims", "patch")}


def test_the_roles_allow_what_upstream_allows_minus_what_is_not_needed() -> None:
    built_in = (When.ENTITLEMENT, When.QUOTA, When.NETWORK, When.LOCATIONS)
    ours = granted(
        row for row in ROWS if row[0] not in (Who.USER, Who.VIEWER) and row[2].when not in (*built_in, *SERVED)
    )
    # A cell serves its metrics as securely as management does.
    reviews = {("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")}
    # Nobody else would delete what Karmada leaves behind after an outage.
    forgotten = {
        Use(Who.CELL, On.CELL, "delete", "compute.datumapis.com", "workloaddeployments"),
        *(Use(Who.CELL, On.HUB, verb, "work.karmada.io", "works") for verb in ("get", "delete")),
        *(
            Use(Who.MANAGEMENT, On.HUB, verb, "work.karmada.io", "resourcebindings")
            for verb in ("get", "list", "delete")
        ),
        # Nor what deleted project namespaces leave on the hub; and leftovers that are held are reported.
        Use(Who.MANAGEMENT, On.HUB, "delete", "", "namespaces"),
        *(Use(Who.MANAGEMENT, On.HUB, verb, "", "events") for verb in ("create", "patch")),
        Use(Who.MANAGEMENT, On.PROJECT, "patch", "", "namespaces"),
    }
    # Two cells of the same name would undo each other's copies.
    names = {Use(Who.CELL, On.HUB, verb, "coordination.k8s.io", "leases") for verb in ("get", "create", "update")}
    # Nobody else would enforce the networkPolicy of a workload.
    names |= {
        Use(Who.CELL, On.CELL, verb, "networking.k8s.io", "networkpolicies")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    }
    # The webhook must recognize the writes of compute itself.
    itself = {Use(Who.MANAGEMENT, On.PROJECT, "create", "authentication.k8s.io", "selfsubjectreviews")}
    # Upstream needs cert-manager.
    registrations = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    certificate = {Use(Who.MANAGEMENT, On.HOST, verb, "", "secrets") for verb in ("get", "create", "patch")} | {
        Use(Who.MANAGEMENT, On.HOST, verb, "admissionregistration.k8s.io", resource)
        for verb in ("get", "patch")
        for resource in registrations
    }
    # Claims that a project does not allow to delete have to be remembered.
    ledger = {Use(Who.CELL, On.CELL, verb, "", "configmaps") for verb in ("get", "create", "patch")}
    # Nobody else would report which cells cannot serve their city.
    itself |= {Use(Who.MANAGEMENT, On.HUB, verb, "", "events") for verb in ("create", "patch")}
    # Claims of a cell that is gone would never be released.
    itself |= {
        Use(Who.MANAGEMENT, On.PROJECT, verb, "quota.miloapis.com", "resourceclaims") for verb in ("list", "patch")
    }
    itself.add(Use(Who.MANAGEMENT, On.HUB, "get", "coordination.k8s.io", "leases"))
    itself.add(Use(Who.MANAGEMENT, On.HUB, "patch", "compute.datumapis.com", "instances"))
    more = (
        forgotten
        | names
        | itself
        | certificate
        | ledger
        | {*(Use(Who.CELL, On.CELL, "create", *review) for review in reviews)}
    )
    assert ours - upstream() == more
    for use in upstream() - ours:
        replaced = use.verb == "update" and "/" not in use.resource  # objects are patched, never replaced
        status = use.verb in ("get", "patch") and use.resource.endswith("/status")  # a status is always replaced
        # A projection's owner reference to its deployment does not block the deployment's deletion.
        plain_owner = (use.who, use.on, use.resource) == (Who.MANAGEMENT, On.PROJECT, "workloaddeployments/finalizers")
        # These are garbage-collected with their owners, and a claim never changes.
        owned = (use.resource, use.verb) in OWNED
        assert replaced or status or plain_owner or owned, use


def test_a_user_may_do_exactly_what_the_commands_need_and_only_in_projects() -> None:
    assert {use for use in TABLE if use.who is Who.USER} == {
        Use(Who.USER, On.PROJECT, verb, group, resource)
        for group, resources in COMMANDS
        for resource, verbs in resources.items()
        for verb in verbs.split()
    }


def test_writing_deployments_needs_a_separate_user_role() -> None:
    writes = {
        (rule.when, verb)
        for who, _, rule in ROWS
        for verb in rule.verbs
        if who is Who.USER and "workloaddeployments" in rule.resources and verb not in ("get", "list", "watch")
    }
    assert writes == {(When.CITY_RESTART, "update"), (When.CITY_RESTART, "patch")}


@pytest.mark.parametrize(("who", "on"), [(Who.MANAGEMENT, On.PROJECT), (Who.CELL, On.CELL)])
def test_events_may_be_created_and_patched(who: Who, on: On) -> None:
    rules = [rule for rule in PERMISSIONS[who, on] if "events" in rule.resources]
    assert {verb for rule in rules for verb in rule.verbs} == {"create", "patch"}
    assert {rule.when for rule in rules} == {When.ALWAYS}


@pytest.mark.parametrize("who", [Who.MANAGEMENT, Who.CELL])
def test_hub_namespaces_may_be_watched(who: Who) -> None:
    assert Use(who, On.HUB, "watch", "", "namespaces") in TABLE


def test_a_cell_changes_nothing_on_the_hub_but_its_copies() -> None:
    writes = {(use.resource, use.verb) for use in TABLE if (use.who, use.on) == (Who.CELL, On.HUB)}
    changing = {resource for resource, verb in writes if verb not in ("get", "list", "watch")}
    # Works belong to Karmada, and are deleted only in the namespace of the cell, which also has the Lease of its name.
    assert changing == {"instances", "instances/status", "workloaddeployments/finalizers", "works", "leases"}
    for resource in ("works", "leases"):
        assert [rule.in_namespace for rule in PERMISSIONS[Who.CELL, On.HUB] if resource in rule.resources] == [True]


def test_nobody_may_do_everything_or_read_secrets() -> None:
    """Except for the Secret of the webhook's certificate, which management creates itself."""
    for who, on, rule in ROWS:
        assert "*" not in (*rule.resources, *rule.verbs, rule.group)
        assert not {"clusterroles", "roles"} & set(rule.resources)
        if "secrets" in rule.resources:
            assert (who, on, rule.when, rule.in_namespace) == (Who.MANAGEMENT, On.HOST, When.WEBHOOK_CERTIFICATE, True)
            assert rule.names == (WEBHOOK_SECRET,) or rule.verbs == ("create",)
        is_own = (who, on) == (Who.CELL, On.CELL) and rule.in_namespace
        is_own |= rule.when is When.FRONT_PROXY and rule.in_namespace and bool(rule.names)
        assert "configmaps" not in rule.resources or who is Who.USER or is_own


def test_viewers_read_neither_secrets_nor_works_and_change_nothing() -> None:
    rules = [rule for who, _, rule in ROWS if who is Who.VIEWER]
    assert {verb for rule in rules for verb in rule.verbs} == {"get", "list"}
    assert not {"secrets", "configmaps", "works", "pods"} & {resource for rule in rules for resource in rule.resources}


def test_a_leader_may_use_only_its_own_lease() -> None:
    """Except for its creation, which a role cannot limit by name."""
    election = {(who, rule.verbs, rule.names) for who, _, rule in ROWS if rule.when is When.LEADER_ELECTION}
    assert election == {
        (Who.MANAGEMENT, ("get", "update"), (MANAGEMENT_LEASE,)),
        (Who.MANAGEMENT, ("create",), ()),
        (Who.CELL, ("get", "update"), (CELL_LEASE,)),
        (Who.CELL, ("create",), ()),
    }


def test_resources_are_spelled_as_they_are_served() -> None:
    known: dict[str, set[str]] = {}
    for kind in (kind for kinds in ROLES.values() for kind in kinds):
        known.setdefault(kind.group, set()).add(kind.plural)
    for _, _, rule in ROWS:
        if rule.group in known:
            assert {resource.partition("/")[0] for resource in rule.resources} <= known[rule.group]


def test_purposes_are_short_and_no_rule_is_duplicated() -> None:
    assert all(0 < len(rule.why) <= 50 and not rule.why.endswith(".") for _, _, rule in ROWS)
    places = [
        (who, on, rule.when, rule.group, rule.names, resource) for who, on, rule in ROWS for resource in rule.resources
    ]
    assert len(places) == len(set(places))


def test_verbs_and_resources_are_derived_from_calls_as_servers_do() -> None:
    def of(method: str, path: str, query: dict[str, str] | None = None, body: bytes = b"") -> list[tuple[str, str]]:
        call = Call(method, path, query or {}, body)
        return [(use.verb, use.resource) for use in uses(Who.CELL, On.HUB, call)]

    namespace = hub_namespace("1")
    assert of("GET", NAMESPACE.path()) == [("list", "namespaces")]
    assert of("GET", NAMESPACE.path(name="a")) == [("get", "namespaces")]
    assert of("GET", INSTANCE.path(), {"watch": "true"}) == [("watch", "instances")]
    assert of("PUT", INSTANCE.path(namespace, "a", "status")) == [("update", "instances/status")]
    owner = {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": "WorkloadDeployment", "blockOwnerDeletion": True}
    body = msgspec.json.encode({"metadata": {"ownerReferences": [owner]}})
    assert of("POST", INSTANCE.path(namespace), body=body) == [
        ("create", "instances"),
        ("update", "workloaddeployments/finalizers"),
    ]
