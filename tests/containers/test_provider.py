"""Workloads that really run: the whole federation in this process, with the containers of a real engine."""

import asyncio
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import aiohttp
import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.kube.meta import Json, encode
from datum_compute.local.engine import compute_engine
from datum_compute.local.federation import Federation
from datum_compute.providers.containers.provider import ContainersProvider
from datum_compute.providers.containers.removal import remove_all, stop_all
from datum_compute.providers.containers.shape import Owner
from datum_compute.providers.engine.client import EngineClient
from datum_compute.providers.engine.interface import ContainerEngine, EngineAway
from datum_compute.runtime import SystemClock
from tests.conftest import count
from tests.containers.podman import FOREIGN, HELLO, HELLO_2, Podman, obstacle
from tests.providers.container_site import Notes

OWNER = Owner("abcdef0123456789abcdef0123456789", "/home/user/.compute")
OURS = {"compute.datumapis.com/local": OWNER.id}
CELLS = {"DFW": "cell-dfw", "AMS": "cell-ams"}
WITHIN = 40.0


class Machine:
    """A local federation on a machine with Podman. `crash` ends it where it stands, and begins another."""

    def __init__(self, podman: Podman) -> None:
        self.podman = podman
        self.notes = Notes()
        self.engine = compute_engine(uids=CountedUids())
        self._serving: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.begin()
        await self.federation.seed()
        await self.until("the project is ready", lambda: self.federation.is_ready("demo"))
        await self.federation.prepare("demo")

    def begin(self) -> None:
        self.provider = ContainersProvider(self._connect, OWNER, SystemClock(), self.notes, _no_credentials)
        self.federation = Federation(
            self.engine,
            projects=["demo"],
            cities=CELLS,
            limits={},
            clock=SystemClock(),
            generator=random.Random(1),
            provider=self.provider,
        )
        self._serving = [asyncio.create_task(self.federation.run())]

    async def _connect(self) -> ContainerEngine:
        return await EngineClient.connect(str(self.podman.path))

    async def stop(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def crash(self) -> None:
        await self.stop()
        self.begin()

    # The user

    async def deploy(self, *cities: str, replicas: int = 1, image: str = HELLO, **container: object) -> None:
        await self.federation.client("demo").create(
            WORKLOAD, WORKLOAD.body("api", "default") | {"spec": _spec(cities, replicas, image, container)}
        )

    async def change(self, *cities: str, replicas: int = 1, image: str = HELLO, **container: object) -> None:
        patch = {"spec": _spec(cities, replicas, image, container)}
        await self.federation.client("demo").merge_patch(WORKLOAD, "api", "default", patch)

    async def delete(self) -> None:
        await self.federation.client("demo").delete(WORKLOAD, "api", "default")

    # Looking

    async def instances(self) -> list[Instance]:
        found = []
        for cell in CELLS.values():
            found += (await self.federation.client(cell).list(INSTANCE)).items
        return found

    async def reports(self) -> dict[str, tuple[str, str]]:
        """Reason and message of Available, by Instance."""
        result = {}
        for instance in await self.instances():
            assert instance.status is not None
            [available] = [each for each in instance.status.conditions if each.type == "Available"]
            result[instance.name] = available.reason, available.message
        return result

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]], within: float = WITHIN) -> None:
        try:
            async with asyncio.timeout(within):
                while not await condition():  # noqa: ASYNC110 - what is waited for is in another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            seen = [(box["Names"], box["State"]) for box in self.podman.containers()]
            pytest.fail(f"{what}: not within {within} s; {await self.reports()}; {seen}")

    async def until_available(self, number: int) -> None:
        async def is_available() -> bool:
            reports = await self.reports()
            return len(reports) == number and all(reason == "Available" for reason, _ in reports.values())

        await self.until(f"{number} available", is_available)

    async def until_message(self, text: str) -> None:
        async def is_said() -> bool:
            return any(text in message for _, message in (await self.reports()).values())

        await self.until(text, is_said)

    async def answers(self) -> list[str]:
        """What each Instance says on its port."""
        addresses = []
        for instance in await self.instances():
            assert instance.status is not None
            addresses.append(instance.status.network_interfaces[0].assignments.external_ip)
        async with aiohttp.ClientSession() as session:
            return sorted([await _text(session, address) for address in addresses])

    def networks(self) -> list[str]:
        return [name for name in self.podman.networks() if name.startswith("datum-")]

    def ours(self) -> dict[str, str]:
        """Ids of our containers by name."""
        return {box["Names"][0].lstrip("/"): box["Id"] for box in self.podman.containers(**OURS)}


async def _text(session: aiohttp.ClientSession, address: str) -> str:
    for _ in range(100):
        with suppress(aiohttp.ClientError):
            async with session.get(f"http://{address}/") as response:
                return (await response.text()).strip()
        await asyncio.sleep(0.05)
    raise AssertionError(f"{address} does not answer")


async def _no_credentials(image: str) -> str:
    return ""


