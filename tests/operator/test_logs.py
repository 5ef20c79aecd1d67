"""compute-manager serves logs to the users of projects: who is believed, what they see, and what they never see."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from cryptography import x509

from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SOURCE_CLUSTER, TOPOLOGY_CITY, WORKLOAD_NAME
from datum_compute.api.names import hub_namespace
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.kube.authority import CLIENT, SERVER, Pair, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.reviews import ACCESS_REVIEW, TOKEN_REVIEW
from datum_compute.kube.transport import Answer, Call, Link
from datum_compute.local.engine import compute_engine
from datum_compute.operator.certificates import Certificates, from_files
from datum_compute.operator.config import KUBECONFIGS, MILO, SINGLE, LogsServer
from datum_compute.operator.logs import CellKubeconfigs, FollowedFrontProxy, Logs, LogsApplication
from datum_compute.operator.planes import HUB_PLANE
from datum_compute.operator.serving import Server
from datum_compute.operator.settings import Address
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.https import Scripted, answering
from tests.telemetry.sites import Cell

LOKI = "/apis/o11y.miloapis.com/v1alpha1/logs/loki/api/v1"
NAME = "api-default-dfw-0"
EVERYTHING = '{datum_instance_name=~".+"}'


class Reviewing:
    """The plane of a project in memory, which also reviews its users; each may read in some namespaces."""

    def __init__(self, transport: InProcess, users: dict[str, set[str]]) -> None:
        self._transport = transport
        self.users = users  # the token is the name
        self.reviews: list[Json] = []

    async def call(self, call: Call) -> Answer:
        if call.path not in (TOKEN_REVIEW.path(), ACCESS_REVIEW.path()):
            return await self._transport.call(call)
        spec = msgspec.json.decode(call.body)["spec"]
        if call.path == TOKEN_REVIEW.path():
            user = {"username": spec["token"]} if spec["token"] in self.users else None
            status: Json = {"authenticated": user is not None} | ({"user": user} if user else {})
        else:
            self.reviews.append(spec["resourceAttributes"])
            wanted = spec["resourceAttributes"]["namespace"]
            status = {"allowed": wanted in self.users.get(spec["user"], ())}
        return Answer(201, encode({"metadata": {}, "status": status}))

    def stream(self, call: Call) -> Any:
        return self._transport.stream(call)


class Proxy:
    """The hub's way to cells."""

    def __init__(self, **cells: Cell) -> None:
        self.cells = cells
        self.paths: list[str] = []

    def pieces(self, call: Call, silence: float | None = None) -> Any:
        prefix, _, path = call.path.partition("/proxy")
        self.paths.append(call.path)
        cell = self.cells[prefix.rpartition("/")[2]]
        return cell.pieces(msgspec.structs.replace(call, path=path), silence)

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        prefix, _, below = path.partition("/proxy")
        self.paths.append(path)
        return await self.cells[prefix.rpartition("/")[2]].websocket(below, query, subprotocol)


class Planes:
    """As the process has them, over planes in memory."""

    def __init__(self, clients: dict[str, Client], hub: Proxy) -> None:
        self.clients = clients
        self.hub = hub

    def client(self, name: str) -> Client:
        return self.clients[name]

    def transport(self, name: str) -> Proxy:
        assert name == HUB_PLANE
        return self.hub


