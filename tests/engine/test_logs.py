"""Logs on the real engine: nodes of kwok answer for them, through the hub and directly, under the generated roles.

Needs an engine with nodes: `python -m engine up --kwok pop-dfw`.
"""

import asyncio
import base64
import http.client
import json
import secrets
import ssl
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
from cryptography import x509

from datum_compute.api.accounts import NAMESPACE as ACCOUNTS
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SOURCE_CLUSTER, WORKLOAD_NAME
from datum_compute.api.names import hub_namespace
from datum_compute.api.permissions import When, Who
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.identity import hub_labels
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.authority import SERVER, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.federation import prepare_project
from datum_compute.telemetry.cells.hub_instances import _Proxied
from datum_compute.telemetry.cells.sites import Door, Question, answered_lines, log_call
from datum_compute.telemetry.cells.targets import Target
from engine.api import Api, condition, until
from engine.harness import Engine
from engine.identities import DEFAULT_SWITCHES
from engine.settings import HOST_PLANE, HUB_PLANE
from tests.engine.logs import Container, now, pod, run
from tests.operator.processes import Manager
from tests.scenarios.federation import placement, template
from tests.telemetry.sites import target

pytestmark = pytest.mark.engine

CELL, OTHER_CELL = "pop-dfw", "pop-ord"
PROJECTS = {"demo": HOST_PLANE, "other": "project-b"}
SERVED = (When.LOGS, When.EXEC, When.FRONT_PROXY, When.PODS)
LOKI = "/apis/o11y.miloapis.com/v1alpha1/logs/loki/api/v1"


@pytest.fixture(scope="module")
def served(engine: Engine) -> Iterator[Engine]:
    """The engine while the roles for logs are bound."""
    if not any(plane.kwok for plane in engine.planes()):
        pytest.fail(f"no cell has nodes: bring the engine up with --kwok {CELL}")
    engine.admit([*DEFAULT_SWITCHES, *SERVED])
    yield engine
    engine.admit()


class Place:
    """A Pod in the cell with nodes, and the ways to its log."""

    def __init__(self, engine: Engine, cell: Api) -> None:
        self.engine = engine
        self.namespace = f"logs-{secrets.token_hex(4)}"
        self.container = Container(engine, CELL, "web")
        cell.create(NAMESPACE.body(self.namespace))
        run(cell, pod("web-0", self.namespace, "web"))

    def doors(self, who: str) -> dict[str, Callable[[], Any]]:
        return {
            "directly": lambda: HttpTransport(load([self.engine.kubeconfig(CELL, who)])),
            "through the hub": lambda: HttpTransport(load([self.engine.kubeconfig(HUB_PLANE, who)])),
        }

    def read(self, way: str, who: str = Who.MANAGEMENT.value, cell: str = CELL, **question: Any) -> list[str]:
        async def lines() -> list[str]:
            transport = self.doors(who)[way]()
            try:
                found = answered_lines(self._door(transport, way, cell), self._target(), "web", Question(**question))
                async with aclosing(found) as texts:
                    return [text async for _, text, _ in texts]
            finally:
                await transport.close()

        return asyncio.run(lines())

    def follow(self, way: str, texts: list[str]) -> list[float]:
        """Seconds from each line being written to its arrival."""

        async def seconds() -> list[float]:
            transport = self.doors(Who.MANAGEMENT.value)[way]()
            call = log_call(self._target(), "web", Question(tail=0, follow=True))
            began = asyncio.Event()
            arrivals: list[float] = []

            async def receive() -> None:
                async with self._door(transport, way, CELL).pieces(call) as pieces:
                    async for piece in pieces:
                        began.set()
                        arrivals.extend([time.monotonic()] * piece.count(b"\n"))
                        if len(arrivals) > len(texts):
                            return

            receiving = asyncio.create_task(receive())
            try:
                while not began.is_set():  # the stream begins at the end of the log, some time after it was asked for
                    self.container.write("not yet")
                    await asyncio.sleep(0.2)
                arrivals.clear()
                arrivals.append(0.0)
                written = []
                for text in texts:
                    written.append(time.monotonic())
                    self.container.write(text)
                    await asyncio.sleep(0.05)
                async with asyncio.timeout(20):
                    await receiving
                return [there - here for here, there in zip(written, arrivals[1:], strict=False)]
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
                await transport.close()

        return asyncio.run(seconds())

    def _door(self, transport: HttpTransport, way: str, cell: str) -> Door:
        return transport if way == "directly" else _Proxied(transport, cell)

    def _target(self) -> Target:
        return msgspec.structs.replace(target("web-0"), place=self.namespace)


