"""Commands on the real engine: nodes of kwok run them, through the hub and directly, under the generated roles.

The nodes run a command on this machine. They show neither exit codes nor the end of the input; a real container engine
does, in tests/containers. Needs an engine with nodes: `python -m engine up --kwok pop-dfw`.
"""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.api.permissions import Who
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import EVENT, NAMESPACE
from datum_compute.telemetry.cells.hub_instances import _Proxied
from datum_compute.telemetry.cells.sites import Door
from datum_compute.telemetry.exec.pods import PodRunner
from engine.api import Api, until
from engine.harness import Engine
from engine.settings import HUB_PLANE
from tests.engine.logs import pod, run
from tests.engine.test_logs import CELL, PROJECTS, WAYS, Chain, served  # noqa: F401  (served is a fixture)

pytestmark = pytest.mark.engine

ROLE = "compute-management-on-cell-exec"
COMPUTE = Path(sys.executable).with_name("compute")


class OneSite:
    """The cell with nodes, reached in one way."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def door(self, cell: str) -> Door | None:
        return self._door

    def ready(self, cell: str) -> bool:
        return True


async def _sockets_closed() -> None:
    """TLS ends the connection of a refused call in an orderly way, which takes a moment more than the call."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while any(each._sock for each in loop._transports.values()):  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Place:
    """A Pod in the cell with nodes."""

    def __init__(self, engine: Engine, cell: Api) -> None:
        self._engine = engine
        self.namespace = f"exec-{secrets.token_hex(4)}"
        cell.create(NAMESPACE.body(self.namespace))
        run(cell, pod("web-0", self.namespace, "web"))

    def run(self, way: str, *arguments: str) -> tuple[int, bytes]:
        async def conversation() -> tuple[int, bytes]:
            plane = CELL if way == "directly" else HUB_PLANE
            transport = HttpTransport(load([self._engine.kubeconfig(plane, Who.MANAGEMENT.value)]))
            door: Door = transport if way == "directly" else _Proxied(transport, CELL)
            try:
                async with asyncio.timeout(30):
                    command = Command(arguments, container="web")
                    session = await PodRunner(OneSite(door)).run(CELL, self.namespace, "web-0", "", command)
                    output = b"".join([data async for _, data in session.output()])
                    code = await session.exit_code()
                    await session.close()
                    return code, output
            finally:
                await transport.close(for_good=True)
                await _sockets_closed()

        return asyncio.run(conversation())

    def refusal(self, way: str) -> str:
        try:
            self.run(way, "echo")
        except Unstartable as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def place(served: Engine) -> Iterator[Place]:  # noqa: F811
    with served.connected(CELL) as cell:
        place = Place(served, cell)
        yield place
        cell.delete(pod("web-0", place.namespace, "web"))
        cell.delete(NAMESPACE.body(place.namespace))


@pytest.mark.parametrize("way", WAYS)
def test_a_command_runs_under_the_roles_of_management(place: Place, way: str) -> None:
    assert place.run(way, "echo", "hello there", "+%&") == (0, b"hello there +%&\n")
    assert place.run(way, "head", "-c", "1000000", "/dev/zero") == (0, b"\0" * 1_000_000)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", ["get", "create"])
def test_neither_verb_of_the_role_is_enough_alone(place: Place, planes: dict[str, Api], way: str, verb: str) -> None:
    cell = planes[CELL]
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    role = cell.get(head["apiVersion"], head["kind"], ROLE)
    assert [rule["verbs"] for rule in role["rules"]] == [["get", "create"]]
    try:
        cell.merge(head | role, {"rules": [rule | {"verbs": [verb]} for rule in role["rules"]]})
        until("the role being in force", lambda: "refuses to run commands" in place.refusal(way), 10)
    finally:
        cell.merge(head | role, {"rules": role["rules"]})
    until("the role being as before", lambda: not place.refusal(way), 10)


@pytest.fixture(scope="module")
def chain(served: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:  # noqa: F811
    chain = Chain(served, tmp_path_factory.mktemp("exec"), "  exec: true\n")
    try:
        chain.deploy()
        yield chain
    finally:
        chain.close()


def compute(chain: Chain, project: str, who: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """`compute exec` of a user, whose project is one plane and whose commands are served by compute-manager."""
    plane = PROJECTS[project]
    environ = {
        "KUBECONFIG": str(chain.engine.kubeconfig(plane, who)),
        "DATUM_PROJECT": project,
        "DATUM_COMPUTE_LOGS_URL": f"https://127.0.0.1:{chain.management.port('logs')}",
        "PATH": os.environ["PATH"],
    }
    return subprocess.run(
        [COMPUTE, "exec", *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_user_runs_a_command_in_an_instance_of_their_project(chain: Chain) -> None:
    done = compute(chain, "demo", "user", "api-main-dfw-0", "--", "echo", "hunter2")
    assert (done.returncode, done.stdout) == (0, "hunter2\n"), done.stderr
    with chain.engine.connected(PROJECTS["demo"]) as api:
        messages = [event["message"] for event in api.items(EVENT.api_version, EVENT.name, "default")]
    recorded = [message for message in messages if ' runs "echo" in container red' in message]  # also of earlier runs
    assert recorded
    assert all(message.startswith("system:serviceaccount:") for message in recorded)
    assert not any("hunter2" in message for message in messages)


def test_a_user_without_the_right_is_refused(chain: Chain) -> None:
    done = compute(chain, "demo", "management", "api-main-dfw-0", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (7, "")
    assert "you do not have permission to run commands" in done.stderr