def _spec(cities: tuple[str, ...], replicas: int, image: str, container: Json) -> Json:
    web = {"name": "web", "image": image, "args": ["serve"], "ports": [{"name": "http", "port": 8080}]} | container
    return {
        "template": {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [web]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }
        },
        "placements": [{"name": "main", "cityCodes": list(cities), "scaleSettings": {"minReplicas": replicas}}],
    }


@pytest.fixture
def machine(podman: Podman, runner: asyncio.Runner) -> Iterator[Machine]:
    machine = Machine(podman)
    runner.run(machine.start())
    yield machine
    runner.run(machine.stop())
    machine.engine.close()


async def test_a_workload_of_two_cities_runs_and_answers_everywhere(machine: Machine) -> None:
    await machine.deploy("DFW", "AMS", replicas=2)
    await machine.until_available(4)
    names = ["api-main-ams-0", "api-main-ams-1", "api-main-dfw-0", "api-main-dfw-1"]
    assert await machine.answers() == [f"hello from {name}" for name in names]
    assert machine.networks() == ["datum-abcdef01-ams", "datum-abcdef01-dfw"]
    writes = machine.federation.writes.total("containers-provider")
    await asyncio.sleep(3)
    assert machine.federation.writes.total("containers-provider") == writes
    assert ("api-main-dfw-0", "listening on :8080") in machine.notes.lines
    await machine.delete()

    async def is_gone() -> bool:
        return not await machine.instances() and not machine.ours()

    await machine.until("nothing is left", is_gone)


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"command": ["/absent"]}, "The command /absent of container web is not in the image"),
        ({"image": FOREIGN}, f"The image {FOREIGN} is for another processor"),
        ({"image": "127.0.0.1:9/absent:1"}, "cannot be pulled: the registry does not answer"),
        ({"args": ["exit", "3"]}, "The instance keeps failing: exit code 3, 2 times in a row"),
        (
            {"args": ["allocate", "200"], "resources": {"limits": {"memory": "64Mi"}}},
            "it used more than its 64 MiB of memory, 2 times in a row",
        ),
    ],
    ids=["command", "processor", "image", "exit", "memory"],
)
async def test_what_cannot_run_is_named_and_repaired(machine: Machine, container: Json, message: str) -> None:
    image = str(container.get("image", HELLO))
    await machine.deploy("DFW", replicas=2, **({"image": image} | container))
    await machine.until_message(message)
    assert len(await machine.instances()) == 1  # the second waits for the first
    await machine.change("DFW", replicas=2, image=HELLO_2, command=None, resources=None)
    await machine.until_available(2)
    assert await machine.answers() == ["hello from api-main-dfw-0 version 2", "hello from api-main-dfw-1 version 2"]


async def test_a_roll_stops_at_an_instance_that_dies_at_once(machine: Machine) -> None:
    await machine.deploy("DFW", replicas=2)
    await machine.until_available(2)
    before = machine.ours()
    await machine.change("DFW", replicas=2, args=["exit", "0"])
    await machine.until_message("keeps failing: exit code 0, 3 times in a row")
    after = machine.ours()
    assert len(set(before.values()) & set(after.values())) == 1
    await machine.change("DFW", replicas=2)
    await machine.until_available(2)


async def test_two_containers_share_a_network(machine: Machine) -> None:
    await machine.deploy("DFW")
    await machine.until_available(1)
    spec = _spec(("DFW",), 1, HELLO, {})
    helper = {"name": "helper", "image": HELLO, "args": ["serve", "9090"], "ports": [{"name": "other", "port": 9090}]}
    containers = spec["template"]["spec"]["runtime"]["sandbox"]["containers"]
    containers.append(helper)
    await machine.federation.client("demo").merge_patch(WORKLOAD, "api", "default", {"spec": spec})

    async def both_run() -> bool:
        return len(machine.ours()) == 2 and [r for r, _ in (await machine.reports()).values()] == ["Available"]

    await machine.until("both run", both_run)
    [published] = machine.provider.published().values()
    async with aiohttp.ClientSession() as session:
        for port in ("8080/tcp", "9090/tcp"):
            assert "hello from" in await _text(session, f"127.0.0.1:{published[port]}")
    first = min(machine.ours())
    machine.podman.call("POST", f"/v1.41/containers/{first}/kill")
    await asyncio.sleep(0.5)
    await machine.until("both run again", both_run)
    [published] = machine.provider.published().values()
    async with aiohttp.ClientSession() as session:
        for port in ("8080/tcp", "9090/tcp"):
            assert "hello from" in await _text(session, f"127.0.0.1:{published[port]}")


async def test_what_users_do_by_hand_is_noticed(machine: Machine) -> None:
    await machine.deploy("DFW")
    await machine.until_available(1)
    [name] = machine.ours()
    machine.podman.call("POST", f"/v1.41/containers/{name}/stop")
    await machine.until_message("The instance failed and will be started again")
    await machine.until_available(1)
    machine.podman.call("DELETE", f"/v1.41/containers/{name}?force=true")
    await machine.until_message("The instance is being provisioned")
    await machine.until_available(1)
    machine.podman.call("POST", f"/v1.41/containers/{name}/pause")
    await machine.until_message("The instance was paused on this machine")
    machine.podman.call("POST", f"/v1.41/containers/{name}/unpause")
    await machine.until_available(1)


