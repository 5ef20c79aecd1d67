"""compute-manager runs commands for the users of projects: who may, where they run, and what users never see."""

import asyncio
from typing import Any

import pytest
from msgspec import json

from datum_compute.api.instance import INSTANCE
from datum_compute.federation.sessions import Command
from datum_compute.kube.errors import Forbidden, Unavailable
from datum_compute.kube.kinds import EVENT
from datum_compute.operator.config import KUBECONFIGS, MILO, LogsServer
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import SUBPROTOCOL, Ended, Exited, Output, from_server
from datum_compute.telemetry.exec.request import path_of, query_of
from tests.operator.test_logs import NAME, World, world_of

ON = LogsServer(exec=True)


class Client:
    """A client of the server, from the request to the end of the command."""

    def __init__(self, world: World, command: Command, project: str, token: str, headers: dict[str, str]) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        given = headers | ({"authorization": f"Bearer {token}"} if token else {})
        prefix = f"/projects/{project}/control-plane" if project else ""
        scope = {
            "type": "websocket",
            "path": f"{prefix}{path_of('default', NAME)}",
            "query_string": query_of(command).encode(),
            "subprotocols": [SUBPROTOCOL],
            "headers": [(key.lower().encode(), value.encode()) for key, value in given.items()],
        }
        self.code, self.body, self.output = 0, b"", b""
        self.end: Exited | Ended | None = None
        self.task = asyncio.create_task(world.application(scope, self._incoming.get, self._receive))

    async def _receive(self, message: Any) -> None:
        match message["type"]:
            case "http.response.start":
                self.code = message["status"]
            case "http.response.body":
                self.body += message["body"]
            case "websocket.accept":
                self.code = 101
            case "websocket.send":
                match from_server(message["bytes"]):
                    case Output(_, data):
                        self.output += data
                    case Exited() | Ended() as end:
                        self.end = end

    def type(self, data: bytes) -> None:
        for message in (channels.message(channels.STDIN, data), channels.end_of(channels.STDIN)):
            self._incoming.put_nowait({"type": "websocket.receive", "bytes": message})

    @property
    def message(self) -> str:
        text: str = json.decode(self.body)["message"]
        return text


async def run(
    world: World,
    *arguments: str,
    project: str = "demo",
    token: str = "user-of-demo",
    typed: bytes = b"",
    headers: dict[str, str] | None = None,
) -> Client:
    client = Client(world, Command(arguments, stdin=bool(typed)), project, token, headers or {})
    if typed:
        client.type(typed)
    await client.task
    return client


async def deploy(world: World, project: str = "demo", **options: Any) -> str:
    """An Instance of the project, as the project sees it too."""
    place = await world.deploy(project, **options)
    (copy,) = (await world.hub.list(INSTANCE, place)).items
    body = INSTANCE.body(NAME, "default") | {"spec": json.decode(copy.spec_json)}
    await world.engine.client(project).create(INSTANCE, body)
    return place


async def test_a_command_runs_in_the_pod_of_the_instance_through_the_hub(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        place = await deploy(world)
        client = await run(world, "echo", "hello")
        assert (client.code, client.output, client.end) == (101, b"hello\n", Exited(0))
        proxy = f"/apis/cluster.karmada.io/v1alpha1/clusters/pop/proxy/api/v1/namespaces/{place}/pods/{NAME}/exec"
        assert world.proxy.paths == [proxy]
        events = (await world.engine.client("demo").list(EVENT)).items
        assert [event.message for event in events] == ['user-of-demo runs "echo" in container app']


async def test_exit_codes_input_and_its_end_arrive(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world)
        assert (await run(world, "exit", "42")).end == Exited(42)
        assert (await run(world, "count", typed=b"x" * 200_000)).output == b"200000\n"


async def test_commands_are_off_unless_they_are_switched_on(simulation: Simulation) -> None:
    async with world_of(simulation) as world:
        await deploy(world)
        path = path_of("default", NAME)
        assert not world.application.has_websocket(f"/projects/demo/control-plane{path}")
        assert (await run(world, "echo")).code == 404
        assert world.proxy.paths == []


async def test_commands_are_a_websocket_where_they_are_switched_on(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        assert world.application.has_websocket(f"/projects/demo/control-plane{path_of('default', NAME)}")
        assert world.application.has_websocket(path_of("default", NAME))
        assert not world.application.has_websocket(world.path("demo").partition("?")[0])


@pytest.mark.parametrize(
    ("project", "token", "code"),
    [("demo", "", 401), ("demo", "user-of-shop", 401), ("shop", "user-of-demo", 401), ("demo", "eve", 403)],
)
async def test_whoever_may_not_run_commands_starts_none(
    simulation: Simulation, project: str, token: str, code: int
) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world, "demo")
        await deploy(world, "shop")
        world.reviewing["demo"].users["eve"] = set()
        assert (await run(world, "echo", project=project, token=token)).code == code
        assert world.proxy.paths == []
        assert (await world.engine.client(project).list(EVENT)).items == []


async def test_the_review_is_about_creating_exec_of_this_instance(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world)
        await run(world, "echo")
        assert world.reviewing["demo"].reviews[-1] == {
            "namespace": "default",
            "name": NAME,
            "verb": "create",
            "group": "compute.datumapis.com",
            "version": "v1alpha",
            "resource": "instances",
            "subresource": "exec",
        }


@pytest.mark.parametrize("mode", [KUBECONFIGS, MILO])
async def test_forged_headers_open_nothing(simulation: Simulation, mode: str) -> None:
    forged = {"x-remote-user": "user-of-demo", "x-remote-group": "system:masters"}
    async with world_of(simulation, mode, config=ON) as world:
        await deploy(world)
        assert (await run(world, "echo", token="", headers=forged)).code == 401


async def test_a_pod_that_no_provider_reports_is_not_entered(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world, running=False)
        client = await run(world, "echo")
        assert client.code == 409
        assert world.proxy.paths == []


async def test_the_words_of_a_site_are_not_shown(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        place = await deploy(world)
        client = await run(world, "nope")
        assert isinstance(client.end, Ended)
        assert client.end.message == 'the program "nope" is not in the container'
        world.cell.trouble = Unavailable("10.0.0.1:6443 of node-17 in pop cannot be reached")
        client = await run(world, "echo")
        assert (client.code, client.message) == (503, f'the site of instance "{NAME}" does not answer')
        world.cell.trouble = Forbidden('User "system:karmada" cannot create pods/exec')
        client = await run(world, "echo")
        assert (client.code, client.message) == (
            503,
            f'the site of instance "{NAME}" refuses to run commands for users',
        )
        world.cell.trouble = None
        world.cell.remove(place, NAME)
        client = await run(world, "echo")
        assert (client.code, client.message) == (409, f'instance "{NAME}" is not running at its site')


async def test_a_session_that_breaks_at_its_site_says_so(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world)
        end = (await run(world, "broken")).end
        assert isinstance(end, Ended)
        assert end.message == "the connection to the instance was lost; the command may go on"


async def test_sessions_over_cells_do_not_last_for_ever(simulation: Simulation) -> None:
    async with world_of(simulation, config=ON) as world:
        await deploy(world)
        client = Client(world, Command(("sleep",)), "demo", "user-of-demo", {})
        await simulation.advance(899)
        assert not client.task.done()
        await simulation.advance(2)
        assert client.end == Ended("the session ended after 15 minutes without input or output", "Timeout", 504)