@pytest.fixture(scope="module")
def place(served: Engine) -> Iterator[Place]:
    with served.connected(CELL) as cell:
        place = Place(served, cell)
        yield place
        cell.delete(pod("web-0", place.namespace, "web"))
        cell.delete(NAMESPACE.body(place.namespace))


WAYS = ["directly", "through the hub"]


def test_nodes_answer_for_logs(place: Place) -> None:
    """If this fails, the nodes are to blame, and everything below is."""
    place.container.write("one", "two")
    place.container.write("zero", previous=True)
    assert place.read("directly", "")[-2:] == ["one", "two"]
    assert place.read("directly", "", previous=True) == ["zero"]
    assert place.read("directly", "", tail=1) == ["two"]


@pytest.mark.parametrize("way", WAYS)
def test_management_reads_logs_under_its_roles(place: Place, way: str) -> None:
    assert {"one", "two"} <= set(place.read(way))
    assert place.read(way, previous=True) == ["zero"]


@pytest.mark.parametrize("way", WAYS)
def test_a_line_is_followed_at_once(place: Place, way: str) -> None:
    seconds = place.follow(way, [f"line {number}" for number in range(20)])
    assert len(seconds) == 20
    print(f"{way}: median {statistics.median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms")
    assert statistics.median(seconds) < 1


def test_the_roles_allow_nothing_but_logs(place: Place, served: Engine) -> None:
    def calls(plane: str, prefix: str = "") -> Iterator[tuple[str, str]]:
        for path in ("pods", "pods/web-0", "secrets", "configmaps"):
            yield plane, f"{prefix}/api/v1/namespaces/{place.namespace}/{path}"

    through = f"/apis/cluster.karmada.io/v1alpha1/clusters/{CELL}/proxy"
    for plane, path in (*calls(CELL), *calls(HUB_PLANE, through)):
        api = Api(plane, load([served.kubeconfig(plane, Who.MANAGEMENT.value)]))
        with pytest.raises(Forbidden):
            api._call("GET", path)
        api.close()


def test_a_cell_that_the_role_does_not_name_is_refused(place: Place, served: Engine, planes: dict[str, Api]) -> None:
    """As docs/operator.md says for hubs with cells that are not compute's."""
    hub, name = planes[HUB_PLANE], "compute-management-on-hub-logs"
    role = hub.get("rbac.authorization.k8s.io/v1", "ClusterRole", name)
    limited = role | {"rules": [rule | {"resourceNames": [OTHER_CELL]} for rule in role["rules"]]}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    try:
        hub.merge(head | role, {"rules": limited["rules"]})
        until("the role being in force", lambda: _refusal(lambda: place.read("through the hub")) is Forbidden, 10)
        # The cell that it names has no such Pod, which is another answer than that nothing may be asked.
        assert _refusal(lambda: place.read("through the hub", cell=OTHER_CELL)) is not Forbidden
    finally:
        hub.merge(head | role, {"rules": role["rules"]})
    until("the role being as before", lambda: _refusal(lambda: place.read("through the hub")) is None, 10)


def _refusal(action: Callable[[], Any]) -> type[ApiError] | None:
    try:
        action()
    except ApiError as error:
        return type(error)
    return None


