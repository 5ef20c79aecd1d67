"""Who may change a project's deployments on an embedded server, by the caller."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from datum_compute.admission.rules import admit
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.embedded.https.application import BEARER
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.admission import User
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation
from tests.api.deployment_writes import LATER, NEVER, ONCE, RESTARTED_AT, WRITES, Write, changed, restarted

MERGE = "application/merge-patch+json"
ALL = WORKLOAD_DEPLOYMENT.path("default")
ONE = WORKLOAD_DEPLOYMENT.path("default", "web-main-dfw")
STATUS = dict.fromkeys(("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas"), 5)


class Plane:
    def __init__(self, simulation: Simulation, role: str = PROJECT) -> None:
        self.engine = compute_engine(clock=simulation, generator=simulation.random, admit=admit)
        self.server: PlaneServer = self.engine.serve("demo", role)
        self.client: Client = self.engine.client("demo")

    async def start(self, deployment: Json) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("default"))
        await self.client.create(WORKLOAD_DEPLOYMENT, deployment)

    async def ask(self, method: str, path: str, body: Json | None = None, user: User = BEARER) -> tuple[int, str]:
        """Status code and message of a refusal."""
        content_type = MERGE if method == "PATCH" else "application/json"
        data = msgspec.json.encode(body) if body is not None else b""
        answer = await self.server.answer(Call(method, path, {}, data, content_type), user)
        return answer.code, msgspec.json.decode(answer.body).get("message", "") if answer.code >= 300 else ""

    async def stored(self) -> Json:
        answer = await self.server.answer(Call("GET", ONE))
        found: Json = msgspec.json.decode(answer.body)
        return found


@pytest.fixture
def plane(simulation: Simulation) -> Plane:
    return Plane(simulation)


@pytest.mark.parametrize("case", WRITES, ids=[case.what for case in WRITES])
async def test_a_user_may_only_move_a_restart_forward(plane: Plane, case: Write) -> None:
    await plane.start(case.before)
    before = await plane.stored()
    after = case.after | {"metadata": before["metadata"] | client_metadata(case.after["metadata"])}
    code, sentence = await plane.ask("PUT", ONE, after)
    assert code == (200 if case.allowed else 403)
    assert case.allowed or "follows from its Workload" in sentence
    assert (await plane.stored())["spec"] == (case.after if case.allowed else case.before)["spec"]


def client_metadata(metadata: Json) -> Json:
    keys = ("labels", "annotations", "finalizers", "ownerReferences")
    return {key: metadata[key] for key in keys if key in metadata}


Attempt = Callable[[Plane], Awaitable[tuple[int, str]]]
ATTEMPTS: dict[str, Attempt] = {
    "create": lambda plane: plane.ask("POST", ALL, changed(NEVER, "metadata", "name", to="mine")),
    "delete": lambda plane: plane.ask("DELETE", ONE),
    "delete all": lambda plane: plane.ask("DELETE", ALL),
    "report": lambda plane: plane.ask("PATCH", f"{ONE}/status", {"status": STATUS}),
    "scale": lambda plane: plane.ask("PATCH", ONE, {"spec": {"scaleSettings": {"minReplicas": 5}}}),
    "release": lambda plane: plane.ask("PATCH", ONE, {"metadata": {"finalizers": None}}),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_every_other_change_by_a_user_is_refused(plane: Plane, attempt: Attempt) -> None:
    await plane.start(changed(ONCE, "metadata", "finalizers", to=["compute.datumapis.com/federator"]))
    before = await plane.stored()
    code, sentence = await attempt(plane)
    assert (code, "follows from its Workload" in sentence) == (403, True)
    assert await plane.stored() == before


async def test_controllers_in_the_process_may_write_deployments(plane: Plane) -> None:
    await plane.start(ONCE)
    scale = {"spec": {"scaleSettings": {"minReplicas": 5}}}
    await plane.client.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", scale)
    await plane.client.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"status": STATUS}, "status")
    await plane.client.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default")


async def test_deleting_a_workload_deletes_its_deployments(plane: Plane, simulation: Simulation) -> None:
    await plane.start(ONCE)
    running = asyncio.create_task(plane.engine.run())
    assert (await plane.ask("DELETE", NAMESPACE.path(name="default")))[0] == 200

    async def gone() -> bool:
        return not (await plane.client.list(WORKLOAD_DEPLOYMENT)).items

    await simulation.until(gone, 30, "the deployment is gone with its namespace")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("role", [HUB, CELL])
async def test_the_rule_does_not_apply_to_hub_and_cells(simulation: Simulation, role: str) -> None:
    plane = Plane(simulation, role)
    await plane.start(ONCE)
    assert (await plane.ask("DELETE", ONE))[0] == 200


@asynccontextmanager
async def over_https(directory: Path) -> AsyncIterator[tuple[Client, Client]]:
    """A project as its controllers reach it, and as the holder of the token does."""
    engine = compute_engine(admit=admit)
    engine.serve("demo", PROJECT)
    server = HttpsServer(engine, Credentials.ensure(directory))
    await server.start()
    transport = HttpTransport(server.endpoint("demo"))
    try:
        yield engine.client("demo"), Client("demo", transport)
    finally:
        await transport.close()
        await server.stop()
        engine.close()


def test_a_caller_over_https_is_no_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with over_https(tmp_path) as (within, outside):
            await within.create(NAMESPACE, NAMESPACE.body("default"))
            await within.create(WORKLOAD_DEPLOYMENT, ONCE)
            with pytest.raises(Forbidden, match="follows from its Workload"):
                await outside.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"spec": {"cityCode": "X"}})
            with pytest.raises(Forbidden, match="follows from its Workload"):
                await outside.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default")
            grown = restarted({}, LATER)
            answer = await outside.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", grown)
            assert answer.spec.template.metadata.annotations[RESTARTED_AT] == LATER

    asyncio.run(scenario())
