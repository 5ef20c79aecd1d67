"""Commands in the instances of a whole local federation, whose processes are fakes."""

import asyncio

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.federation.sessions import Command, Runner
from datum_compute.kube.errors import Unsupported
from datum_compute.kube.kinds import EVENT
from datum_compute.local.extensions import extensions
from datum_compute.local.logs import Logs
from datum_compute.telemetry.exec.channels import Ended, Exited
from datum_compute.telemetry.exec.request import GROUP
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Project
from tests.sessions import FakeRunner
from tests.telemetry.exec_world import Peer

NAME = "web-main-dfw-0"


def connect(embedded: EmbeddedFederation, runner: Runner | None, *arguments: str) -> Peer:
    served = extensions(embedded.local, runner=runner, logs=Logs(embedded.simulation))
    (handler,) = (extension.handler for extension in served if extension.group == GROUP)
    return Peer(handler, NAME, Command(arguments))


async def deployed(federation: Federation) -> Project:
    project = federation.project()
    await project.deploy("web", ["DFW"], 1)
    await project.until_ready("web", 1)
    return project


async def test_a_command_reaches_the_instance_behind_the_one_of_the_project(
    federation: Federation, embedded: EmbeddedFederation
) -> None:
    project = await deployed(federation)
    runner = FakeRunner()
    peer = connect(embedded, runner, "echo", "hello")
    assert (await peer.ended(), peer.stdout) == (Exited(0), b"hello\n")
    place = await project.hub_namespace()
    instance = await embedded.cells["DFW"].get(INSTANCE, NAME, place)
    assert runner.places == [("cell-dfw", place, NAME, instance.metadata.uid)]
    events = (await embedded.project_client("demo").list(EVENT, "default")).items
    assert 'compute-local runs "echo" in container web' in [event.message for event in events]


async def test_a_replaced_instance_ends_its_sessions(federation: Federation, embedded: EmbeddedFederation) -> None:
    project = await deployed(federation)
    peer = connect(embedded, FakeRunner(), "sleep")
    await peer.until(b"sleeping")
    await project.set_image("web", "registry.example/web:2")
    async with asyncio.timeout(60):
        end = await peer.ended()
    assert isinstance(end, Ended)
    assert end.message == f'instance "{NAME}" was stopped or replaced, and the session with it'


async def test_a_session_outlives_a_hub_that_is_away(federation: Federation, embedded: EmbeddedFederation) -> None:
    await deployed(federation)
    peer = connect(embedded, FakeRunner(), "sleep")
    await peer.until(b"sleeping")
    await embedded.take_away("hub")
    await embedded.simulation.advance(120)
    assert not peer.task.done()
    await embedded.bring_back("hub")
    peer.leave()
    await peer.task


async def test_a_simulated_instance_has_nothing_to_run_a_command_in(
    federation: Federation, embedded: EmbeddedFederation
) -> None:
    await deployed(federation)
    with pytest.raises(Unsupported, match="runs only in simulation"):
        await connect(embedded, None, "echo").task