class Aggregated:
    """Logs behind the API server of a cluster that is the only project, for an Instance that the hub knows.

    No compute-manager runs for its cell yet: it would remove a copy of an Instance that it does not have.
    """

    def __init__(self, engine: Engine, directory: Path, planes: dict[str, Api]) -> None:
        self.engine = engine
        self.container = Container(engine, CELL, "web")
        self._cluster, self._hub, self._cell = planes[HOST_PLANE], planes[HUB_PLANE], planes[CELL]
        self.namespace = f"team-{secrets.token_hex(3)}"
        began = datetime.now(UTC) - timedelta(hours=1)
        authority = new_authority("logs", began, 2)
        names = [x509.DNSName(f"compute-logs.{ACCOUNTS}.svc"), x509.IPAddress(ip_address("127.0.0.1"))]
        pair = issue(authority, "logs", began, 2, purposes=[SERVER], names=names)
        for file, content in (
            ("tls.crt", pair.certificate_pem),
            ("tls.key", pair.key_pem),
            ("ca.crt", authority.certificate_pem),
        ):
            (directory / file).write_bytes(content)
        self._authority = directory / "ca.crt"
        self.manager = Manager(
            directory,
            "single",
            f"logsServer: {{host: 127.0.0.1, port: 0, tls: {{certDir: {directory}}}}}\ndiscovery: {{mode: single}}\n",
            f"--kubeconfig={engine.kubeconfig(HOST_PLANE, 'management')}",
            f"--federation-kubeconfig={engine.kubeconfig(HUB_PLANE, 'management')}",
        )
        self._service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "compute-logs", "namespace": ACCOUNTS},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        self._registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1alpha1.o11y.miloapis.com"},
            "spec": {
                "group": "o11y.miloapis.com",
                "version": "v1alpha1",
                "groupPriorityMinimum": 1000,
                "versionPriority": 10,
                "caBundle": base64.b64encode(authority.certificate_pem).decode(),
                "service": {"name": "compute-logs", "namespace": ACCOUNTS, "port": self.manager.port("logs")},
            },
        }

    def start(self) -> None:
        self.manager.until_ready()
        self._cluster.apply(self._service)
        self._cluster.apply(self._registration)
        until("the API being served", self._is_served, 60)
        own = self._cluster.create(NAMESPACE.body(self.namespace))
        self.place = hub_namespace(own["metadata"]["uid"])
        identity = hub_labels("single", self.namespace)
        labels = identity | {WORKLOAD_NAME: "api", PLACEMENT_NAME: "main", CITY_CODE: "DFW", SOURCE_CLUSTER: CELL}
        self._hub.create(NAMESPACE.body(self.place, labels=identity))
        copy = self._hub.create(
            INSTANCE.body("api-main-dfw-0", self.place, labels=labels) | {"spec": template()["spec"]}
        )
        self._hub.replace(copy | {"status": {"controller": {"observedTemplateHash": "1"}}}, "status")
        until("the namespace in the cell", lambda: self._cell.find("v1", "Namespace", self.place), 30)
        run(self._cell, pod("api-main-dfw-0", self.place, "web"))

    def _is_served(self) -> bool:
        found = self._cluster.get("apiregistration.k8s.io/v1", "APIService", "v1alpha1.o11y.miloapis.com")
        return condition(found, "Available") == "True"

    def ask(self, url: str, headers: dict[str, str], certificate: str = "") -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=self.engine.folder.certificates / "ca.crt")
        context.load_verify_locations(self._authority)
        if certificate:
            folder = self.engine.folder.certificates
            context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")
        address = urlsplit(url)
        connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=20, context=context)
        try:
            query = urlencode({"query": f'{{datum_namespace_name="{self.namespace}"}}'})
            connection.request("GET", f"{LOKI}/query_range?{query}", headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def lines(self, url: str, headers: dict[str, str]) -> list[str]:
        code, answer = self.ask(url, headers)
        streams = answer["data"]["result"] if code == 200 else []
        return [value[1] for stream in streams for value in stream["values"]]

    @property
    def cluster(self) -> str:
        return load([self.engine.kubeconfig(HOST_PLANE)]).server

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.manager.port('logs')}"

    def close(self) -> None:
        self.manager.close()
        self._cluster.delete(self._registration)
        self._cluster.delete(self._service)
        self._cluster.delete(NAMESPACE.body(self.namespace))
        self._cell.delete(pod("api-main-dfw-0", self.place, "web"))
        self._hub.delete(INSTANCE.body("api-main-dfw-0", self.place))
        self._hub.delete(NAMESPACE.body(self.place))