class World:
    """Projects that have an instance of the same name each, at one site."""

    def __init__(
        self, simulation: Simulation, mode: str = KUBECONFIGS, *projects: str, config: LogsServer | None = None
    ) -> None:
        self.simulation = simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.fleet = Fleet()
        self.cell = Cell()
        self.proxy = Proxy(pop=self.cell)
        self.reviewing: dict[str, Reviewing] = {}
        clients = {}
        for name in projects or ("demo", "shop"):
            plane = Reviewing(InProcess(self.engine.serve(name, PROJECT)), {f"user-of-{name}": {"default"}})
            self.reviewing[name] = plane
            clients[name] = Client(name, plane)
            self.fleet.add(Plane(name, PROJECT, plane, writes=Writes(), generator=simulation.random))
        hub = InProcess(self.engine.serve("hub", HUB))
        self.fleet.add(Plane(HUB_PLANE, HUB, hub, writes=Writes(), generator=simulation.random))
        clients[HUB_PLANE] = Client(HUB_PLANE, hub)
        planes: Any = Planes(clients, self.proxy)
        self.logs = Logs(config or LogsServer(), mode, self.fleet, planes, simulation, self._no_front_proxy)
        self.application = LogsApplication(self.logs.rules, self.logs.extensions)
        self.tasks = [asyncio.create_task(self.engine.run()), asyncio.create_task(self.fleet.run())]

    def _no_front_proxy(self) -> Client:
        raise KeyError("not here")

    @property
    def hub(self) -> Client:
        return self.engine.client("hub")

    async def deploy(self, project: str, namespace: str = "default", *, uid: str = "", running: bool = True) -> str:
        """An Instance as its cell reports it to the hub, with one line in its log; returns its hub namespace."""
        if namespace not in await self._namespaces(project):
            await self.engine.client(project).create(NAMESPACE, NAMESPACE.body(namespace))
        uid = uid or (await self.engine.client(project).get(NAMESPACE, namespace)).metadata.uid
        place = hub_namespace(uid)
        identity = hub_labels(project, namespace)
        await self.hub.create(NAMESPACE, NAMESPACE.body(place, labels=identity))
        own = {WORKLOAD_NAME: "api", PLACEMENT_NAME: "default", CITY_CODE: "DFW", SOURCE_CLUSTER: "pop"}
        runtime = {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {"containers": [{"name": "app", "image": "registry.example/hello:1"}]},
        }
        spec = {"runtime": runtime, "networkInterfaces": [{"network": {"name": "default"}}]}
        copy = await self.hub.create(INSTANCE, INSTANCE.body(NAME, place, labels=own | identity) | {"spec": spec})
        if running:
            status = {"controller": {"observedTemplateHash": "1"}, "conditions": []}
            await self.hub.replace_status(INSTANCE, copy, status)
        self.cell.start(place, NAME)
        self.write(place, f"secret of {project}/{namespace}")
        await self.simulation.settle()
        return place

    async def _namespaces(self, project: str) -> Collection[str]:
        return {item.name for item in (await self.engine.client(project).list(NAMESPACE)).items}

    def write(self, place: str, text: str) -> None:
        self.cell.write(place, NAME, int(self.simulation.now().timestamp() * 1e9), text)

    async def start(self) -> None:
        await self.hub.create(CLUSTER, CLUSTER.body("pop", labels={TOPOLOGY_CITY: "DFW"}))
        await self.simulation.settle()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def ask(self, path: str, token: str = "", headers: dict[str, str] | None = None) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        given = (headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(key.lower().encode(), value.encode()) for key, value in given.items()],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.application(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(body)

    async def lines(self, project: str, token: str = "", query: str = EVERYTHING) -> list[str]:
        """What a user of a project reads, by default the user of that project."""
        code, answer = await self.ask(self.path(project, query), token or f"user-of-{project}")
        assert code == 200, answer
        return [value[1] for stream in answer["data"]["result"] for value in stream["values"]]

    def path(self, project: str, query: str = EVERYTHING, name: str = "query_range") -> str:
        end = int(self.simulation.now().timestamp() * 1e9) + 10**9
        parameters = urlencode({"query": query, "match[]": query, "end": end})
        prefix = f"/projects/{project}/control-plane" if project else ""
        return f"{prefix}{LOKI}/{name}?{parameters}"


@asynccontextmanager
async def world_of(
    simulation: Simulation, mode: str = KUBECONFIGS, *projects: str, config: LogsServer | None = None
) -> AsyncIterator[World]:
    world = World(simulation, mode, *projects, config=config)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


async def test_users_of_two_projects_with_equal_names_read_only_their_own(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        places = [await world.deploy(project) for project in ("demo", "shop")]
        assert await world.lines("demo") == ["secret of demo/default"]
        assert await world.lines("shop") == ["secret of shop/default"]
        code, answer = await world.ask(world.path("shop"), "user-of-demo")
        assert (code, answer["reason"]) == (401, "Unauthorized")
        assert {path.split("/namespaces/")[1].split("/")[0] for path in world.proxy.paths} == set(places)


async def test_a_namespace_in_which_a_user_may_not_read_is_left_out(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        await world.deploy("demo")
        await world.deploy("demo", "team")
        assert await world.lines("demo") == ["secret of demo/default"]
        assert await world.lines("demo", query='{datum_namespace_name="team"}') == []
        world.reviewing["demo"].users["ada"] = {"default", "team"}
        assert sorted(await world.lines("demo", "ada")) == ["secret of demo/default", "secret of demo/team"]
        world.reviewing["demo"].users["eve"] = set()
        code, answer = await world.ask(world.path("demo"), "eve")
        assert (code, answer["reason"]) == (403, "Forbidden")


async def test_the_uid_of_anothers_namespace_opens_nothing(simulation: Simulation) -> None:
    """Whoever runs a project's plane can let its namespaces have any uid."""
    async with world_of(simulation) as world:
        place = await world.deploy("demo")
        await world.deploy("shop")
        shop = world.fleet.plane("shop").informer(NAMESPACE)
        stolen = NAMESPACE.decode(encode(NAMESPACE.body("default", uid=place.removeprefix("ns-"), resourceVersion="9")))
        shop._namespaces[""]["default"] = stolen
        assert await world.lines("shop") == []
        _, answer = await world.ask(world.path("shop", name="series"), "user-of-shop")
        assert answer["data"] == []


async def test_a_pod_that_no_provider_reports_is_not_read(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        await world.deploy("demo", running=False)
        assert await world.lines("demo") == []
        assert world.proxy.paths == []


async def test_what_a_tenant_sees_names_no_cell_hub_namespace_or_other_project(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        places = [await world.deploy(project) for project in ("demo", "shop")]
        world.cell.trouble = Unavailable("10.0.0.1:6443 of node-17 in pop cannot be reached")
        answers = [
            await world.ask(world.path("demo", name=name), "user-of-demo")
            for name in ("query_range", "query", "labels", "series", "label/datum_instance_name/values", "nonsense")
        ]
        text = json.dumps(answers)
        for word in (*places, "shop", "pop", "node-17", "10.0.0.1"):
            assert word not in text
        assert [code for code, _ in answers] == [503, 503, 200, 200, 200, 404]


async def test_without_a_token_only_discovery_is_answered(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        root = "/apis/o11y.miloapis.com/v1alpha1"
        expected = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": "o11y.miloapis.com/v1alpha1",
            "resources": [],
        }
        for prefix in ("", "/projects/demo/control-plane"):
            assert await world.ask(f"{prefix}{root}") == (200, expected)
        assert (await world.ask("/apis"))[1]["groups"][0]["name"] == "o11y.miloapis.com"
        assert (await world.ask("/apis/o11y.miloapis.com"))[0] == 200
        for path in ("/", "/metrics", "/api/v1/secrets", f"/planes/hub{root}", "/projects/@hub/control-plane/apis"):
            assert (await world.ask(path, "user-of-demo"))[0] == 404
        for name in ("query_range", "query", "labels", "series", "tail"):
            assert (await world.ask(world.path("demo", name=name)))[0] == 401


async def test_forged_headers_open_nothing(simulation: Simulation) -> None:
    forged = {
        "x-remote-user": "user-of-demo",
        "x-remote-group": "system:masters",
        "x-remote-extra-iam.miloapis.com%2fparent-name": "demo",
        "x-remote-extra-iam.miloapis.com%2fparent-type": "Project",
    }
    for mode in (KUBECONFIGS, MILO):
        async with world_of(simulation, mode) as world:
            await world.deploy("demo")
            for project in ("", "demo"):
                assert (await world.ask(world.path(project), headers=forged))[0] == 401


async def test_in_mode_single_the_cluster_is_the_project(simulation: Simulation) -> None:
    async with world_of(simulation, SINGLE, SINGLE) as world:
        await world.deploy(SINGLE)
        code, answer = await world.ask(world.path(""), "user-of-single")
        assert code == 200
        assert len(answer["data"]["result"]) == 1
        assert (await world.ask(world.path(SINGLE), "user-of-single"))[0] == 404


async def test_only_projects_have_users(simulation: Simulation) -> None:
    """The planes of a process are in one table; a path must not reach another than a project's."""
    async with world_of(simulation) as world:
        world.fleet.add(
            Plane("quota", "claims", InProcess(world.engine.serve("quota", PROJECT)), writes=Writes(),
                  generator=simulation.random)
        )  # fmt: skip
        assert (await world.ask(world.path("quota"), "anybody"))[0] == 401


async def test_a_project_that_is_not_connected_yet_is_unavailable(simulation: Simulation) -> None:
    world = World(simulation)
    world.tasks[1].cancel()
    assert (await world.ask(world.path("demo"), "user-of-demo"))[0] == 503
    await world.stop()


# The front proxy, over TLS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FRONT = new_authority("front-proxy-ca", NOW, 36500)
OTHER = new_authority("front-proxy-ca", NOW, 36500)


def _config_map(authority: Pair, *names: str) -> Json:
    data = {
        "requestheader-client-ca-file": authority.certificate_pem.decode(),
        "requestheader-allowed-names": json.dumps(names),
    }
    return CONFIG_MAP.body("extension-apiserver-authentication", "kube-system") | {"data": data}


class Serving:
    """A server that says which client certificate TLS has verified, as the application sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _config_map(FRONT, "front-proxy-client")
        self.away = False
        authority = new_authority("server", NOW, 36500)
        pair = issue(authority, "logs", NOW, 36500, purposes=[SERVER], names=[x509.DNSName("localhost")])
        self._write("server", pair)
        self.front = FollowedFrontProxy(lambda: Client("root", self))
        source = self.front.beside(from_files(folder / "server.crt", folder / "server.key"))
        self.certificates = Certificates(source)
        self.server = Server("logs", self._application, Address("127.0.0.1", 0), self.certificates)

    async def call(self, call: Call) -> Answer:
        if self.away:
            raise Unavailable("the root cannot be reached")
        assert call.path == CONFIG_MAP.path("kube-system", "extension-apiserver-authentication")
        return Answer(200, encode(self.config))

    def stream(self, call: Call) -> Any:
        raise AssertionError

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        chain = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain", [])
        proxy = self.front.current
        sent = bool(chain) and proxy is not None and proxy.sent(chain[0], SystemClock().now())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"proxy" if sent else b"nobody"})

    def _write(self, name: str, pair: Pair) -> Path:
        (self.folder / f"{name}.crt").write_bytes(pair.certificate_pem)
        (self.folder / f"{name}.key").write_bytes(pair.key_pem)
        return self.folder / f"{name}.crt"

    async def answer(self, authority: Pair | None = None, name: str = "front-proxy-client") -> str:
        """What a client is answered that presents a certificate of an authority; empty if TLS refuses it."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if authority is not None:
            pair = issue(authority, name, NOW, 36500, purposes=[CLIENT])
            context.load_cert_chain(self._write("client", pair), self.folder / "client.key")
        try:
            url = f"https://127.0.0.1:{self.server.port}/"
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
                return await response.text()
        except aiohttp.ClientError:
            return ""


def test_only_a_certificate_of_the_front_proxy_is_believed(tmp_path: Path) -> None:
    async def answers() -> list[str]:
        serving = Serving(tmp_path)
        await serving.server.start()
        try:
            return [
                await serving.answer(FRONT),
                await serving.answer(FRONT, "somebody"),
                await serving.answer(OTHER),
                await serving.answer(),
            ]
        finally:
            await serving.server.stop()

    assert asyncio.run(answers()) == ["proxy", "nobody", "", "nobody"]


def test_a_new_authority_of_the_front_proxy_replaces_the_old_one(tmp_path: Path) -> None:
    async def answers() -> list[str]:
        serving = Serving(tmp_path)
        serving.away = True
        await serving.server.start()
        found = []
        try:
            found.append(await serving.answer(FRONT))  # nobody is known yet
            serving.away = False
            await serving.certificates.load()
            found.append(await serving.answer(FRONT))
            serving.config = _config_map(OTHER, "front-proxy-client")
            await serving.certificates.load()
            found += [await serving.answer(FRONT), await serving.answer(OTHER)]
            serving.away = True
            await serving.certificates.load()  # what was read last stays in force
            found.append(await serving.answer(OTHER))
            serving.away, serving.config = False, _config_map(OTHER)
            await serving.certificates.load()  # without a name, nobody
            found.append(await serving.answer(OTHER))
            return found
        finally:
            await serving.server.stop()

    assert asyncio.run(answers()) == ["nobody", "proxy", "", "proxy", "proxy", "nobody"]


# Cells by kubeconfig


def test_a_cell_with_a_kubeconfig_is_called_directly(tmp_path: Path) -> None:
    async def outcome() -> list[str]:
        cell = Scripted(answering(b"2026-11-18T12:00:00Z hello\n"))
        folder = tmp_path / "cells"
        folder.mkdir()
        async with cell.listening():
            write_kubeconfig(folder / "pop-dfw.yaml", {"cell": Endpoint(cell.url)}, "cell")
            cells = CellKubeconfigs(folder)
            door = cells.door("pop-dfw")
            assert door is not None
            assert cells.door("pop-ord") is None
            found = []
            async with door.pieces(Call("GET", "/api/v1/namespaces/ns/pods/web-0/log"), 5) as pieces:
                async for piece in pieces:
                    found.append(piece.decode())
            (folder / "pop-dfw.yaml").unlink()
            cells._directory.look()
            assert cells.door("pop-dfw") is None
            await asyncio.gather(*cells._closing)
            return found

    assert asyncio.run(outcome()) == ["2026-11-18T12:00:00Z hello\n"]


def test_a_process_without_logs_loads_nothing_of_it() -> None:
    program = "import sys, datum_compute.operator.process; print([m for m in sys.modules if '.telemetry.' in m])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "datum_compute.telemetry" not in loaded.stdout