async def test_an_engine_that_goes_and_comes_back_finds_everything_as_it_was(machine: Machine) -> None:
    await machine.deploy("DFW")
    await machine.until_available(1)
    before = machine.ours()
    machine.podman.stop()
    await asyncio.sleep(3)
    machine.podman.start()
    await asyncio.sleep(3)
    await machine.until_available(1)
    assert machine.ours() == before
    assert await machine.answers() == ["hello from api-main-dfw-0"]


async def test_a_process_that_ends_at_any_moment_loses_and_doubles_nothing(machine: Machine) -> None:
    moments = random.Random(14)
    await machine.deploy("DFW", "AMS", replicas=2)
    for number in range(count(6, 20)):
        await asyncio.sleep(moments.uniform(0.0, 1.2))
        await machine.crash()
        if number % 3 == 2:
            await machine.until_available(4)
            before = machine.ours()
            await machine.crash()
            await machine.until_available(4)
            assert machine.ours() == before
            await machine.change("DFW", "AMS", replicas=2, env=[{"name": "N", "value": str(number)}])
    await machine.until_available(4)
    await asyncio.sleep(1)
    await machine.until_available(4)
    assert len(machine.ours()) == 4
    uids = {instance.metadata.uid for instance in await machine.instances()}
    labelled = {box["Labels"]["compute.datumapis.com/instance-uid"] for box in machine.podman.containers(**OURS)}
    assert labelled == uids


async def test_stopping_and_removing_everything_leaves_what_others_have(machine: Machine) -> None:
    foreign = {"Image": HELLO, "Cmd": ["sleep"], "Labels": {"compute.datumapis.com/local": "f" * 32}}
    _, other = machine.podman.call("POST", "/v1.41/containers/create?name=datum-abcdef01-demo-api", encode(foreign))
    await machine.deploy("DFW", "AMS")
    await machine.until_available(2)
    await machine.stop()
    before = machine.ours()
    engine = await EngineClient.connect(str(machine.podman.path))
    assert await stop_all(engine, OWNER) == 2
    assert {box["State"] for box in machine.podman.containers(**OURS)} == {"exited"}
    machine.begin()
    await machine.until_available(2)
    assert machine.ours() == before
    await machine.stop()
    removal = await remove_all(engine, OWNER)
    await engine.close()
    assert (removal.containers, removal.networks, removal.images) == (2, 2, (HELLO,))
    assert [box["Id"] for box in machine.podman.containers()] == [other["Id"]]
    assert machine.networks() == []


async def test_a_port_that_somebody_else_has_taken_is_given_up_for_another(machine: Machine) -> None:
    await machine.deploy("DFW")
    await machine.until_available(1)
    [published] = machine.provider.published().values()
    await machine.stop()
    [(name, id)] = machine.ours().items()
    machine.podman.call("POST", f"/v1.41/containers/{name}/stop")
    with socket.create_server(("127.0.0.1", published["8080/tcp"])):
        machine.begin()
        await machine.until("another container", lambda: _is_another(machine, id))
        await machine.until_available(1)
        assert await machine.answers() == ["hello from api-main-dfw-0"]
    assert list(machine.provider.published().values()) != [published]


async def _is_another(machine: Machine, id: str) -> bool:
    return id not in machine.ours().values()


async def test_calls_on_a_connection_that_was_given_up_find_the_engine_away(podman: Podman) -> None:
    engine = await EngineClient.connect(str(podman.path))
    await engine.close()
    with pytest.raises(EngineAway, match="given up"):
        await engine.containers(OURS)
    with pytest.raises(EngineAway, match="given up"):
        async with engine.events(OURS):
            pass


@pytest.fixture
def small_podman() -> Iterator[Podman]:
    """An engine whose storage is a small file system of its own."""
    if reason := obstacle():
        pytest.skip(reason)
    podman = Podman()
    storage = podman.folder / "storage"
    storage.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", storage], check=False).returncode:
        shutil.rmtree(podman.folder)
        pytest.skip("no file system can be mounted here")
    try:
        podman.start()
        podman.load()
        yield podman
    finally:
        podman.close()


def test_a_full_disk_of_the_engine_is_waited_for(small_podman: Podman, runner: asyncio.Runner) -> None:
    filler = small_podman.folder / "storage" / "filler"

    async def run() -> None:
        machine = Machine(small_podman)
        await machine.start()
        with filler.open("wb") as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(1 << 12))
        await machine.deploy("DFW")
        await machine.until_message("waits for room at the site: the disk of the container engine is full")
        filler.unlink()
        await machine.until_available(1)
        assert await machine.answers() == ["hello from api-main-dfw-0"]
        await machine.stop()
        machine.engine.close()

    runner.run(run())