@pytest.fixture
def aggregated(served: Engine, planes: dict[str, Api], tmp_path: Path) -> Iterator[Aggregated]:
    aggregated = Aggregated(served, tmp_path, planes)
    try:
        aggregated.start()
        yield aggregated
    finally:
        aggregated.close()


def test_an_api_server_passes_its_callers_on(aggregated: Aggregated) -> None:
    """Behind an APIService; whoever calls the server itself with the same headers is nobody."""
    aggregated.container.write("hello")
    token = load([aggregated.engine.kubeconfig(HOST_PLANE, "user")]).token
    bearer = {"Authorization": f"Bearer {token}"}
    for url in (aggregated.cluster, aggregated.server):
        until("the line being read", lambda url=url: aggregated.lines(url, bearer) == ["hello"], 20)  # type: ignore[misc]
    forged = {"X-Remote-User": f"system:serviceaccount:{ACCOUNTS}:compute-user", "X-Remote-Group": "system:masters"}
    assert aggregated.ask(aggregated.server, forged)[0] == 401
    # Of the same authority as the front proxy's here, as in many installations, but not of its name.
    assert aggregated.ask(aggregated.server, forged, "admin")[0] == 401
    assert aggregated.ask(aggregated.server, forged, "front-proxy-client")[0] == 200


COLOURS = {"demo": "red", "other": "blue"}  # the names of the containers, each of which has a log of its own


