"""How compute-manager reaches planes: with a moment's patience, and credentials that are asked for once."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from datum_compute.federation.roles import PROJECT
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import ApiError, TooManyRequests, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.config import API_VERSION, KIND, MILO, PROJECT_URL, Discovery, WorkloadOperator
from datum_compute.operator.flags import Flags
from datum_compute.operator.planes import Endpoints, Planes
from datum_compute.operator.settings import settled
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.pace import Paced
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.telemetry.calls import Calls
from datum_compute.runtime.writes import Writes
from tests.https import Scripted, answering, open_stream
from tests.kube.program import Program
from tests.runtime.telemetry.test_health import ask

NOBODY = Endpoint("http://127.0.0.1:1")  # nothing listens there
PROJECTS = ("one", "two", "three")
READY = {
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
}


class Server:
    """Lists nothing but Projects that are Ready, and refuses as often as configured, or only some callers."""

    def __init__(self, *refusals: tuple[int, str]) -> None:
        self._refusals = list(refusals)
        self.unknown: set[str] = set()  # projects that it announces and does not serve
        self.scripted = Scripted(self._handle)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = self.scripted.requests[-1].decode()
        if "watch=true" in head:
            open_stream(writer)
            await reader.read()
        code, headers = self._refusals.pop(0) if self._refusals else (200, "")
        if any(f"/{name}/control-plane" in head for name in self.unknown):
            code = 404
        items = [{"metadata": {"name": name}, "status": READY} for name in PROJECTS]
        items = items if "/v1alpha1/projects?" in head else []
        body = msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "items": items})
        await answering(body, code, headers)(reader, writer)


@pytest.mark.parametrize(
    ("refusals", "calls", "succeeds"),
    [
        ([(503, "")] * 2, 3, True),
        ([(503, "")] * 3, 3, False),
        ([(429, "")], 2, True),
        ([(429, "Retry-After: 5\r\n")], 1, False),  # the queue can wait; a worker has other planes to serve
    ],
)
def test_a_call_that_fails_for_a_moment_is_retried(refusals: list[tuple[int, str]], calls: int, succeeds: bool) -> None:
    server = Server(*refusals)

    async def scenario() -> bool:
        planes = Planes(Writes(), Calls(), random.Random(1))
        async with server.scripted.listening():
            plane = planes.plane("demo", PROJECT, Endpoint(server.scripted.url))
            try:
                await plane.client.list(NAMESPACE)
            except ApiError:
                return False
            finally:
                await planes.close()
            return True

    assert asyncio.run(scenario()) is succeeds
    assert len(server.scripted.requests) == calls


def test_clients_outside_of_passes_have_the_same_patience() -> None:
    server = Server((503, ""), (429, "Retry-After: 5\r\n"))

    async def scenario() -> None:
        planes = Planes(Writes(), Calls(), random.Random(1))
        async with server.scripted.listening():
            planes.plane("demo", PROJECT, Endpoint(server.scripted.url))
            with pytest.raises(TooManyRequests):
                await planes.client("demo").list(NAMESPACE)
            await planes.close()
            with pytest.raises(KeyError):
                planes.client("demo")

    asyncio.run(scenario())
    assert len(server.scripted.requests) == 2


def test_clients_outside_of_passes_honour_a_pause_that_the_server_asks_for() -> None:
    server = Server((429, "Retry-After: 5\r\n"))

    async def scenario() -> None:
        planes = Planes(Writes(), Calls(), random.Random(1))
        async with server.scripted.listening():
            plane = planes.plane("demo", PROJECT, Endpoint(server.scripted.url))
            with pytest.raises(TooManyRequests):
                await plane.client.list(NAMESPACE)
            with pytest.raises(Paced):
                await planes.client("demo").list(NAMESPACE)
            await planes.close()

    asyncio.run(scenario())
    assert len(server.scripted.requests) == 1


def test_a_plane_that_leaves_before_it_was_engaged_leaves_no_connections() -> None:
    class Caching:
        def prepare(self, plane: Plane) -> None:
            plane.declare(NAMESPACE)

        def engaged(self, plane: Plane) -> None: ...

        def disengaged(self, plane: Plane) -> None: ...

    async def scenario() -> None:
        fleet, planes = Fleet(), Planes(Writes(), Calls(), random.Random(1))
        fleet.join(planes)
        fleet.join(Caching())
        running = asyncio.create_task(fleet.run())
        await asyncio.sleep(0)
        plane = planes.plane("demo", PROJECT, NOBODY)
        fleet.add(plane)
        await asyncio.sleep(0)
        assert fleet.knows("demo")
        fleet.remove("demo")
        with pytest.raises(KeyError):
            planes.client("demo")
        await planes.close()
        with pytest.raises(Unavailable, match="is closed"):  # by a pass that was under way
            await plane.client.list(NAMESPACE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_the_plugin_of_a_kubeconfig_is_run_once_for_all_projects(tmp_path: Path) -> None:
    server, program = Server(), Program(tmp_path, token="issued")
    config = WorkloadOperator(API_VERSION, KIND, discovery=Discovery(mode=MILO))
    flags = Flags(enable_management_controllers=True, federation_kubeconfig="hub", health_probe_bind_address="0")

    async def scenario() -> None:
        async with server.scripted.listening():
            known = Endpoint(server.scripted.url, token="known")
            endpoints = Endpoints(
                hub=known, root=known, project=program.endpoint(server.scripted.url), project_url=PROJECT_URL
            )
            assembly = Assembly(settled(flags, config), endpoints, clock=SystemClock(), generator=random.Random(1))
            running = asyncio.create_task(assembly.run())
            while not all(map(assembly.fleet.has, PROJECTS)):  # noqa: ASYNC110 (a look now and then)
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await assembly.close()

    asyncio.run(scenario())
    assert program.runs == 1
    assert set(server.scripted.sent("Authorization")) == {"Bearer known", "Bearer issued"}


def test_a_project_that_cannot_be_engaged_keeps_no_replica_from_being_ready(tmp_path: Path) -> None:
    server = Server()
    config = WorkloadOperator(API_VERSION, KIND, discovery=Discovery(mode=MILO))
    flags = Flags(enable_management_controllers=True, federation_kubeconfig="hub", health_probe_bind_address="0")

    async def scenario() -> None:
        async with server.scripted.listening():
            known = Endpoint(server.scripted.url)
            endpoints = Endpoints(hub=NOBODY, root=known, project=known, project_url=PROJECT_URL)
            assembly = Assembly(settled(flags, config), endpoints, clock=SystemClock(), generator=random.Random(1))
            probes = assembly.probes()
            server.unknown = {"two"}
            assert (await ask(probes, "/readyz"))[0] == 500
            running = asyncio.create_task(assembly.run())
            while (await ask(probes, "/readyz"))[0] != 200:  # noqa: ASYNC110 (a look now and then)
                await asyncio.sleep(0.01)
            assert not assembly.fleet.has("two")
            while not all(assembly.fleet.up(name) for name in ("one", "three")):  # noqa: ASYNC110 (a look now and then)
                await asyncio.sleep(0.01)
            _, text, _ = await ask(probes, "/readyz?verbose")
            assert "[!]planes: 2 of 5 are away: @hub (connect), two (list)" in text.splitlines()
            assembly.fleet.remove("one")
            assembly.fleet.add(assembly.planes.plane("one", PROJECT, NOBODY))
            assert (await ask(probes, "/readyz"))[0] == 200, "what comes later no longer counts"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await assembly.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