class Chain:
    """Management that serves logs, and a cell that runs Pods, for two projects with a workload of the same name."""

    def __init__(self, engine: Engine, directory: Path, more: str = "") -> None:
        """`more` is added to the config of the server."""
        self.engine = engine
        self.containers = {name: Container(engine, CELL, name) for name in COLOURS.values()}
        self._authority = load([engine.kubeconfig(HOST_PLANE)]).ca_pem
        for who in (Who.MANAGEMENT, Who.CELL):
            folder = directory / f"{who.value}-projects"
            folder.mkdir()
            for project, plane in PROJECTS.items():
                called = who.value if who is Who.MANAGEMENT else f"{who.value}-{CELL}"
                (folder / f"{project}.yaml").write_bytes(engine.kubeconfig(plane, called).read_bytes())
        discovery = f"discovery:\n  mode: kubeconfigs\n  kubeconfigDir: {directory}"
        files = f"certDir: {engine.folder.certificates}, certName: server.crt, keyName: server.key"
        logs = f"logsServer:\n  host: 127.0.0.1\n  port: 0\n  tls: {{{files}}}\n{more}"
        self.management = Manager(
            directory,
            "management",
            f"{discovery}/management-projects\n{logs}",
            f"--kubeconfig={engine.kubeconfig(HOST_PLANE, 'management')}",
            f"--federation-kubeconfig={engine.kubeconfig(HUB_PLANE, 'management')}",
            "--enable-management-controllers",
            "--builtins=quota,entitlement,locations",
        )
        self.cell = Manager(
            directory,
            "cell",
            f"{discovery}/cell-projects\n  clusterName: {CELL}\n",
            f"--kubeconfig={engine.kubeconfig(CELL, 'cell')}",
            f"--federation-kubeconfig={engine.kubeconfig(HUB_PLANE, f'cell-{CELL}')}",
            "--enable-cell-controllers",
            "--provider=pods",
        )

    def deploy(self) -> None:
        for manager in (self.management, self.cell):
            manager.until_ready()
        for project, plane in PROJECTS.items():
            asyncio.run(self._prepare(plane))
            with self.engine.connected(plane) as api:
                until("a city being offered", lambda api=api: self._has_city(api), 60)  # type: ignore[misc]
            user = Api(plane, load([self.engine.kubeconfig(plane, "user")]))
            found = template()
            found["spec"]["runtime"]["sandbox"]["containers"][0]["name"] = COLOURS[project]
            body = WORKLOAD.body("api", "default") | {
                "spec": {"template": found, "placements": [placement("main", ["DFW"], 2)]}
            }
            until("the workload being created", lambda user=user, body=body: user.create(body), 30)  # type: ignore[misc]
            user.close()
        for plane in PROJECTS.values():
            with self.engine.connected(plane) as api:
                until("both instances being available", lambda api=api: self._are_available(api), 90)  # type: ignore[misc]

    async def _prepare(self, plane: str) -> None:
        transport = HttpTransport(load([self.engine.kubeconfig(plane)]))
        try:
            await prepare_project(Client(plane, transport))
        finally:
            await transport.close()

    def _has_city(self, api: Api) -> bool:
        found = api.items("networking.datumapis.com/v1alpha", "LocationBinding")
        return any(condition(item, "Available") == "True" for item in found)

    def _are_available(self, api: Api) -> bool:
        found = api.items(WORKLOAD.api_version, "Instance", "default")
        return sum(condition(item, "Available") == "True" for item in found) == 2

    def token(self, plane: str, who: str = "user") -> str:
        return load([self.engine.kubeconfig(plane, who)]).token

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self._authority)
        return http.client.HTTPSConnection("127.0.0.1", self.management.port("logs"), timeout=20, context=context)

    def ask(self, project: str, token: str, name: str = "query_range", **more: str) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request("GET", self.path(project, name, **more), headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def path(self, project: str, name: str, **more: str) -> str:
        query = {"query": '{datum_instance_name=~".+"}', "match[]": '{datum_workload_name="api"}'} | more
        return f"/projects/{project}/control-plane{LOKI}/{name}?{urlencode(query)}"

    def lines(self, project: str) -> set[str]:
        code, answer = self.ask(project, self.token(PROJECTS[project]))
        assert code == 200, answer
        return {value[1] for stream in answer["data"]["result"] for value in stream["values"]}

    def close(self) -> None:
        try:
            for plane in PROJECTS.values():
                with self.engine.connected(plane) as api:
                    api.delete(WORKLOAD.body("api", "default"))
            for plane in (*PROJECTS.values(), CELL, HUB_PLANE):
                with self.engine.connected(plane) as api:
                    until(
                        f"nothing left on {plane}",
                        lambda api=api: not api.items(WORKLOAD.api_version, "Instance"),  # type: ignore[misc]
                        60,
                    )
        finally:
            for manager in (self.management, self.cell):
                manager.close()


@pytest.fixture(scope="module")
def chain(served: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(served, tmp_path_factory.mktemp("logs"))
    try:
        chain.deploy()
        yield chain
    finally:
        chain.close()


def test_users_read_the_logs_of_their_own_project_and_no_other(chain: Chain) -> None:
    """The whole chain: a user's token, reviews by the project, the hub's copies, Karmada's proxy, and the site."""
    chain.containers["red"].write("of demo")
    chain.containers["blue"].write("of other")
    assert chain.lines("demo") == {"of demo"}
    assert chain.lines("other") == {"of other"}
    assert chain.ask("other", chain.token(HOST_PLANE))[0] == 401
    assert chain.ask("demo", chain.token("project-b"))[0] == 401
    assert chain.ask("demo", "nonsense")[0] == 401


def test_a_user_without_the_right_reads_nothing(chain: Chain, planes: dict[str, Api]) -> None:
    """One more account of the project that may see its workloads, but not their logs."""
    admin, name = planes[HOST_PLANE], f"reader-{secrets.token_hex(3)}"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": ACCOUNTS}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "compute-user-on-project",
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": ACCOUNTS}],
    }
    admin.create(account)
    admin.create(binding)
    try:
        code, answer = chain.ask("demo", admin.token(name, ACCOUNTS, 3600))
        assert code == 403
        assert f"system:serviceaccount:{ACCOUNTS}:{name}" in answer["message"]
    finally:
        admin.delete(binding)
        admin.delete(account)


def test_what_users_see_names_nothing_of_the_platform(chain: Chain) -> None:
    text = json.dumps(
        [
            chain.ask("demo", chain.token(HOST_PLANE), name)
            for name in ("query_range", "series", "labels", "label/datum_city_code/values")
        ]
    )
    for word in (CELL, "ns-", "kwok", "node", "other"):
        assert word not in text
    assert "DFW" in text


def test_a_line_reaches_a_reader_who_follows(chain: Chain) -> None:
    """Two instances write the same line, because their site gives them one log."""
    connection = chain.connection()
    path = chain.path("demo", "tail", start=str(now()))
    connection.request("GET", path, headers={"Authorization": f"Bearer {chain.token(HOST_PLANE)}"})
    answer = connection.getresponse()
    assert answer.status == 200
    count = 60
    seconds: list[float] = []
    found: list[tuple[str, str]] = []
    deadline = time.monotonic() + 40
    time.sleep(2)  # until both streams are open; a line before that would measure something else
    written = 0
    try:
        while len(found) < 2 * count and time.monotonic() < deadline:
            if written < count:
                chain.containers["red"].write(f"number {written}")
                written += 1
            frame = json.loads(answer.readline())
            arrived = time.time_ns()
            for stream in frame.get("streams", ()):
                for at, text in stream["values"]:
                    if text.startswith("number"):
                        found.append((stream["stream"]["datum_instance_name"], text))
                        seconds.append((arrived - int(at)) / 1e9)
    finally:
        connection.close()
    expected = {(f"api-main-dfw-{ordinal}", f"number {number}") for ordinal in (0, 1) for number in range(count)}
    assert len(found) == len(set(found)) == 2 * count, "none lost, none twice"
    assert set(found) == expected
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(f"through Karmada: median {statistics.median(seconds) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    assert statistics.median(seconds) < 2


def test_a_cell_that_dies_is_silent_until_it_is_back(chain: Chain) -> None:
    """What its containers write meanwhile comes when it is back, once."""
    connection = chain.connection()
    path = chain.path("demo", "tail", start=str(now()))
    connection.request("GET", path, headers={"Authorization": f"Bearer {chain.token(HOST_PLANE)}"})
    answer = connection.getresponse()
    found: list[tuple[str, str]] = []
    notices: list[str] = []

    def read_until(done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, (notices, found)
            frame = json.loads(answer.readline())
            if notice := frame.get("notice"):
                assert (notice["city"], CELL in json.dumps(frame)) == ("DFW", False)
                notices.append(notice["kind"])
            for stream in frame.get("streams", ()):
                found.extend((stream["stream"]["datum_instance_name"], value[1]) for value in stream["values"])

    try:
        time.sleep(2)
        chain.containers["red"].write("before")
        read_until(lambda: len(found) == 2, 20)
        chain.engine.kill(f"{CELL}-apiserver")
        chain.containers["red"].write("meanwhile")
        read_until(lambda: notices == ["silent"], 60)
        chain.engine.start(f"{CELL}-apiserver")
        read_until(lambda: notices == ["silent", "back"] and len(found) == 4, 120)
        chain.containers["red"].write("after")
        read_until(lambda: len(found) == 6, 60)
    finally:
        connection.close()
        if not chain.engine.is_up():
            chain.engine.start(f"{CELL}-apiserver")
        for process in ("karmada-controller-manager", "karmada-scheduler"):  # by themselves they take a minute
            chain.engine.kill(process)
            chain.engine.start(process)
    instances = ("api-main-dfw-0", "api-main-dfw-1")
    assert sorted(found) == sorted((name, text) for name in instances for text in ("before", "meanwhile", "after"))
